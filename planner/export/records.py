"""What an export is, and how a target refuses a plan that it cannot express."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from graphs.brief import brief
from graphs.errors import InputError
from planner.plans.plan import Plan


@dataclass(frozen=True)
class Export:
    """A plan in the words of another tool."""

    document: Any  # a text, or what JSON can hold
    notes: tuple[str, ...] = ()  # what the tool does otherwise than the plan says, one sentence each

    __repr__ = brief

    @property
    def text(self) -> str:
        """The file: the same bytes for the same plan."""
        if isinstance(self.document, str):
            return self.document
        return json.dumps(self.document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


class Target(Protocol):
    """Writes a plan for one tool; the first line of its docstring says what."""

    def __call__(self, plan: Plan) -> Export:
        """The export.

        Raises:
            InputError: if the tool cannot express the plan: what prevents it, and the way out.
        """


def refuse(target: str, what: str, rule: str, way_out: str) -> InputError:
    """The one form of all refusals."""
    return InputError(f"{what}; {target} {rule}: {way_out}")


def kept_whole(module: str) -> str:
    """The way out for a module that is on several devices: it stays on one, and so do all that are numbered like it."""
    parts = ["*" if part.isdigit() else part for part in module.split(".")]
    return f"plan with --whole '{'.'.join(parts)}'"


def listed(names: Sequence[str]) -> str:
    """ "cpu0 and cpu1", "a, b and c"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
