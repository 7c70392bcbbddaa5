"""The record of an export, and the refusal of a plan that a target cannot express."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from graphs.brief import brief
from graphs.errors import InputError
from planner.plans.plan import Plan


@dataclass(frozen=True)
class Export:
    """A plan in the format of another tool."""

    document: Any  # a text, or what JSON can hold
    notes: tuple[str, ...] = ()  # what the tool does otherwise than the plan says, one sentence each

    __repr__ = brief

    @property
    def text(self) -> str:
        """The content of the file: the same bytes for the same plan."""
        if isinstance(self.document, str):
            return self.document
        return json.dumps(self.document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def refuse(target: str, reason: str, rule: str, way_out: str) -> InputError:
    """The error for a plan that a target cannot express."""
    return InputError(f"{reason}; {target} {rule}: {way_out}")


def kept_whole(module: str) -> str:
    """The way out for a module on several devices: --whole for it and for the modules numbered like it."""
    parts = ["*" if part.isdigit() else part for part in module.split(".")]
    return f"plan with --whole '{'.'.join(parts)}'"


def device_names(plan: Plan, numbers: Collection[int]) -> str:
    """The devices of a plan in words."""
    return listed([plan.cluster.devices[number].name for number in sorted(numbers)])


def listed(names: Sequence[str]) -> str:
    """The names in words: "cpu0 and cpu1", "a, b and c"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
