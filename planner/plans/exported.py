"""The record of a plan in the format of another tool, and the refusal of a plan that a tool cannot express."""

import json
from dataclasses import dataclass
from typing import Any

from graphs.common.brief import brief
from graphs.common.errors import InputError


@dataclass(frozen=True)
class Export:
    """A plan in the format of another tool."""

    document: Any  # a text, bytes, or what JSON can hold
    notes: tuple[str, ...] = ()  # how the tool differs from the plan, one sentence each

    __repr__ = brief

    @property
    def content(self) -> bytes:
        """The content of the file as bytes."""
        return self.document if isinstance(self.document, bytes) else self.text.encode()

    @property
    def text(self) -> str:
        """The content of the file: the same bytes for the same plan."""
        if isinstance(self.document, str):
            return self.document
        return json.dumps(self.document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def refuse(target: str, reason: str, rule: str, way_out: str) -> InputError:
    """Return the error for a plan that a target cannot express."""
    return InputError(f"{reason}; {target} {rule}: {way_out}")
