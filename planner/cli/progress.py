"""Progress on stderr: on a terminal one line that is redrawn, with the time left; elsewhere a line for each step."""

import sys
from threading import Lock
from typing import TYPE_CHECKING

from graphs.common.visible import visible
from planner.cli.streams import complain

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


class Progress:
    """Shows what a long command is doing, unless it is not ``shown``. Any thread may report."""

    def __init__(self, shown: bool = True) -> None:
        self._shown = shown
        self._live = shown and sys.stderr.isatty()
        self.printed = shown and not self._live  # line by line
        self._printed: set[str] = set()
        self._bar: Bar | None = None
        self._name = ""
        self._lock = Lock()

    def step(self, name: str, done: int, total: int, limit_s: float = 0.0) -> None:
        """Show how far a piece of work is; a total or a time limit of 0 is unknown."""
        if self._live:
            with self._lock:
                self._draw(name, done, total, limit_s)
        elif self._shown and name not in self._printed:
            self._printed.add(name)
            complain(f"{name} …")

    def note(self, text: str) -> None:
        """Show the latest news of the current piece of work; on a terminal only."""
        with self._lock:
            if self._bar is not None:
                self._bar.update(self._bar.task_ids[0], description=visible(text))

    def clear(self) -> None:
        """Remove the line."""
        with self._lock:
            self._stop()

    def _draw(self, name: str, done: int, total: int, limit_s: float) -> None:
        if self._bar is None or name != self._name:
            from planner.cli.bar import bar

            self._stop()
            self._bar, self._name = bar(visible(name), limit_s), name
        if total:
            self._bar.update(self._bar.task_ids[0], completed=done, total=total)

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar, self._name = None, ""
