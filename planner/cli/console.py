"""What a person or a script sees: tables or JSON on stdout, progress and errors on stderr."""

import json as json_module
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any, Literal, TextIO

from graphs.visible import visible
from planner.cli.progress import Progress
from planner.cli.streams import complain, printing
from planner.cli.text import width
from planner.problem.reporter import Reporter


class Console(Reporter):
    """Prints. A command gives each table both as rows and as the object that ``--json`` shows.

    Attributes:
        json: whether stdout gets JSON and nothing else.
        quiet: whether there is nothing but errors, and documents where one is asked for.
    """

    def __init__(self, json: bool = False, quiet: bool = False) -> None:
        self.json = json
        self.quiet = quiet
        self._progress = Progress(shown=not (json or quiet))

    def show(self, document: dict[str, Any], title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print one table, or its document with ``--json``."""
        self._progress.clear()
        if self.json:
            self.print(json_module.dumps(_finite(document), indent=1, ensure_ascii=False, allow_nan=False))
        elif not self.quiet:
            with printing() as stream:
                _print_table(stream, title, columns, rows)

    def print(self, text: str) -> None:
        """A document that was asked for, to be read by another program; it is there with ``--quiet`` too."""
        self._progress.clear()
        with printing() as stream:
            print(visible(text, kept="\n\t"), file=stream)  # JSON means the same

    def say(self, line: str) -> None:
        """One line for people; scripts do not get it."""
        self._progress.clear()
        if not (self.json or self.quiet):
            with printing() as stream:
                print(visible(line), file=stream)

    def error(self, line: str) -> None:
        """One line on stderr: what is wrong, or why a status is not 0."""
        self._progress.clear()
        complain(f"planner: {line}")

    def on_step(self, name: str, done: int, total: int) -> None:
        """Show progress: a line that renews itself on a terminal, a line for each new step elsewhere."""
        self._progress.step(name, done, total)

    def searching(self, name: str, limit_s: float) -> None:
        """A search begins that ends in time."""
        self._progress.step(name, 0, 0, limit_s)

    def on_incumbent(self, solver: str, objective_s: float, bound_s: float, wall_s: float) -> None:
        """Show the best answer so far."""
        gap = max(0.0, 1 - bound_s / objective_s) if objective_s > 0 else 0.0
        best = f"{objective_s * 1e3:.4g} ms, at most {gap:.2%} from the best"
        self._progress.note(f"{best} ({solver}, {wall_s:.0f} s)")

    def close(self) -> None:
        """Take away what is shown of progress."""
        self._progress.clear()


def _finite(value: Any) -> Any:
    """JSON has no infinity: null for what takes forever or has no limit."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _print_table(stream: TextIO, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """As wide as the terminal at most: heads break between words, and only then whatever there is anywhere.

    The title stands above as a line of its own, which the table's width does not break.
    """
    from rich.console import Console as RichConsole
    from rich.table import Table

    title, columns = visible(title), [visible(head) for head in columns]
    cells = [tuple(map(visible, row)) for row in rows]
    widest = [max((len(row[n]) for row in cells), default=0) for n in range(len(columns))]
    natural = [max(len(head), cell) for head, cell in zip(columns, widest, strict=True)]
    least = [max([cell, *map(len, head.split())]) for head, cell in zip(columns, widest, strict=True)]
    gap = 2 if sum(natural) + 2 * (len(columns) - 1) <= width() else 1
    fits = sum(least) + gap * (len(columns) - 1) <= width()
    table = Table(show_header=any(columns), header_style="bold", box=None, pad_edge=False)
    table.padding = (0, gap, 0, 0)
    for n, head in enumerate(columns):
        side: Literal["left", "right"] = "right" if n else "left"
        whole = fits and least[n] == natural[n]
        table.add_column(head, justify=side, overflow="fold", min_width=least[n] if fits else None, no_wrap=whole)
    for row in cells:
        table.add_row(*row)
    console = RichConsole(file=stream, width=width(), markup=False, highlight=False)
    console.print(title, style="bold", soft_wrap=True)
    console.print(table)
