"""Lines for people: tables, lists and paragraphs, no wider than the terminal."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from shutil import get_terminal_size
from textwrap import wrap

from costmodels.units import format_seconds
from graphs.common.visible import visible

WIDTH = 100  # where there is no terminal
LEAST = 40
STAY = "\N{NO-BREAK SPACE}"
SAME = 1e-6  # relative; a smaller change is none


def width() -> int:
    """Return the columns of the terminal that stdout goes to."""
    return max(LEAST, get_terminal_size().columns) if sys.stdout.isatty() else WIDTH


def aligned(rows: Sequence[Sequence[str]], align: str, indent: int = 2, gap: int = 2) -> Iterator[str]:
    """Yield rows with columns aligned by ``<`` or ``>``; a row that is wider than the terminal loses its end."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [f"{cell:{side}{length}}" for cell, side, length in zip(row, align, widths, strict=True)]
        yield clipped(" " * indent + (" " * gap).join(cells).rstrip())


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield rows below heads, at most as wide as the terminal: heads break between words, then cells."""
    columns = [[visible(cell) for cell in column] for column in zip(heads, *rows, strict=True)]
    natural = [max(map(len, column)) for column in columns]
    least = [max(map(len, [*head.split(), *cells]), default=0) for head, *cells in columns]
    gap = 2 if sum(natural) + 2 * (len(columns) - 1) <= width() else 1
    room = width() - gap * (len(columns) - 1)
    widths = natural if sum(natural) <= room else least
    while sum(widths) > room:
        widths[widths.index(max(widths))] -= 1

    def broken(cell: str, length: int) -> list[str]:
        return [cell] if len(cell) <= length else wrap(cell, length, break_on_hyphens=False)

    lines = [
        line
        for row in zip(*columns, strict=True)
        for line in zip_longest(*map(broken, row, widths), fillvalue="")
        if row != ("",) * len(row)
    ]
    return aligned(lines, "<".ljust(len(columns), ">"), indent=0, gap=gap)


def wrapped(text: str, indent: int = 2) -> list[str]:
    """Return the indented lines of a text, broken at spaces except those of `unbroken` texts."""
    margin = " " * indent
    return [line.replace(STAY, " ") for line in wrap(text, width(), initial_indent=margin, subsequent_indent=margin)]


def unbroken(text: str) -> str:
    """Return a text that `wrapped` keeps on one line."""
    return text.replace(" ", STAY)


def clipped(line: str) -> str:
    """Return the line, with an ellipsis where it is too long."""
    return line if len(line) <= width() else f"{line[: width() - 1]}…"


def short(text: str, width: int) -> str:
    """Return the text, with an ellipsis in its middle if it is longer than this: names differ at their ends."""
    half = (width - 1) // 2
    return text if len(text) <= width else f"{text[: width - 1 - half]}…{text[-half:]}"


def first_items(items: Sequence[object], limit: int) -> str:
    """The first items, and how many more there are."""
    text = ", ".join(map(str, items[:limit]))
    return f"{text} and {len(items) - limit} more" if len(items) > limit else text


def count(number: int, noun: str, plural: str = "s") -> str:
    """ "1 tensor", "2 tensors"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}{plural}"


def change(before_s: float, after_s: float) -> str:
    """Return the difference of two times: "+12.3 us", "−4 ms", "same"."""
    if abs(after_s - before_s) <= SAME * abs(before_s):
        return "same"
    return f"{'+' if after_s > before_s else '−'}{format_seconds(abs(after_s - before_s))}"


def relative(before: float, after: float) -> str:
    """Return the difference as a share of the first number: "+12.3%", "−4.0%"; "same" for less than 0.05 %."""
    if before == after:
        return "same"
    if before == 0:
        return "+∞"
    share = f"{abs(after / before - 1):.1%}"
    return "same" if share == "0.0%" else f"{'+' if after > before else '−'}{share}"
