"""The output of commands: lines or JSON on stdout, progress and errors on stderr."""

import json as json_module
from collections.abc import Iterable, Sequence
from itertools import chain
from math import inf, isfinite
from typing import Any

from graphs.common.visible import visible
from planner.cli.progress import Progress
from planner.cli.streams import complain, printing
from planner.cli.text import table
from planner.problem.reporter import Reporter


class Console(Reporter):
    """Prints what a command has found: each result as lines and as the object that ``--json`` shows."""

    def __init__(self, json: bool = False, quiet: bool = False) -> None:
        self.json = json  # stdout gets JSON and nothing else
        self.quiet = quiet  # nothing but errors is printed, and documents that were asked for
        self.tell_s = 0.0  # between two lines about the best answer where none can be overwritten; 0 for no lines
        self._told_s = -inf
        self._by_clock = False
        self._progress = Progress(shown=not (json or quiet))

    def show(self, document: dict[str, Any], title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print one table, or its document with ``--json``."""
        self.tell(document, chain([title], table(columns, rows)))

    def tell(self, document: dict[str, Any], lines: Iterable[str]) -> None:
        """Print lines for people, or their document with ``--json``."""
        if self.json:
            self.print(json_module.dumps(finite(document), indent=1, ensure_ascii=False, allow_nan=False))
        else:
            for line in lines:
                self.say(line)

    def print(self, text: str) -> None:
        """Print a document for another program; with ``--quiet`` too."""
        self._progress.clear()
        with printing() as stream:
            print(visible(text, kept="\n\t"), file=stream)  # an escaped character in JSON means the same

    def say(self, line: str) -> None:
        """Print one line for people; not with ``--json`` or ``--quiet``."""
        self._progress.clear()
        if not (self.json or self.quiet):
            with printing() as stream:
                print(visible(line), file=stream)

    def error(self, line: str) -> None:
        """Print one line on stderr: what is wrong, or why the status is not 0."""
        self._progress.clear()
        complain(f"planner: {line}")

    def note(self, line: str) -> None:
        """Print one line on stderr that is no error; not with ``--quiet``."""
        if not self.quiet:
            self.error(line)

    def on_step(self, name: str, done: int, total: int) -> None:
        """Show progress: one line that is redrawn on a terminal, a line for each new step elsewhere."""
        self._progress.step(name, done, total)

    def on_search(self, name: str, limit_s: float) -> None:
        """Show that a search with a time limit begins."""
        self._progress.step(name, 0, 0, limit_s)

    def on_incumbent(self, solver: str, objective_s: float, bound_s: float, wall_s: float) -> None:
        """Show the best answer so far; without a terminal only every ``tell_s`` seconds."""
        gap = max(0.0, 1 - bound_s / objective_s) if objective_s > 0 else 0.0
        rest = f"at most {gap:.2%} from the best"
        self._progress.note(f"{objective_s * 1e3:.4g} ms, {rest} ({solver}, {wall_s:.0f} s)")
        if self.tell_s and self._progress.printed and wall_s - self._told_s >= self.tell_s:
            self._told_s = wall_s
            complain(f"{wall_s:.1f} s: {objective_s * 1e3:.7g} ms by {solver}, {rest}")

    def on_clock(self, solver: str) -> None:
        """Say once that the answer depends on the clock."""
        if not self._by_clock:
            self._by_clock = True
            self.note(
                f"the clock stopped a search ({solver}) before its work was done, so that a less busy machine may find "
                "another answer; allow more time with --time-limit"
            )

    def close(self) -> None:
        """Remove the line of progress."""
        self._progress.clear()


def finite(value: Any) -> Any:
    """Return the value with null for numbers that JSON lacks, such as infinity."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def attributes(record: object, *names: str) -> dict[str, Any]:
    """Return some attributes of a record by their names, as a part of its document."""
    return {name: getattr(record, name) for name in names}
