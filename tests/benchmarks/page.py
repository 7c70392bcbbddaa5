"""How long it takes to see something: `planner --help`, and plan.html in a browser from its address to its drawing.

    python -m tests.benchmarks.page --json page.json

Times of the page are the browser's own (``performance.now()``, from the start of the navigation); needs chromium.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from planner.view import render
from tests.benchmarks.bars import Bar, at_most, declare, report
from tests.planner.view.browser import BROWSER, browse
from tests.planner.view.samples import chain_plan

HELP_S, OPEN_S = 0.3, 2.0  # targets
LARGE, HUGE = 2_000, 20_000  # operators


def main() -> int:
    """Measure, print the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    declare(parser)
    options = parser.parse_args()
    rounds = 3 if options.quick else 9
    bars = [at_most("planner --help, processor seconds", median(help_s, rounds), HELP_S)]
    if BROWSER is None:
        print("no chromium on the path: the page is not measured", file=sys.stderr)
    else:
        bars += [opened(LARGE, rounds), opened(HUGE, rounds)]
    return report(bars, options.json)


def median(measure: Callable[[], float], rounds: int) -> float:
    """Of some measurements."""
    return statistics.median(measure() for _ in range(rounds))


def help_s() -> float:
    """Processor time of one `planner --help`, the interpreter's start included."""
    before = os.times()
    subprocess.run([sys.executable, "-m", "planner", "--help"], capture_output=True, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def opened(n_ops: int, rounds: int) -> Bar:
    """From the start of the navigation until the graph is drawn."""
    modules = [f"layers.{i // 40}.{'abcd'[i % 40 // 10]}" for i in range(n_ops)]
    begin_s = time.perf_counter()
    page = render(chain_plan(modules, n_devices=8))
    print(f"a page of {n_ops:,} operators: {len(page):,} characters in {time.perf_counter() - begin_s:.2f} s")

    def open_s() -> float:
        with tempfile.TemporaryDirectory() as folder:
            milliseconds: float = browse(page, Path(folder), "return performance.now()")
        return milliseconds / 1e3

    return at_most(f"plan.html of {n_ops:,} operators, seconds to open", median(open_s, rounds), OPEN_S)


if __name__ == "__main__":
    sys.exit(main())
