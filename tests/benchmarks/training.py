"""Training steps of planned networks: two devices over one, predicted against measured.

    python -m tests.benchmarks.training [NETWORK ...] [--batch N] [--rounds N] [--quick] [--json FILE]

1F1B with 8 micro-batches on two devices can be 2 · 8 / (8 + 1) = 1.78 times as fast as one device. That one trains the
model itself, unsplit, with the same micro-batches; both take turns within one run and medians of the ratios are shown.
``isolated`` is the error that the prediction would have if devices were as quick under contention as each is by itself.
``foreign`` is the processor time that other processes took meanwhile, in cores: above 0.1 a row is disturbed.
"""

import sys
from dataclasses import dataclass, replace

import numpy as np

import planner
from costmodels.cluster.cluster import Cluster
from costmodels.workload import Workload
from planner.cli.console import Console
from planner.planning.calibrate import CalibrationOptions, profile
from planner.problem.evaluate import evaluate
from planner.runtime.benchmark.measure import BenchmarkResult, measure_steps
from planner.runtime.training.check import (
    TINY_STEPS,
    GradientDifference,
    ReferenceTraining,
    differing_gradients,
    example_batches,
    mean_square,
)
from tests.benchmarks.bars import at_least, at_most, report
from tests.benchmarks.networks import parser_of, program_of
from tests.costmodels.parts import table_with

THREE = ["googlenet", "nin", "resnet50"]
QUICK = ["nin"]
DEVICES, MICRO_BATCHES, OPTIMIZER = 2, 8, "momentum"
HEAD = f"{'network':14}{'cuts':>5}{'predicted':>12}{'measured':>11}{'error':>8}{'alone':>8}"
HEAD += f"{'×1 device':>11}{'gradients':>22}{'foreign':>9}"


@dataclass(frozen=True)
class Row:
    """One network: what the plan promised and what it did."""

    name: str
    plan: planner.Plan
    times: BenchmarkResult
    differences: list[GradientDifference]

    @property
    def speedup(self) -> float:
        """Over the reference model on one device."""
        return self.times.speedup("plan", "one device")

    @property
    def error(self) -> float:
        """Predicted seconds of a step against measured, relative to the measured."""
        return self.plan.latency_s / self.times["plan"].latency_s - 1

    @property
    def error_alone(self) -> float:
        """The same if no device slowed down another."""
        table = self.plan.table
        problem = replace(self.plan.problem, table=table_with(table, slowdown=np.zeros_like(table.slowdown)))
        return evaluate(problem, self.plan.placement).objective_s / self.times["plan"].latency_s - 1

    @property
    def equal(self) -> bool:
        """Whether the gradients are close enough."""
        return all(one.share <= one.allowed for one in self.differences)

    def __str__(self) -> str:
        cuts = sum(1 for _ in self.plan.placement.cuts(self.plan.table))
        worst = f"differ by {self.differences[0].share:.1e}" if self.differences else "bit-equal"
        return (
            f"{self.name:14}{cuts:5}{self.plan.latency_s:11.3f}s{self.times['plan'].latency_s:10.3f}s{self.error:+8.1%}"
            f"{self.error_alone:+8.1%}"
            f"{self.speedup:11.2f}{worst:>22}{self.times.foreign_cores:9.2f}"
        )


def one(name: str, batch: int, cluster: Cluster, rounds: int, console: Console) -> Row:
    """Profile, plan, run and measure one network."""
    program = program_of(name, batch, training=True)
    profile(program, cluster.devices, console, CalibrationOptions(again=True, training=True))
    workload = Workload("training", batch, optimizer=OPTIMIZER, micro_batches=MICRO_BATCHES, schedule="1f1b")
    plan = planner.plan(program, cluster=cluster, goal="training", workload=workload)
    batches = example_batches(program, MICRO_BATCHES)
    reference = ReferenceTraining(program, cluster.devices[0], mean_square, TINY_STEPS[OPTIMIZER])
    with planner.train(plan, program, loss=mean_square, optimizer=TINY_STEPS[OPTIMIZER]) as trainer:
        differences = differing_gradients(trainer, mean_square, batches)
        contenders = {"plan": lambda: trainer.step_s(batches), "one device": lambda: reference.step(batches)}
        return Row(name, plan, measure_steps(contenders, rounds, console.on_step), differences)


def main() -> int:
    """Measure the networks and judge the bars."""
    parser = parser_of(__doc__, "three", 7)
    parser.add_argument("--batch", type=int, default=4, help="samples in one micro-batch")
    options = parser.parse_args()
    console = Console()
    cluster = planner.calibrate(reporter=console).first(DEVICES)
    rows = []
    print(HEAD)
    for name in options.networks or (QUICK if options.quick else THREE):
        rows.append(one(name, options.batch, cluster, 3 if options.quick else options.rounds, console))
        console.say(str(rows[-1]))
    bars = [at_least("gradients as the reference model's, share", sum(row.equal for row in rows) / len(rows), 1.0)]
    bars += [at_least(f"a step of {row.name} over one device", row.speedup, 1.6) for row in rows]
    bars.append(at_most("predicted against measured, worst error", max(abs(row.error) for row in rows), 0.1))
    return report(bars, options.json)


if __name__ == "__main__":
    sys.exit(main())
