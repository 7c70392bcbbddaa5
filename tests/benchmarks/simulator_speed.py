"""How fast a long pipeline is simulated, and in how much memory.

    python -m tests.benchmarks.simulator_speed [--quick] [--json FILE]

1F1B with 64 stages and 1024 micro-batches: 131,072 actions and 129,024 messages. Seconds are those of the processor,
which other processes do not lengthen; the median of the rounds. A round makes the schedule, simulates it, and then asks
for the peaks and the timeline. The general engine gets the same tasks once, for comparison (not with --quick).
"""

import argparse
import resource
import sys
from collections.abc import Callable
from statistics import median
from time import process_time
from typing import TypeVar

from simulator.engine import times
from simulator.lower_schedule import StageCost, lower_schedule
from simulator.pipeline import simulate_schedule
from simulator.schedules import SCHEDULES
from tests.benchmarks.bars import at_most, declare, report

STAGES, MICRO_BATCHES = 64, 1024
COSTS = [StageCost(1.0, 1.0, 1.0, 0.25, 0.25, saved_bytes=2, kept_bytes=1)] * STAGES
T = TypeVar("T")


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What it returns, and the seconds of the processor that it takes."""
    before_s = process_time()
    result = work()
    return result, process_time() - before_s


def one_round() -> tuple[float, float, float]:
    """Seconds to make the schedule, to simulate it, and to write down peaks and timeline."""
    schedule, make_s = timed(lambda: SCHEDULES["1f1b"](STAGES, MICRO_BATCHES))
    result, simulate_s = timed(lambda: simulate_schedule(schedule, COSTS))
    _, write_s = timed(lambda: (result.timeline, [saved.peak_bytes for saved in result.saved]))
    return make_s, simulate_s, write_s


def engine_s() -> float:
    """Seconds of the general engine for the same tasks."""
    tasks = lower_schedule(SCHEDULES["1f1b"](STAGES, MICRO_BATCHES), COSTS).tasks(overlap=True)
    return timed(lambda: times(tasks))[1]


def main() -> int:
    """Measure and judge the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    declare(parser)
    options = parser.parse_args()
    rounds = [one_round() for _ in range(3 if options.quick else 11)]
    make_s, simulate_s, write_s = (median(column) for column in zip(*rounds, strict=True))
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
    print(f"schedule {make_s:.3f} s, start times {simulate_s:.3f} s, timeline and peaks {write_s:.3f} s")
    if not options.quick:
        print(f"the general engine takes {engine_s():.3f} s for the start times")
    return report(
        [
            at_most("1f1b, 64 stages, 1024 micro-batches: all three, s", make_s + simulate_s + write_s, 1.0),
            at_most("the most memory that the process had, MB", peak_bytes / 1e6, 500.0),
        ],
        options.json,
    )


if __name__ == "__main__":
    sys.exit(main())
