"""Tells which of this planner's files somebody hands over in place of another one."""

from collections.abc import Container

KINDS = {
    "placement": "plan",
    "spans": "recorded run",
    "parallel": "row of planner choose",
    "machine": "profile",
    "ops": "graph",
}
"""A field of each kind of file that none below it has."""


def kind_of(document: Container[str]) -> str:
    """What a document is; empty if it is none of ours."""
    return next((kind for field, kind in KINDS.items() if field in document), "")
