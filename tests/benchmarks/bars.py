"""What every measuring script has in common: --quick, --json FILE, and the bars that it judges itself by."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean


@dataclass(frozen=True)
class Bar:
    """A figure beside what it should reach.

    Attributes:
        name: what was measured.
        value: what came out.
        target: what it should reach, or stay below.
        holds: whether it is.
    """

    name: str
    value: float
    target: float
    holds: bool


def at_least(name: str, value: float, target: float) -> Bar:
    """A bar that holds from the target upwards."""
    return Bar(name, value, target, value >= target)


def at_most(name: str, value: float, target: float) -> Bar:
    """A bar that holds from the target downwards."""
    return Bar(name, value, target, value <= target)


def errors_at_most(name: str, errors: Sequence[float], mean: float, worst: float) -> list[Bar]:
    """Two bars for errors, of which none is below 0: their mean and the largest."""
    return [
        at_most(f"{name}, mean |error|", fmean(errors), mean),
        at_most(f"{name}, worst |error|", max(errors), worst),
    ]


def declare(parser: argparse.ArgumentParser) -> None:
    """The two options of every script."""
    parser.add_argument("--quick", action="store_true", help="a part of it, in 50 seconds at most")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the bars here")


def report(bars: list[Bar], file: Path | None) -> int:
    """Print the bars, write them where asked; the exit status is 1 if one does not hold."""
    for bar in bars:
        print(f"{'holds' if bar.holds else 'FAILS':6} {bar.name}: {bar.value:.4g} (target {bar.target:.4g})")
    if file is not None:
        file.write_text(json.dumps({"bars": [asdict(bar) for bar in bars]}, indent=1) + "\n", encoding="utf-8")
    return 0 if all(bar.holds for bar in bars) else 1
