"""One weird trick, found unprompted: which layers of AlexNet to divide by samples, and which by neurons.

Krizhevsky (arXiv 1404.5997) divides the convolutions by samples (data parallelism, d) and the fully connected layers by
neurons (model parallelism, m). The planner is given the layers of the imported network and chooses for each; MB are
10**6 bytes that each GPU sends in a step.

    python -m examples.one_weird_trick
"""

from examples.chains import alexnet, layers_of
from planner.cli.console import Console
from planner.literature.layerwise.layer_modes import MODES, best_modes
from planner.literature.layerwise.layer_parallelism import LayerMode, LayerProblem

GPUS, BATCHES = 8, (128, 512, 1024, 2048, 4096)
PUBLISHED: tuple[LayerMode, ...] = (*("d",) * 5, *("m",) * 3)
MB = 1e6


def problem(batch: int) -> LayerProblem:
    """The layers of the imported network, for so many samples on all GPUs."""
    return LayerProblem("alexnet", layers_of(alexnet(1), 1), batch, GPUS)


def alike(mode: LayerMode, n_layers: int) -> tuple[LayerMode, ...]:
    """The same mode for all layers."""
    return (mode,) * n_layers


def main() -> int:
    """Print what is found."""
    console, rows = Console(), []
    for batch in BATCHES:
        asked = problem(batch)
        n, found = len(asked.layers), best_modes(asked)
        data, model = (alike(mode, n) for mode in MODES)
        ways = [data, model, PUBLISHED, found]
        sent = (f"{asked.sent_bytes(modes) / MB:.1f}" for modes in ways)
        rows.append((str(batch), *sent, "".join(found), "yes" if found == PUBLISHED else "no"))
    heads = ("samples", "all d", "all m", f"published {''.join(PUBLISHED)}", "found", "modes", "the trick")
    console.show({}, f"AlexNet on {GPUS} GPUs: MB that each sends in a step", heads, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
