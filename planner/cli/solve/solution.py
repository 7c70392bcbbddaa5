"""The answer of ``planner solve`` to a problem: what is written, shown and said, whatever the kind of problem."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from planner.cli.statuses import DONE, INTERRUPTED, NO_PLAN
from planner.problem.result import Interrupted, Status

T = TypeVar("T")


class Solution(NamedTuple):
    """An answer, or why there is none."""

    title: str = ""  # of the lines, before the name of the file
    content: Any = None  # of the file, as JSON holds it
    document: dict[str, Any] | None = None  # what --json shows besides the name of the file; None to write nothing
    lines: Iterable[str] = ()  # for people
    indent: int | None = None  # of the file
    trouble: str = ""  # what is wrong
    status: int = DONE


def no_solution(trouble: str) -> Solution:
    """Nothing is written, since nothing keeps the constraints."""
    return Solution(trouble=trouble, status=NO_PLAN)


def searched(search: Callable[[], T]) -> tuple[T, bool]:
    """Return the result of a search, or the best one until Ctrl-C; and whether it was interrupted."""
    try:
        return search(), False
    except Interrupted as stopped:
        best: T = stopped.best
        return best, True


def until_then(solution: Solution, output: Path) -> Solution:
    """Return the answer of a search that was interrupted."""
    trouble = f"interrupted: '{output}' is the best answer until then"
    return solution._replace(trouble=trouble, status=INTERRUPTED)


def proof(status: Status, bound: str) -> str:
    """Return the bound to append to an answer that is not proved optimal."""
    return "" if status is Status.OPTIMAL else f"; {bound}"
