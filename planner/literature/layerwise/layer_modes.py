"""Data or model parallelism for each layer of a chain, by dynamic programming over the layers.

::

    least[l][mode] = min over before of least[l - 1][before] + bytes of l in this mode after that one
"""

from planner.literature.layerwise.layer_parallelism import LayerMode, LayerProblem

MODES: tuple[LayerMode, ...] = ("d", "m")


def best_modes(problem: LayerProblem) -> tuple[LayerMode, ...]:
    """Return the mode of each layer that makes a device send the least in a step; the first of equals."""
    least: dict[LayerMode, tuple[float, tuple[LayerMode, ...]]] = {"d": (0.0, ())}
    for number in range(len(problem.layers)):
        least = {
            mode: min(
                (sent + problem.layer_bytes(number, mode, before), (*modes, mode))
                for before, (sent, modes) in least.items()
            )
            for mode in MODES
        }
    return min((sent + problem.output_bytes(last), modes) for last, (sent, modes) in least.items())[1]
