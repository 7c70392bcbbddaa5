"""The same plan by threads of one process and by a process for each device, over gloo.

    python -m tests.benchmarks.processes [NETWORK ...] [--rounds N] [--quick] [--json FILE]

The two take turns within one run, and the median of the rounds' ratios is judged. ``first`` is the time from plan and
model in hand to the first output. ``foreign`` is the processor time that others took meanwhile, in cores.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import planner
from costmodels.cluster.cluster import Cluster
from graphs.program.program import Program
from planner.cli.console import Console
from planner.planning.calibrate import profile
from planner.runtime.benchmark.check import compare_outputs
from planner.runtime.benchmark.load import Load
from planner.runtime.benchmark.measure import BenchmarkResult, PlannedContender, measure
from planner.runtime.inference.runner import Runner
from tests.benchmarks.bars import Bar, at_least, at_most, report
from tests.benchmarks.networks import parser_of, program_of

JUDGED = "bert_base"
MORE = ["resnet50", "mlp"]
DEVICES = 2
HEAD = f"{'network':13}{'threads':>11}{'processes':>12}{'ratio':>8}{'latency':>19}{'first':>16}{'equal':>7}"
HEAD += f"{'foreign':>9}"


@dataclass(frozen=True)
class Row:
    """One network, both ways."""

    name: str
    measurement: BenchmarkResult
    first_s: tuple[float, float]
    equal: bool

    @property
    def ratio(self) -> float:
        """Throughput by processes over that by threads."""
        return self.measurement.speedup("processes", "threads")

    def __str__(self) -> str:
        threads, processes = (self.measurement[name] for name in ("threads", "processes"))
        return (
            f"{self.name:13}{1 / threads.period_s:9.2f}/s{1 / processes.period_s:10.2f}/s{self.ratio:8.3f}"
            f"{threads.latency_s * 1e3:8.1f}{processes.latency_s * 1e3:8.1f} ms"
            f"{self.first_s[0]:7.2f}{self.first_s[1]:7.2f} s{'yes' if self.equal else 'NO':>7}"
            f"{self.measurement.foreign_cores:9.2f}"
        )


def one(name: str, cluster: Cluster, rounds: int, console: Console) -> Row:
    """Plan one network and measure it both ways."""
    program = program_of(name)
    profile(program, cluster.devices, console)
    plan = planner.plan(program, cluster=cluster)
    threads, threads_s = started(plan, program, processes=False)
    with threads:
        processes, processes_s = started(plan, program, processes=True)
        with processes:
            equal = not compare_outputs(processes).wrong
            contenders = [PlannedContender(threads, "threads"), PlannedContender(processes, "processes")]
            measurement = measure(contenders, rounds, console.on_step, Load(processes.pids))
    return Row(name, measurement, (threads_s, processes_s), equal)


def started(plan: planner.Plan, program: Program, processes: bool) -> tuple[Runner, float]:
    """A runner that has given its first output, and how long that took."""
    start_s = time.perf_counter()
    runner = planner.start(plan, program, processes=processes)
    args, kwargs = program.example_arguments
    runner(*args, **kwargs)
    return runner, time.perf_counter() - start_s


def bars_of(row: Row) -> Iterator[Bar]:
    """What a network should reach."""
    yield at_least(f"{row.name}: outputs bit-equal", float(row.equal), 1.0)
    if row.name == JUDGED:
        yield at_least(f"{row.name}: throughput by processes over threads", row.ratio, 0.9)
        yield at_most(f"{row.name}: seconds to the first output by processes", row.first_s[1], 10.0)


def main() -> int:
    """Measure and judge the bars."""
    options = parser_of(__doc__, "three", 9).parse_args()
    console = Console()
    cluster = planner.calibrate(reporter=console).first(DEVICES)
    bars: list[Bar] = []
    print(HEAD)
    for name in options.networks or ([JUDGED] if options.quick else [JUDGED, *MORE]):
        row = one(name, cluster, 4 if options.quick else options.rounds, console)
        console.say(str(row))
        bars += bars_of(row)
    return report(bars, options.json)


if __name__ == "__main__":
    sys.exit(main())
