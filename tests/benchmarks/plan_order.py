"""The order of plans and the errors of predictions, with costs that are measured in turns with the plans.

    python -m tests.benchmarks.plan_order [NETWORK ...] [--batches 1 4] [--rounds N] [--quick] [--json FILE]

Measuring operators and running plans take turns, and the median of the rounds' ratios is shown, so that a machine that
gets slower on the way is not taken for an error of the costs; `tests.benchmarks.accuracy` measures once, as users do.
Plans should take as long as predicted, in the predicted order. `tests.benchmarks.learned` does the same for operators
that were never measured, `tests.benchmarks.memory` for memory; ``--all`` runs them too.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from json import loads
from pathlib import Path
from statistics import mean

import numpy as np

import planner
from costmodels.calibrate.ops import MeasurementEffort, profile_contended
from costmodels.cluster.cluster import Cluster
from costmodels.profile_cache import cache_folder
from costmodels.tabulate import tabulate
from examples.networks import NETWORKS
from graphs.common.arrays import Floats
from graphs.importers.from_torch import program_from_module
from planner.cli.console import Console
from planner.plans.plan import Plan
from planner.runtime.benchmark.load import Load
from planner.runtime.benchmark.measure import PlannedContender
from simulator.placement import Placement
from tests.benchmarks.bars import Bar, at_least, at_most, declare, report

ELEVEN = ["alexnet", "nin", "googlenet", "vgg16", "resnet50", "inception_v3", "bert_base", "gpt2", "vit_b16", "mlp"]
ELEVEN += ["lstm_seq2seq"]
QUICK = ["mlp", "googlenet"]
OTHERS = ("learned", "memory")
DEVICES = 2
ORDERED = 5  # plans whose order is to be told, fewer where a network has none that differ enough
APART = 0.04  # by how much of the time on one device two of them differ at least; a repetition differs by half of it
EFFORT = MeasurementEffort(passes=5, least_s=0.6, most_s=5.0)
TURN_S = 0.6  # of one plan in one round
HEAD = f"{'network':14}{'batch':>6}{'one device':>24}{'two devices':>24}{'other plans':>12}{'foreign':>9}"


@dataclass(frozen=True)
class Row:
    """One network at one batch.

    Attributes:
        name: of the network.
        batch: samples in a micro-batch.
        errors: of every plan, measured against predicted, median over the rounds: the planner's own one first.
        measured_s: seconds for each micro-batch of every plan, median over the rounds.
        predicted_s: the same as predicted, median over the rounds.
        foreign_cores: what others used meanwhile.
    """

    name: str
    batch: int
    errors: list[float]
    measured_s: list[float]
    predicted_s: list[float]
    foreign_cores: float

    @property
    def one_device(self) -> float:
        """Error of the last plan, which is the whole model on one device."""
        return self.errors[-1]

    @property
    def two_devices(self) -> float:
        """Error of the planner's plan."""
        return self.errors[0]

    @property
    def told(self) -> int:
        """How many plans have an order that can be told; the first is the planner's own one."""
        return len(self.errors) - 1

    @property
    def by_prediction(self) -> list[tuple[float, float]]:
        """Predicted and measured seconds of these, in the predicted order."""
        return sorted(zip(self.predicted_s[1:], self.measured_s[1:], strict=True))

    @property
    def ordered(self) -> bool:
        """Whether they are measured in that order."""
        return all(before[1] < after[1] for before, after in pairwise(self.by_prediction))

    def __str__(self) -> str:
        ends = (-1, self.one_device), (0, self.two_devices)
        cells = "".join(f"{self.measured_s[i] * 1e3:14.2f} ms {error:+6.1%}" for i, error in ends)
        order = "-" if self.told < 2 else f"{self.told} in order" if self.ordered else f"{self.told} SWAPPED"
        return f"{self.name:14}{self.batch:6}{cells}{order:>12}{self.foreign_cores:9.2f}" + self._swapped()

    def _swapped(self) -> str:
        """A line with all times, where they are not in the predicted order."""
        times = (f"{predicted * 1e3:.2f} ms took {measured * 1e3:.2f}" for predicted, measured in self.by_prediction)
        return "" if self.ordered or self.told < 2 else f"\n{'':14}{', '.join(times)}"


def plans_of(plan: Plan, count: int) -> Iterator[Plan]:
    """The plan, and so many of two parts, or fewer, predicted as differently as can be; the last is for one device."""
    yield plan
    n_ops = len(plan.table.ops)
    cuts = [Placement((0,) * (last + 1) + (1,) * (n_ops - last - 1)) for last in range(n_ops)]
    busy_s = np.array([cut.busy_s(cut.costs(plan.table, streaming=True)).max() for cut in cuts])
    for last in reversed(apart(np.minimum(1.0, busy_s / busy_s[-1]), count)):
        yield replace(plan, placement=cuts[last])


def apart(shares: Floats, count: int) -> list[int]:
    """Indices of so many shares, the largest first, of which the nearest two differ by as much as can be.

    Fewer, where they would be nearer than `APART`: layers that take the same time have the same plans, mirrored.
    Beginning with the largest share, and taking each that is some distance below, a larger distance finds fewer.
    """
    order = sorted(range(len(shares)), key=lambda i: (-shares[i], -i))

    def taken(distance: float) -> list[int]:
        found = order[:1]
        for i in order:
            if shares[found[-1]] - shares[i] >= distance:
                found.append(i)
        return found

    distances = sorted({APART, *(float(abs(a - b)) for a in shares for b in shares if abs(a - b) > APART)})
    enough = bisect_left(distances, True, key=lambda each: len(taken(each)) < count)
    return taken(distances[max(0, enough - 1)])[:count]


def one(name: str, batch: int, cluster: Cluster, rounds: int, n_plans: int, console: Console) -> Row:
    """Take turns: measure the operators, predict, run every plan."""
    model, inputs = NETWORKS[name](batch=batch)
    program = program_from_module(model, inputs, name=name)
    device, load = cluster.devices[0], Load()
    predictions, times = [], []
    with ExitStack() as stack:
        for number in range(rounds):
            console.on_step(f"{name}, batch {batch}", number, rounds)
            profile = profile_contended(program, cluster.devices, EFFORT)
            if not number:
                profile_contended(program, cluster.devices, EFFORT, cache=cache_folder())
                plans = list(plans_of(planner.plan(program, cluster=cluster), n_plans))
                runners = [PlannedContender(stack.enter_context(planner.start(plan, program))) for plan in plans]
            table = tabulate(program.graph, cluster, plans[0].workload, {device.profile: profile})
            predicted = tuple(replace(plan, table=table).period_s for plan in plans)
            counts = [max(2, round(TURN_S / period_s)) for period_s in predicted]
            measured = [runner.stream(count) for runner, count in zip(runners, counts, strict=True)]
            predictions.append(predicted)
            times.append(measured)
    predicted_s, measured_s = np.array(predictions), np.array(times)
    of_rounds = (measured_s / predicted_s - 1, measured_s, predicted_s)
    errors, seconds, expected_s = (np.median(each, axis=0).tolist() for each in of_rounds)
    return Row(name, batch, errors, seconds, expected_s, load.foreign_cores())


def bars_of(rows: Sequence[Row]) -> list[Bar]:
    """The bars of the issue."""
    one_device = [abs(row.one_device) for row in rows]
    two_devices = [abs(row.two_devices) for row in rows]
    told = [row.ordered for row in rows if row.told > 1]
    bars = [
        at_most("whole model on one device, mean error", mean(one_device), 0.04),
        at_most("whole model on one device, worst error", max(one_device), 0.08),
        at_most("two devices, mean error", mean(two_devices), 0.05),
        at_most("two devices, worst error", max(two_devices), 0.10),
    ]
    if told:
        bars.append(at_least(f"{ORDERED} plans in the predicted order, share of networks", mean(told), 1.0))
    return bars


def others(options: argparse.Namespace) -> Iterator[Bar]:
    """The bars of the other two scripts, each in a process of its own."""
    for name in OTHERS:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "bars.json"
            command = [sys.executable, "-m", f"tests.benchmarks.{name}", "--json", str(file)]
            subprocess.run(command + (["--quick"] if options.quick else []), check=False)
            yield from (Bar(**bar) for bar in loads(file.read_text("utf-8"))["bars"])


def main() -> int:
    """Measure the networks and judge the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", choices=[[], *NETWORKS], metavar="NETWORK", help="default: eleven")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4], metavar="N", help="samples (1 and 4)")
    parser.add_argument("--rounds", type=int, default=7, help="turns of measuring and running")
    parser.add_argument("--all", action="store_true", help="learned costs and memory too")
    declare(parser)
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["PLANNER_CACHE"] = cache
        cluster = planner.calibrate(reporter=console).first(DEVICES)
        rows = []
        print(HEAD)
        for batch in [1] if options.quick else options.batches:
            for name in options.networks or (QUICK if options.quick else ELEVEN):
                n_plans = ORDERED if batch == 1 else 1
                rows.append(one(name, batch, cluster, 2 if options.quick else options.rounds, n_plans, console))
                console.say(str(rows[-1]))
    return report(bars_of(rows) + (list(others(options)) if options.all else []), options.json)


if __name__ == "__main__":
    sys.exit(main())
