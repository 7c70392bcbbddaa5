"""Throughput of planned networks against ONNX Runtime and OpenVINO, in one run.

    python -m tests.benchmarks.peers [NETWORK | MODULE:FACTORY ...] [--batch N] [--rounds N] [--quick] [--json FILE]

Plans have quick kernels and four micro-batches in flight, of which a copy of the network may run two at once, where
that reads large weights once. All contenders take turns and medians of the rounds' ratios are shown: how many times as
fast as eager PyTorch on one core each is. Each peer counts with its better mode. All compute in float32: OpenVINO takes
bfloat16 by itself where the processor can, and is then off by a hundredth of the largest element; how fast it is so is
shown in ``bf16`` and judged by no bar. ``off`` is by what share of the largest element our outputs are off. ``foreign``
is the processor time that other processes took meanwhile, in cores: above 0.1 a row is disturbed.

The peers are the extra ``peers``: pip install 'placement-planner[peers]'.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean

import planner
from graphs.common.errors import InputError
from planner.cli.console import Console
from planner.planning.calibrate import CalibrationOptions, divisions
from planner.runtime.benchmark.check import Answers, compare_outputs
from planner.runtime.benchmark.measure import BenchmarkResult, Eager, PlannedContender, measure
from planner.runtime.benchmark.peers import peers
from tests.benchmarks.bars import Bar, at_least, at_most, declare, report
from tests.benchmarks.networks import program_of

EIGHT = ["googlenet", "resnet50", "bert_base", "gpt2", "vit_b16", "lstm_seq2seq", "alexnet", "mlp"]
QUICK = ["mlp", "alexnet"]
ONE = "one device"
PEERS = ("onnxruntime", "openvino", "openvino-bf16")
MODES = {
    "ort": ("onnxruntime, 2 threads", "onnxruntime, 2 sessions"),
    "ov": ("openvino, throughput", "openvino, latency"),
    "bf16": ("openvino, bf16, throughput", "openvino, bf16, latency"),
}
HEAD = f"{'network':13}" + "".join(f"{name:>7}" for name in ("ours", "ort", "ort2", "ov", "ovl", "bf16", "/ort", "/ov"))
HEAD += f"{'off':>9}{'foreign':>9}"


@dataclass(frozen=True)
class Row:
    """One network, and how many times as fast as eager PyTorch on one core each contender was."""

    name: str
    measurement: BenchmarkResult
    answers: Answers

    def over(self, peer: str) -> float:
        """Our throughput over that of the better mode of a peer."""
        return min(self.measurement.speedup("plan", mode) for mode in MODES[peer])

    @property
    def off(self) -> float:
        """By what share of the largest element our outputs are off."""
        return 1.0 if self.answers.wrong else self.answers.rounding

    def __str__(self) -> str:
        speeds = [self.measurement.speedup(name, ONE) for name in ("plan", *MODES["ort"], *MODES["ov"])]
        speeds += [max(self.measurement.speedup(name, ONE) for name in MODES["bf16"])]
        speeds += [self.over("ort"), self.over("ov")]
        figures = "".join(f"{speed:7.2f}" for speed in speeds)
        return f"{self.name:13}{figures}{self.off:9.0e}{self.measurement.foreign_cores:9.2f}"


def one(name: str, batch: int, rounds: int, console: Console) -> Row:
    """Calibrate, plan, run and measure one network beside its peers."""
    program = program_of(name, batch)
    planner.calibrate(
        program, reporter=console, calibration_options=CalibrationOptions(split_cpu="auto", kernels="quick")
    )
    plan = planner.plan(program, cluster=divisions(kernels="quick"))
    with planner.start(plan, program) as runner, peers(program, plan.cluster.devices, PEERS) as others:
        answers = compare_outputs(runner)
        eager = Eager(program, divisions(kernels="quick")[-1].devices[0], ONE)
        return Row(name, measure([PlannedContender(runner), eager, *others], rounds, console.on_step), answers)


def bars_of(rows: Sequence[Row]) -> list[Bar]:
    """What the networks should reach together and each."""
    ratios = {row.name: row.over("ov") for row in rows}
    worst = min(ratios, key=ratios.__getitem__)
    return [
        at_least("over OpenVINO's better mode, geometric mean", geometric_mean(ratios.values()), 1.0),
        at_least(f"over OpenVINO's better mode, worst network ({worst})", ratios[worst], 0.93),
        at_least("over ONNX Runtime's better mode, geometric mean", geometric_mean(r.over("ort") for r in rows), 1.2),
        at_most("outputs off by, share of the largest element", max(row.off for row in rows), 1e-5),
    ]


def main() -> int:
    """Measure the networks and judge the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help="a name, or MODULE:FACTORY; eight by default")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="samples in one micro-batch (1)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contender")
    declare(parser)
    options = parser.parse_args()
    console = Console()
    rows = []
    print(HEAD)
    for name in options.networks or (QUICK if options.quick else EIGHT):
        try:
            rows.append(one(name, options.batch, 2 if options.quick else options.rounds, console))
        except InputError as refused:  # by a peer, say, which counts for nobody
            print(f"{name:13} {refused}", flush=True)
        else:
            print(rows[-1], flush=True)
    return report(bars_of(rows), options.json) if rows else 1


if __name__ == "__main__":
    sys.exit(main())
