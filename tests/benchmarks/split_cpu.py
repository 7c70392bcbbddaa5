"""`--split-cpu auto` never loses: the division of the CPU that it takes, beside the others and PyTorch alone.

    python -m tests.benchmarks.split_cpu [NETWORK ...] [--goal GOAL ...] [--rounds N] [--quick] [--json FILE]

For each network and goal there is a plan for every division of the cores, and one is chosen as ``planner plan`` does,
by a trial. Then all of them and the module with PyTorch's own threads take turns within one run, and medians of the
rounds' ratios are shown: throughput for the goal of throughput, the latency of one micro-batch alone for the goal of
latency. ``loses`` is how much slower the chosen one is than the better of plain PyTorch with a thread for each core and
the plan for devices of one core. As the trial ran them too, that is what the machine did between one and the other.
"""

import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import nan

import planner
from costmodels.cluster.cluster import Cluster
from graphs.program.program import Program
from planner.cli.console import Console
from planner.planning.calibrate import CalibrationOptions, surveys
from planner.planning.cpu_partitions import PartitionChoice, choose_partition, tried
from planner.planning.find_plan import plan as make_plan
from planner.runtime.benchmark.measure import BenchmarkResult, Contender, Eager, PlannedContender, measure
from tests.benchmarks.bars import Bar, at_least, report
from tests.benchmarks.networks import parser_of, program_of
from tests.benchmarks.throughput import TEN

QUICK = ["mlp"]
GOALS = ["throughput", "latency"]
PLAIN = "plain"
HEAD = (
    f"{'network':13}{'goal':>11}{'chosen':>8}{'predicted':>22}{'tried':>22}{'measured':>22}"
    f"{'plain':>11}{'loses':>8}{'foreign':>9}"
)


@dataclass(frozen=True)
class Row:
    """One network and goal.

    Attributes:
        choice: plans, fewest devices first, with their trial; contenders are named by how many devices they have.
        measurement: of the plans and of plain PyTorch.
    """

    name: str
    goal: str
    choice: PartitionChoice
    measurement: BenchmarkResult

    @property
    def chosen(self) -> str:
        """Name of the chosen contender."""
        return named(self.choice.plan)

    def speedup(self, name: str, over: str) -> float:
        """Of one contender over another, in what the goal is about."""
        ratio = self.measurement.speedup if self.goal == "throughput" else self.measurement.latency_speedup
        return ratio(name, over)

    @property
    def kept(self) -> float:
        """The chosen one's speed over that of the better of plain PyTorch and devices of one core."""
        return min(1.0, *(self.speedup(self.chosen, other) for other in (PLAIN, named(self.choice.plans[-1]))))

    def seconds(self, name: str) -> float:
        """What a contender takes."""
        measured = self.measurement[name]
        return measured.period_s if self.goal == "throughput" else measured.latency_s

    def __str__(self) -> str:
        def listed(values: Iterable[float]) -> str:
            return " ".join(f"{value * 1e3:8.2f}" for value in values) + " ms"

        predicted = listed(one.predicted_s for one in self.choice.plans)
        in_trial = listed(seconds or nan for seconds in self.choice.measured_s)
        measured = listed(self.seconds(named(one)) for one in self.choice.plans)
        return (
            f"{self.name:13}{self.goal:>11}{self.chosen:>8}{predicted:>22}{in_trial:>22}{measured:>22}"
            f"{self.seconds(PLAIN) * 1e3:8.2f} ms{1 - self.kept:8.1%}{self.measurement.foreign_cores:9.2f}"
        )


def named(plan: planner.Plan) -> str:
    """A plan's contender."""
    return str(len(plan.cluster.devices))


def one(program: Program, goal: str, clusters: Sequence[Cluster], rounds: int, console: Console) -> Row:
    """Plan for every division, choose, run all of them."""
    choice = tried(
        choose_partition(clusters, lambda cluster: make_plan(program, cluster=cluster, goal=goal)), program, console
    )
    wide = clusters[0].devices[0]
    with ExitStack() as stack:
        contenders: list[Contender] = [Eager(program, wide, PLAIN)]
        for plan in choice.plans:
            contenders.append(PlannedContender(stack.enter_context(planner.start(plan, program)), named(plan)))
        return Row(program.graph.name, goal, choice, measure(contenders, rounds, console.on_step))


def main() -> int:
    """Measure the networks and judge the bars."""
    parser = parser_of(__doc__, "ten", 7)
    parser.add_argument("--goal", nargs="+", choices=GOALS, default=GOALS, help="default: both")
    options = parser.parse_args()
    console = Console()
    bars: list[Bar] = []
    print(HEAD)
    for name in options.networks or (QUICK if options.quick else TEN):
        program = program_of(name)
        found = surveys(program, reporter=console, calibration_options=CalibrationOptions(split_cpu="auto", again=True))
        clusters = [one.cluster for one in found]
        for goal in options.goal:
            row = one(program, goal, clusters, 3 if options.quick else options.rounds, console)
            console.say(str(row))
            bars.append(at_least(f"{name}, {goal}: auto over the better of plain and one-core devices", row.kept, 0.97))
    return report(bars, options.json)


if __name__ == "__main__":
    sys.exit(main())
