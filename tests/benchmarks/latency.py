"""Latency of one micro-batch on two devices whose branches run side by side: GoogLeNet and a two-tower transformer.

    python -m tests.benchmarks.latency [NETWORK ...] [--rounds N] [--quick] [--json FILE]

Contenders take turns within one run and medians of the rounds' ratios are shown. ``×1 dev`` is against the module as
PyTorch runs it on one device, ``×1 plan`` against the plan for one device, which has the same kernels; ``×threads``
against PyTorch's own threads on the cores of both. ``limit`` is what no plan can exceed beside ``×1 plan``, by the
proof of the search: the longest path through the network takes its time.
"""

import sys
from contextlib import ExitStack
from dataclasses import dataclass

import planner
from costmodels.cluster.cluster import Cluster
from planner.cli.console import Console
from planner.planning.calibrate import CalibrationOptions, profile
from planner.runtime.benchmark.check import compare_outputs
from planner.runtime.benchmark.measure import BenchmarkResult, PlannedContender, baselines, measure
from tests.benchmarks.bars import Bar, at_least, at_most, report
from tests.benchmarks.networks import parser_of, program_of

TARGETS = {"googlenet": 1.5, "two_tower": 1.9}  # over one device
DEVICES = 2
ONE, ALONE = "one device", "one-device plan"
HEAD = f"{'network':12}{'overhead':>11}{'gap':>7}{'predicted':>12}{'measured':>11}{'error':>8}{'×1 dev':>8}"
HEAD += f"{'×1 plan':>9}{'limit':>7}{'×threads':>10}{'equal':>7}{'foreign':>9}"


@dataclass(frozen=True)
class Row:
    """One network: what the plan promised and what it did.

    Attributes:
        plan: for two devices.
        isolated: for one.
        measurement: of both, the module and its threads.
        equal: whether the outputs are, bit by bit.
    """

    name: str
    plan: planner.Plan
    isolated: planner.Plan
    measurement: BenchmarkResult
    equal: bool

    @property
    def error(self) -> float:
        """Predicted latency against measured, relative to the measured."""
        return self.plan.latency_s / self.measurement["plan"].latency_s - 1

    def over(self, name: str) -> float:
        """How many times as fast as another contender."""
        return self.measurement.latency_speedup("plan", name)

    def __str__(self) -> str:
        cuts = sum(1 for _ in self.plan.placement.cuts(self.plan.table))
        threads = next(one.name for one in self.measurement.contenders if one.name.endswith("threads"))
        return (
            f"{self.name:12}{cuts:11}{self.plan.gap:7.1%}{self.plan.latency_s * 1e3:9.2f} ms"
            f"{self.measurement['plan'].latency_s * 1e3:8.2f} ms{self.error:+8.1%}{self.over(ONE):8.2f}"
            f"{self.over(ALONE):9.2f}{self.isolated.latency_s / self.plan.bound_s:7.2f}{self.over(threads):10.2f}"
            f"{'yes' if self.equal else 'NO':>7}{self.measurement.foreign_cores:9.2f}"
        )


def one(name: str, cluster: Cluster, rounds: int, console: Console) -> Row:
    """Profile, plan, run and measure one network."""
    program = program_of(name)
    profile(program, cluster.devices, console, CalibrationOptions(again=True))
    clusters = cluster, cluster.first(1)
    plan, isolated = (planner.plan(program, cluster=devices, goal="latency") for devices in clusters)
    with ExitStack() as stack:
        runner, other = (stack.enter_context(planner.start(one, program)) for one in (plan, isolated))
        equal = not compare_outputs(runner).wrong
        contenders = [PlannedContender(runner), PlannedContender(other, ALONE), *baselines(program, cluster.devices)]
        return Row(name, plan, isolated, measure(contenders, rounds, console.on_step), equal)


def main() -> int:
    """Measure the networks and judge the bars."""
    options = parser_of(__doc__, "both", 11).parse_args()
    console = Console()
    cluster = planner.calibrate(reporter=console).first(DEVICES)
    bars: list[Bar] = []
    print(HEAD)
    for name in options.networks or TARGETS:
        row = one(name, cluster, 3 if options.quick else options.rounds, console)
        console.say(str(row))
        bars.append(at_least(f"{name}: outputs bit-equal", row.equal, 1.0))
        if name in TARGETS:
            bars.append(at_least(f"{name}: latency on two devices over one", row.over(ONE), TARGETS[name]))
        bars.append(at_most(f"{name}: predicted against measured", abs(row.error), 0.1))
    return report(bars, options.json)


if __name__ == "__main__":
    sys.exit(main())
