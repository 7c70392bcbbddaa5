"""Any rewrite: what may be asked for, how it is applied, and its written form."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias, get_args

from graphs.common.checks import one_of
from graphs.common.errors import InputError
from graphs.ir import Graph
from graphs.rewrites.fuse import KIND, SCAN, Fuse
from graphs.rewrites.split import Split

Rewrite: TypeAlias = Fuse | Split
"""Takes a graph and returns another one that computes the same; see `graphs.program.rewritten` for programs."""

RewriteName: TypeAlias = Literal["fuse", "split"]

REWRITES: tuple[RewriteName, ...] = get_args(RewriteName)


def rewritten(graph: Graph, rewrites: Iterable[Rewrite]) -> Graph:
    """Return the graph after all rewrites, applied one after another.

    Raises:
        InputError: if one does not fit the graph.
    """
    for rewrite in rewrites:
        graph = rewrite(graph)
    return graph


def rewrite_to_dict(rewrite: Rewrite) -> dict[str, Any]:
    """Return a rewrite as a JSON document."""
    if isinstance(rewrite, Fuse):
        groups = [list(group) for group in rewrite.groups]
        return {"rewrite": "fuse", "groups": groups} | ({"kind": SCAN} if rewrite.kind == SCAN else {})
    choices = {name: [sharding, parts] for name, (sharding, parts) in rewrite.choices.items()}
    return {"rewrite": "split", "choices": choices} | ({"shared": True} if rewrite.shared else {})


def rewrite_from_dict(document: Mapping[str, Any]) -> Rewrite:
    """Return the rewrite of a JSON document, as `rewrite_to_dict` makes it.

    Raises:
        InputError: for a rewrite that is not known.
        KeyError, TypeError, ValueError: if the document is malformed.
    """
    match document["rewrite"]:
        case "fuse":
            kind = one_of(document.get("kind", KIND), "the kind of a fusion", (KIND, SCAN))
            return Fuse(tuple(tuple(map(str, group)) for group in document["groups"]), kind)
        case "split":
            choices = {str(name): (str(how), int(parts)) for name, (how, parts) in document["choices"].items()}
            return Split(choices, bool(document.get("shared", False)))
    raise InputError(
        f"the plan has the rewrite {document['rewrite']!r}, this planner knows {', '.join(REWRITES)}; "
        "update the planner or plan again"
    )
