"""What a person or a script sees: tables or JSON on stdout, progress and errors on stderr."""

import json as json_module
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from planner.reporter import Reporter

REDRAW_S = 0.1


class Console(Reporter):
    """Prints. A command gives each table both as rows and as the object that ``--json`` shows."""

    def __init__(self, json: bool = False) -> None:
        self.json = json
        self._live = sys.stderr.isatty() and not json
        self._drawn_s = 0.0
        self._steps: set[str] = set()

    def show(self, document: dict[str, Any], title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print one table, or its document with ``--json``."""
        self._clear()
        if self.json:
            print(json_module.dumps(document, indent=1, ensure_ascii=False))
            return
        from rich.console import Console as RichConsole
        from rich.table import Table

        table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None)
        for number, column in enumerate(columns):
            table.add_column(column, justify="left" if number == 0 else "right", overflow="fold")
        for row in rows:
            table.add_row(*row)
        RichConsole(width=None if sys.stdout.isatty() else 120, markup=False, highlight=False).print(table)

    def say(self, line: str) -> None:
        """One line for people; scripts do not get it."""
        self._clear()
        if not self.json:
            print(line)

    def error(self, line: str) -> None:
        """One line on stderr."""
        self._clear()
        print(f"planner: {line}", file=sys.stderr)

    def on_step(self, name: str, done: int, total: int) -> None:
        """Show progress: a line that renews itself on a terminal, a line for each new step elsewhere."""
        now_s = time.monotonic()
        if self._live and (now_s - self._drawn_s > REDRAW_S or done == total):
            self._drawn_s = now_s
            bar = f"{'█' * (24 * done // total):░<24} {100 * done // total:3d} %" if total else f"{done}"
            print(f"\r\033[K{bar}  {name}", end="", file=sys.stderr, flush=True)
        elif not self._live and name not in self._steps and not self.json:
            print(f"{name} …", file=sys.stderr, flush=True)
        self._steps.add(name)

    def on_incumbent(self, solver: str, objective_s: float, bound_s: float, wall_s: float) -> None:
        """Show the best answer so far."""
        gap = max(0.0, 1 - bound_s / objective_s) if objective_s > 0 else 0.0
        if self._live:
            text = f"{solver}: {objective_s * 1e3:.4g} ms, at most {gap:.2%} from the best, {wall_s:.1f} s"
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if self._live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
