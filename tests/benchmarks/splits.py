"""Latency of one sample whose operators are split between two devices.

    python -m tests.benchmarks.splits [NETWORK ...] [--rounds N] [--quick] [--json FILE]

Contenders take turns within one run and medians of the rounds' ratios are shown: how many times as fast the plan for
two devices is as ``threads``, a plan for one device of both cores, whose quick kernels have a thread for each core; as
``1 dev``, a plan for one device; as ``eager``, the module with PyTorch's own two threads, and as ``1 eager``, with one.
``auto`` is what
``--split-cpu auto`` takes, beside the better one of both. ``split`` is the number of operators in parts. ``foreign`` is
the processor time that other processes took meanwhile, in cores: above 0.1 a row is disturbed.
"""

import sys
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import nn

import planner
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from graphs.rewrites.split import Split
from planner.cli.console import Console
from planner.planning.calibrate import CalibrationOptions, surveys
from planner.planning.cpu_partitions import choose_partition, tried
from planner.runtime.benchmark.check import Answers, compare_outputs
from planner.runtime.benchmark.measure import BenchmarkResult, PlannedContender, baselines, measure
from tests.benchmarks.bars import Bar, at_least, at_most, report
from tests.benchmarks.networks import parser_of, program_of

LINEAR = "linear 256 MB"
FIVE = ["resnet50", "vgg16", "bert_base", "gpt2", "vit_b16"]
QUICK = [LINEAR]
PLAN, THREADS, ALONE, ONE = "plan", "threads", "1 dev", "one device"
HEAD = f"{'network':14}{'split':>6}{'predicted':>12}{'measured':>11}{'error':>8}{'×threads':>10}{'×1 dev':>8}"
HEAD += f"{'×eager':>8}{'×1 eager':>9}{'auto':>7}{'off':>9}{'foreign':>9}"


@dataclass(frozen=True)
class Row:
    """One network.

    Attributes:
        plan: for two devices.
        auto: name of the contender that ``--split-cpu auto`` takes.
        measurement: of all contenders.
        answers: of the plan, against the module's.
    """

    name: str
    plan: planner.Plan
    auto: str
    measurement: BenchmarkResult
    answers: Answers

    def over(self, name: str, of: str = PLAN) -> float:
        """How many times as fast one contender is as another."""
        return self.measurement.latency_speedup(of, name)

    @property
    def eager(self) -> str:
        """Name of the module with a thread for each core."""
        return next(one.name for one in self.measurement.contenders if one.name.endswith(" threads"))

    @property
    def loses(self) -> float:
        """The chosen contender against the better one of both, which it may be."""
        return min(1.0, self.over(THREADS, self.auto), self.over(PLAN, self.auto))

    def __str__(self) -> str:
        split = sum(len(one.choices) for one in self.plan.rewrites if isinstance(one, Split))
        measured_s = self.measurement[PLAN].latency_s
        return (
            f"{self.name:14}{split:6}{self.plan.latency_s * 1e3:9.2f} ms{measured_s * 1e3:8.2f} ms"
            f"{self.plan.latency_s / measured_s - 1:+8.1%}{self.over(THREADS):10.2f}{self.over(ALONE):8.2f}"
            f"{self.over(self.eager):8.2f}{self.over(ONE):9.2f}{self.loses:7.2f}{self.answers.rounding:9.0e}"
            f"{self.measurement.foreign_cores:9.2f}"
        )


def program_named(name: str) -> Program:
    """A network, or one linear layer of 256 MB."""
    if name != LINEAR:
        return program_of(name)
    torch.manual_seed(0)
    return program_from_module(nn.Linear(8192, 8192).eval(), (torch.randn(1, 8192),), name="linear")


def one(name: str, rounds: int, console: Console) -> Row:
    """Calibrate, plan, run and measure one network."""
    program = program_named(name)
    options = CalibrationOptions(split_cpu="auto", kernels="quick")
    clusters = [each.cluster for each in surveys(program, reporter=console, calibration_options=options)]
    plans = {len(cluster.devices): planner.plan(program, cluster=cluster, goal="latency") for cluster in clusters}
    choice = tried(choose_partition(clusters, lambda cluster: plans[len(cluster.devices)]), program, console)
    alone = planner.plan(program, cluster=clusters[-1].first(1), goal="latency")
    with ExitStack() as stack:
        named = {PLAN: plans[2], THREADS: plans[1], ALONE: alone}
        runners = {key: stack.enter_context(planner.start(plan, program)) for key, plan in named.items()}
        answers = compare_outputs(runners[PLAN])
        planned = [PlannedContender(runner, key) for key, runner in runners.items()]
        eager = baselines(program, plans[2].cluster.devices)
        measurement = measure([*planned, *eager], rounds, console.on_step)
    return Row(name, plans[2], PLAN if choice.plan is plans[2] else THREADS, measurement, answers)


def main() -> int:
    """Measure the networks and judge the bars."""
    options = parser_of(__doc__, "five and a linear layer", 9).parse_args()
    console = Console()
    rows: list[Row] = []
    print(HEAD)
    for name in options.networks or (QUICK if options.quick else [LINEAR, *FIVE]):
        rows.append(one(name, 3 if options.quick else options.rounds, console))
        console.say(str(rows[-1]))
    bars: list[Bar] = []
    for row in rows:
        if row.name == LINEAR:
            bars.append(at_least(f"{LINEAR}: over the module on one device", row.over(ONE), 1.4))
        bars.append(at_least(f"{row.name}: --split-cpu auto beside the better division", row.loses, 0.97))
        bars.append(at_most(f"{row.name}: outputs off by, share of the largest element", row.answers.rounding, 1e-5))
    five = [row for row in rows if row.name in FIVE]
    if len(five) == len(FIVE):
        faster = sum(row.over(THREADS) > 1 for row in five)
        bars.append(at_least("networks of five that are faster than two threads with the same kernels", faster, 4))
    return report(bars, options.json)


if __name__ == "__main__":
    sys.exit(main())
