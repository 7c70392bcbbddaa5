"""Names the kind of a file of this planner that a user hands over instead of another one."""

from collections.abc import Container

KINDS = {
    "placement": "plan",
    "spans": "recorded run",
    "parallel": "row of planner choose",
    "hardware": "division of layers",
    "machine": "profile",
    "ops": "graph",
}
"""A field of each kind of file that none below it has."""


def kind_of(document: Container[str]) -> str:
    """Return the kind of a document; empty if the document is not one of this project."""
    return next((kind for field, kind in KINDS.items() if field in document), "")
