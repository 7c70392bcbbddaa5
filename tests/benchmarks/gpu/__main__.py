"""See on a GPU what was written for one: each check in a process of its own, with a time limit and bars of its own.

    python -m tests.benchmarks.gpu [CHECK ...] [--minutes N] [--quick] [--pretend] [--json FILE]

A check that fails, hangs or takes the process down fails its own bars and no others: what was seen is printed, and
written to FILE, as soon as a check has ended. ``--quick`` runs small networks; ``--pretend`` runs them on a processor
that pretends to be a GPU, which shows that nothing is misspelled, and no figure that means anything.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.benchmarks.bars import Bar, report
from tests.benchmarks.gpu import checks, generation, limits
from tests.benchmarks.gpu.check import CHECKS
from tests.benchmarks.gpu.networks import SIZES

assert len({checks.__name__, generation.__name__, limits.__name__}) == 3  # all have entered their checks
MINUTES = 8.0
LEAST_S = 15.0  # of a check: Python, torch and the GPU's context take half of it


def seen_in_time(name: str, limit_s: float, words: Sequence[str], folder: Path) -> list[Bar]:
    """Run one check in a process; its bars, or one that fails and says how the process ended."""
    file, start_s = folder / f"{name}.json", time.monotonic()
    command = [sys.executable, "-m", "tests.benchmarks.gpu", name, "--here", "--json", str(file), *words]
    try:
        ended = f"exit status {subprocess.run(command, timeout=limit_s, check=False).returncode}"
    except subprocess.TimeoutExpired:
        ended = f"no end in {limit_s:.0f} s"
    print(f"{name}: {ended}, {time.monotonic() - start_s:.1f} s", flush=True)
    if not file.exists():
        return [Bar(f"{name}: runs ({ended})", 0, 1, False)]
    return [Bar(**bar) for bar in json.loads(file.read_text(encoding="utf-8"))["bars"]]


def here(name: str, size: str, pretend: bool, file: Path | None) -> int:
    """Run one check in this process; write each bar when it is known, so that a crash keeps those before it."""
    import pytest
    import torch

    if pretend:
        from tests.pretended_gpu import pretend_gpus

        pretend_gpus(pytest.MonkeyPatch())
    if not torch.cuda.is_available():
        print("this host has no GPU that PyTorch sees; --pretend shows that the checks run", file=sys.stderr)
        return 2
    bars: list[Bar] = []
    for bar in CHECKS[name].run(SIZES[size]):
        bars.append(bar)
        report(bars[-1:], None)
        sys.stdout.flush()
        if file is not None:
            file.write_text(json.dumps({"bars": [asdict(each) for each in bars]}), encoding="utf-8")
    return 0 if all(bar.holds for bar in bars) else 1


def main() -> int:
    """Run the checks that were asked for, one after the other, and judge them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", metavar="CHECK", choices=[*CHECKS, []], help=", ".join(CHECKS))
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"time limit of all checks ({MINUTES:g})")
    parser.add_argument("--quick", action="store_true", help="small networks")
    parser.add_argument("--pretend", action="store_true", help="on a processor that pretends to be a GPU")
    parser.add_argument("--here", action="store_true", help="run a single check in this process")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the bars here, after each check")
    options = parser.parse_args()
    size = "tiny" if options.pretend else "small" if options.quick else "whole"
    if options.here:
        return here(options.checks[0], size, options.pretend, options.json)
    words = [f"--{word}" for word in ("quick", "pretend") if getattr(options, word)]
    bars: list[Bar] = []
    end_s = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("PLANNER_CACHE", str(Path(folder) / "cache"))  # what one check measures, others find
        for name in options.checks or CHECKS:
            left_s = end_s - time.monotonic()
            if left_s < LEAST_S:
                bars.append(Bar(f"{name}: runs (no time left)", 0, 1, False))
                continue
            limit_s = left_s if options.pretend else min(left_s, CHECKS[name].limit_s)
            bars += seen_in_time(name, limit_s, words, Path(folder))
            if options.json is not None:
                options.json.write_text(json.dumps({"bars": [asdict(bar) for bar in bars]}, indent=1), encoding="utf-8")
    print()
    return report(bars, options.json)


if __name__ == "__main__":
    sys.exit(main())
