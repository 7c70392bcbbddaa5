"""Lines for people that are no table of the console: aligned, wrapped and no wider than a terminal."""

import sys
from collections.abc import Iterator, Sequence
from shutil import get_terminal_size
from textwrap import wrap

from costmodels.units import format_seconds

WIDTH = 100  # where there is no terminal
LEAST = 40
STAY = "\N{NO-BREAK SPACE}"
SAME = 1e-6  # relative; less is no change


def width() -> int:
    """Columns that there are for what goes to stdout."""
    return max(LEAST, get_terminal_size().columns) if sys.stdout.isatty() else WIDTH


def aligned(rows: Sequence[Sequence[str]], align: str, indent: int = 2) -> Iterator[str]:
    """Columns under each other; the last one is cut off where the terminal ends.

    Args:
        rows: equally many cells each.
        align: ``l`` or ``r`` for each column.
        indent: spaces before each row.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            f"{cell:{'<' if side == 'l' else '>'}{width}}" for cell, side, width in zip(row, align, widths, strict=True)
        ]
        yield clipped(" " * indent + "  ".join(cells).rstrip())


def wrapped(text: str, indent: int = 2) -> list[str]:
    """The lines of a text, each indented, broken at spaces but not within what is `unbroken`."""
    margin = " " * indent
    return [line.replace(STAY, " ") for line in wrap(text, width(), initial_indent=margin, subsequent_indent=margin)]


def unbroken(text: str) -> str:
    """A text that `wrapped` keeps on one line."""
    return text.replace(" ", STAY)


def clipped(line: str) -> str:
    """The line, with an ellipsis where it is too long."""
    return line if len(line) <= width() else f"{line[: width() - 1]}…"


def short(text: str, width: int) -> str:
    """Both ends of a text that is longer than this: names are alike at their beginnings."""
    half = (width - 1) // 2
    return text if len(text) <= width else f"{text[: width - 1 - half]}…{text[-half:]}"


def listed(items: Sequence[object], limit: int) -> str:
    """The first items, and how many more there are."""
    text = ", ".join(map(str, items[:limit]))
    return f"{text} and {len(items) - limit} more" if len(items) > limit else text


def count(number: int, noun: str) -> str:
    """ "1 tensor", "2 tensors"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def change(before_s: float, after_s: float) -> str:
    """What comes on top: "+12.3 us", "−4 ms", "same"."""
    if abs(after_s - before_s) <= SAME * abs(before_s):
        return "same"
    return f"{'+' if after_s > before_s else '−'}{format_seconds(abs(after_s - before_s))}"


def relative(before: float, after: float) -> str:
    """The same as a share of what it was: "+12.3%", "−4.0%"; "same" for less than is seen."""
    if before == after:
        return "same"
    if before == 0:
        return "+∞"
    share = f"{abs(after / before - 1):.1%}"
    return "same" if share == "0.0%" else f"{'+' if after > before else '−'}{share}"
