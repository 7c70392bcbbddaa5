"""Accuracy of predictions as a user meets it: one calibration, one plan and one run of five rounds for each network.

    python -m tests.benchmarks.accuracy [MODULE:FACTORY ...] [--unlisted] [--again N] [--every S] [--rounds N]
                                        [--json FILE]

Errors are shown raw, and after the machine's pace (`costmodels.operators.pace`); "!" marks a time outside its range for
80 % of runs, for which ``--again`` and ``--every`` measure at moments that lie apart. By default the networks are those
of `LISTED`, which everybody sees who works on the costs; ``--unlisted`` takes those of `tests.benchmarks.unlisted`,
which are for the end. `tests.benchmarks.plan_order` tells whether plans are measured in the predicted order,
`tests.benchmarks.learned` how well operators are predicted that were never measured, `tests.benchmarks.memory` memory.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import fmean

import planner
from costmodels.profile_cache import add_moment
from graphs.common.errors import InputError
from planner.cli.console import Console
from planner.plans.compare import Figure, PaceChange, pace_change
from planner.plans.plan import Plan
from planner.plans.ranges import Range
from planner.runtime.benchmark.load import Load
from planner.runtime.benchmark.measure import BenchmarkResult, PlannedContender, measure
from tests.benchmarks.bars import Bar, at_least, at_most, declare, errors_at_most, report
from tests.benchmarks.networks import program_of
from tests.benchmarks.unlisted import UNLISTED

LISTED = ["alexnet", "nin", "googlenet", "vgg16", "resnet50", "inception_v3", "bert_base", "gpt2", "vit_b16", "mlp"]
LISTED += ["lstm_seq2seq"]
QUICK = ["mlp", "googlenet"]
DEVICES = 2
ONE = "one device"
HEAD = f"{'network':24}{'two devices':>26}{'one device':>26}{'latency':>26}{'pace':>7}{'add up':>8}{'foreign':>9}"


@dataclass(frozen=True)
class Timed:
    """One time, and how many times as long the machine took as when it was calibrated."""

    figure: Figure
    pace: float
    expected: Range  # 80 % of runs

    @property
    def after(self) -> float:
        """The error after the machine's pace."""
        return self.figure.error_after(self.pace)

    def __str__(self) -> str:
        seen = " " if self.figure.measured_s in self.expected else "!"  # outside its range
        return f"{self.figure.measured_s * 1e3:9.2f} ms{seen}{self.figure.error:+6.1%} {self.after:+6.1%}"


@dataclass(frozen=True)
class Row:
    """One network.

    Attributes:
        name: of the network.
        two: a micro-batch of the stream on two devices.
        one: the same on one device.
        latency: a micro-batch alone, on two devices.
        gap: by which share of the period a device's busy and idle seconds miss it, at worst.
        foreign_cores: what others used meanwhile.
    """

    name: str
    two: Timed
    one: Timed
    latency: Timed
    gap: float
    foreign_cores: float

    def __str__(self) -> str:
        times = f"{self.two}{self.one!s:>26}{self.latency!s:>26}"
        return f"{self.name:24}{times}{self.two.pace:7.2f}{self.gap:8.1%}{self.foreign_cores:9.2f}"


def one(name: str, rounds: int, console: Console) -> Row:
    """Calibrate, plan and run a network, given as MODULE:FACTORY or by its name in `examples.networks`."""
    program = program_of(name)
    cluster = planner.calibrate(program, reporter=console).first(DEVICES)
    plan = planner.plan(program, cluster=cluster)
    assert plan.one_device is not None
    plans = {"plan": plan, ONE: plan.one_device}
    with ExitStack() as stack:
        runners = {key: stack.enter_context(planner.start(each, program)) for key, each in plans.items()}
        load = Load(plan=plan)
        contenders = [PlannedContender(runner, key, load.meter) for key, runner in runners.items()]
        found = measure(contenders, rounds, console.on_step, load)
    add_moment(cluster.devices[0], found.paces)
    return row(name, plan, plan.one_device, found)


def row(name: str, plan: Plan, alone: Plan, found: BenchmarkResult) -> Row:
    """The figures of a measurement of a plan and of the plan for one device."""
    no_change = PaceChange(1.0, 1.0, {})
    measured, isolated = found["plan"], found[ONE]
    pace = pace_change(plan, measured.paces) or no_change
    pace_alone = pace_change(alone, isolated.paces) or no_change
    assert measured.stream is not None
    used = plan.usage_of(measured.stream)
    devices = used.devices.values() if used else ()
    gaps = [abs((device.busy_s + device.idle_s) / measured.period_s - 1) for device in devices]
    return Row(
        name,
        Timed(Figure("two devices", plan.period_s, measured.period_s), pace.contended, plan.period_range),
        Timed(Figure(ONE, alone.period_s, isolated.period_s), pace_alone.contended, alone.period_range),
        Timed(Figure("latency", plan.latency_s, measured.latency_s), pace.network, plan.latency_range),
        max(gaps, default=1.0),
        found.foreign_cores,
    )


def bars_of(rows: Sequence[Row]) -> Iterator[Bar]:
    """What the networks should reach, and the raw errors beside it."""
    for name, mean, worst in (("two", 0.04, 0.10), ("one", 0.03, 0.08), ("latency", 0.06, 0.15)):
        times = [getattr(each, name) for each in rows]
        words = times[0].figure.name
        yield from errors_at_most(f"{words}, after pace", [abs(time.after) for time in times], mean, worst)
        print(f"       {words}, raw, mean |error|: {fmean(abs(time.figure.error) for time in times):.4g}")
    timed = [time for each in rows for time in (each.two, each.one, each.latency)]
    held = fmean(time.figure.measured_s in time.expected for time in timed)
    yield at_least(f"share of {len(timed)} times in their ranges for 80 %", held, 0.70)
    yield at_most("the same", held, 0.92)
    yield at_most("busy + idle against the period, worst", max(each.gap for each in rows), 0.01)


def main() -> int:
    """Measure the networks and judge the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help="a name, or MODULE:FACTORY; eleven by default")
    parser.add_argument("--unlisted", action="store_true", help="the networks that nobody has looked at")
    parser.add_argument("--again", type=int, default=1, metavar="N", help="go through the networks N times")
    parser.add_argument("--every", type=float, default=0.0, metavar="S", help="and begin so many seconds apart")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contender")
    declare(parser)
    options = parser.parse_args()
    console, rows = Console(), []
    default = UNLISTED if options.unlisted else QUICK if options.quick else LISTED
    with tempfile.TemporaryDirectory() as cache:
        os.environ["PLANNER_CACHE"] = cache
        print(HEAD)
        start_s = time.monotonic()
        for turn in range(options.again):
            time.sleep(max(0.0, start_s + turn * options.every - time.monotonic()))
            for name in options.networks or default:
                try:
                    rows.append(one(name, options.rounds, console))
                except InputError as error:  # it does not fit, or cannot be imported
                    print(f"{name}: {error}", flush=True)
                    continue
                print(rows[-1], flush=True)
    if not rows:
        return 2
    return report(list(bars_of(rows)), options.json)


if __name__ == "__main__":
    sys.exit(main())
