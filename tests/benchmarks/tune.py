"""Tuning: is a tuned plan never slower than the one that it began with, and by how much faster is it?

    python -m tests.benchmarks.tune [NETWORK ...] [--rounds N] [--seconds S] [--wrong] [--quick] [--json FILE]

Each network is calibrated on this host, planned for two of its devices and tuned. Then the first plan and the tuned one
are measured in turns, apart from those that tuning chose by; only one is started at a time, as when it is used. A plan
that tuning left as it was counts as 1. The mean gain is stated for the networks whose first plan was off from its
prediction by more than 10 %, raw.

With ``--wrong`` the calibration is spoilt before: the first half of the operators is said to take half as long, the
other one twice, so that the first plan is far from balanced and tuning has something to find.
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import planner
from costmodels.correction import Correction
from costmodels.operators.keys import op_keys
from costmodels.profile_cache import cache_folder
from costmodels.profilefile import read_profile, write_profile
from graphs.program.program import Program
from planner.cli.console import Console
from planner.planning.autotune import run_turn
from planner.planning.tune import SECONDS
from planner.plans.compare import OFF
from planner.runtime.benchmark.load import Load
from planner.runtime.benchmark.measure import speedup
from tests.benchmarks.bars import Bar, at_least, report
from tests.benchmarks.networks import parser_of, program_of

SEVEN = ["googlenet", "inception_v3", "resnet50", "bert_base", "two_tower", "alexnet", "lstm_seq2seq"]
QUICK = ["mlp", "cifar10"]
QUICK_S = 10.0
DEVICES = 2
HEAD = (
    f"{'network':14}{'predicted':>13}{'measured':>13}{'raw':>8}{'turns':>7}{'tuned':>8}{'again':>8}{'foreign':>9}  why"
)


@dataclass(frozen=True)
class Row:
    """One network.

    Attributes:
        tuned: what tuning returned.
        gain: the first plan's time over the tuned one's, measured afterwards.
        foreign_cores: what others used meanwhile.
    """

    name: str
    tuned: planner.Tuned
    gain: float
    foreign_cores: float

    @property
    def error(self) -> float:
        """The raw error of the first plan's prediction."""
        first = self.tuned.turns[0]
        return first.seconds / first.plan.predicted_s - 1

    def __str__(self) -> str:
        first = self.tuned.turns[0]
        return (
            f"{self.name:14}{first.plan.predicted_s * 1e3:10.2f} ms{first.seconds * 1e3:10.2f} ms{self.error:+8.1%}"
            f"{len(self.tuned.turns):7}{self.tuned.speedup:8.3f}{self.gain:8.3f}{self.foreign_cores:9.2f}  "
            f"{self.tuned.why}"
        )


def spoil(program: Program, device: planner.Device) -> None:
    """Halve the times of the first half of the operators in the cache and double the others."""
    keys, profile = op_keys(program.graph), read_profile(cache_folder(), device.profile)
    assert profile is not None
    first = set(keys[: len(keys) // 2])
    factors: dict[tuple[int, str], float] = {(0, key): 0.5 if key in first else 2.0 for key in keys}
    n_devices = max(profile.contended, default=1)
    write_profile(cache_folder(), Correction(factors, factors).profile(profile, 0, n_devices, training=False))


def one(name: str, seconds: float, rounds: int, wrong: bool, console: Console) -> Row:
    """Calibrate, tune, measure again."""
    program = program_of(name)
    cluster = planner.calibrate(program, reporter=console).first(DEVICES)
    if wrong:
        spoil(program, cluster.devices[0])
    search = planner.Search(reporter=console)
    tuned = planner.tune(program, cluster=cluster, seconds=seconds, search=search)
    assert tuned.turns, f"{seconds:g} s are too short for {name}; give more --seconds"
    first, load = tuned.turns[0].plan, Load()
    if first.placement == tuned.plan.placement:
        return Row(name, tuned, 1.0, tuned.foreign_cores)
    turns_s = [[run_turn(plan, program).seconds for plan in (first, tuned.plan)] for _ in range(rounds)]
    return Row(name, tuned, speedup(*zip(*turns_s, strict=True)), load.foreign_cores())


def bars_of(rows: Sequence[Row]) -> list[Bar]:
    """Never slower, and the mean gain where predictions were off."""
    bars = [at_least(f"{row.name}: tuned over first", row.gain, 0.99) for row in rows]
    if off := [row.gain for row in rows if abs(row.error) > OFF]:
        bars.append(at_least(f"mean gain of {len(off)} networks with a raw error above {OFF:.0%}", fmean(off), 1.0))
    return bars


def main() -> int:
    """Measure the networks and judge the bars."""
    parser = parser_of(__doc__, "seven", 7)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of tuning")
    parser.add_argument("--wrong", action="store_true", help="spoil the calibration before")
    options = parser.parse_args()
    seconds, rounds = (QUICK_S, 3) if options.quick else (options.seconds, options.rounds)
    console, rows = Console(), []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["PLANNER_CACHE"] = cache
        print(HEAD)
        for name in options.networks or (QUICK if options.quick else SEVEN):
            rows.append(one(name, seconds, rounds, options.wrong, console))
            console.say(str(rows[-1]))
    return report(bars_of(rows), options.json)


if __name__ == "__main__":
    sys.exit(main())
