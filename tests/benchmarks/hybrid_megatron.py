"""Published steps of Megatron-LM and DeepSpeed on A100, predicted; and the fit of its layers' times.

The fit is that of `planner.parallelism.closed_form.layer_times`.

    python -m tests.benchmarks.hybrid_megatron [CASES.json]

The shares of `MEGATRON` are fitted to five rows, what `DEEPSPEED` has besides to two. All other rows are left out, and
say how good the model is. Rows are those of ``../shared/bench/hybrid/megatron``.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from math import log
from pathlib import Path
from typing import Any, NamedTuple

from scipy.optimize import least_squares

from costmodels.cluster.cluster import Device
from costmodels.cluster.collectives import Port
from costmodels.cluster.fabric import Fabric
from costmodels.workload import RECOMPUTE_MODES
from planner.parallelism.closed_form.config import ParallelConfig, ParallelShape, StageLayers, TrainingSetting
from planner.parallelism.closed_form.layer_times import DEEPSPEED, MEGATRON, Efficiency
from planner.parallelism.closed_form.prices import StepPrice, config_price
from planner.parallelism.closed_form.transformer import Transformer

CASES = Path(__file__).parents[3] / "shared" / "bench" / "hybrid" / "megatron" / "cases.json"
FITTED = ("1.7B", "7.5B", "76B", "1T", "22B full recomputation")
FITTED_DEEPSPEED = ("175B ZeRO-3 on 384", "175B ZeRO-3 on 1536")
A100 = Device("A100", "A100-SXM-80GB", 80e9, {"bfloat16": 312e12}, 2039e9)
HOST_DEVICES, INSIDE, BETWEEN = 8, Port(2e-6, 300e9), Port(2e-6, 25e9)  # NVLink 3, and a 200 Gb/s card for each GPU


class PublishedRun(NamedTuple):
    """A configuration, and what a step took."""

    name: str
    setting: TrainingSetting
    config: ParallelConfig
    seconds: float | None

    @property
    def deepspeed(self) -> bool:
        """Whether it was run with DeepSpeed."""
        return "ZeRO" in self.name or "Turing" in self.name

    def predicted(self, efficiency: Efficiency | None = None) -> StepPrice:
        """What a step takes by our reckoning."""
        fitted = DEEPSPEED if self.deepspeed else MEGATRON
        return config_price(replace(self.setting, efficiency=efficiency or fitted), self.config)

    def error(self, efficiency: Efficiency | None = None) -> float:
        """Of the prediction, relative."""
        assert self.seconds is not None
        return self.predicted(efficiency).step_s / self.seconds - 1


def published_runs(path: Path = CASES) -> list[PublishedRun]:
    """All rows of the file."""
    cases = json.loads(path.read_text(encoding="utf-8"))
    kinds = ("weak_scaling", "training_time", "step_time")
    return [_run(case, cases["sequence"], cases["vocabulary"]) for kind in kinds for case in cases[kind]]


@cache
def _fabric(devices: int) -> Fabric:
    return Fabric((A100,) * devices, HOST_DEVICES, INSIDE, BETWEEN)


def _run(case: dict[str, Any], sequence: int, vocabulary: int) -> PublishedRun:
    layers, pipeline, data, samples = case["layers"], case["pipeline"], case["data"], case.get("micro_batch", 1)
    network = Transformer(layers, case["hidden"], case.get("heads") or case["hidden"] // 128, sequence, vocabulary)
    chunks = case.get("chunks", 1)
    if case.get("layers_per_virtual_stage"):
        chunks = layers // pipeline // case["layers_per_virtual_stage"]
    shape = ParallelShape(
        data,
        case["tensor"],
        pipeline,
        samples,
        case["batch"] // data // samples,
        3 if "ZeRO" in case["name"] else 0,
        "interleaved" if chunks > 1 else "1f1b",
        chunks,
    )
    mode = "selective" if "selective" in case["name"] else "full"
    stage = StageLayers(*(layers // pipeline if mode == other else 0 for other in RECOMPUTE_MODES))
    setting = TrainingSetting(network, _fabric(case["gpus"]), case["batch"])
    return PublishedRun(case["name"], setting, ParallelConfig(shape, (stage,) * pipeline), _seconds(case, network))


def _seconds(case: dict[str, Any], network: Transformer) -> float | None:
    """As published, or from the published FLOP/s, which count what is recomputed."""
    if "seconds" in case:
        return float(case["seconds"])
    if "teraflops" not in case:
        return None
    flops_per_s: float = case["gpus"] * case["teraflops"] * 1e12
    return network.step_flops(case["batch"], recompute=True) / flops_per_s


def left_out(runs: Sequence[PublishedRun]) -> Iterator[PublishedRun]:
    """The rows that have seconds and are not in the fit."""
    return (run for run in runs if run.seconds and run.name not in FITTED + FITTED_DEEPSPEED)


def fitted(runs: Sequence[PublishedRun]) -> tuple[Efficiency, Efficiency]:
    """The shares with the least squares of the logarithms."""
    products, memory, inside, between = _least_squares(
        [run for run in runs if run.name in FITTED],
        lambda x: Efficiency(x[0], x[1], x[2], x[3], sharded=x[3], overlap=1.0),
        start=(0.7, 0.8, 0.6, 0.6),
        most=(1.0, 1.0, 1.0, 1.0),
    )
    megatron = Efficiency(products, memory, inside, between, sharded=between, overlap=1.0)
    sharded, overlap = _least_squares(
        [run for run in runs if run.name in FITTED_DEEPSPEED],
        lambda x: replace(megatron, between=x[0], sharded=x[0], overlap=x[1]),
        start=(0.15, 1.4),
        most=(1.0, 2.0),
    )
    return (
        replace(megatron, sharded=sharded, overlap=overlap),
        replace(megatron, between=sharded, sharded=sharded, overlap=overlap),
    )


def _least_squares(
    runs: Sequence[PublishedRun],
    made: Callable[[Sequence[float]], Efficiency],
    start: Sequence[float],
    most: Sequence[float],
) -> list[float]:
    """The shares that predict these runs best."""

    def errors(shares: Sequence[float]) -> list[float]:
        return [log(1 + run.error(made(shares))) for run in runs]

    found = least_squares(errors, start, bounds=([0.01] * len(start), most))
    return [float(share) for share in found.x]


def main() -> int:
    """Print every row, and the fit."""
    runs = published_runs(Path(sys.argv[1]) if len(sys.argv) > 1 else CASES)
    print(f"{'':52}{'published':>10}{'ours':>10}{'error':>8}{'memory':>10}")
    for run in runs:
        price = run.predicted()
        seconds = f"{run.seconds:10.3f}" if run.seconds else ""
        error = f"{run.error():8.1%}" if run.seconds else ""
        fit = "  fitted" if run.name in FITTED + FITTED_DEEPSPEED else ""
        print(f"{run.name:52}{seconds:>10}{price.step_s:10.3f}{error:>8}{price.peak_bytes / 1e9:7.1f} GB{fit}")
    for efficiency in fitted(runs):
        print(efficiency)
    return 0


if __name__ == "__main__":
    sys.exit(main())
