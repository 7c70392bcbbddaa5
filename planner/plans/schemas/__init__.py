"""The formats of files as JSON Schema (draft 2020-12), for other programs; tests check them against the code."""

import json
from importlib.resources import files
from typing import Any

from costmodels.cluster.catalogue import catalogue
from costmodels.cluster.sheet import FAMILIES
from graphs.common.errors import InputError

NAMES = ("plan", "cluster", "graph", "run")
CONTAINED = {"plan": ("graph",)}
"""Schemas that refer to others, which then stand within them."""


def schema(name: str) -> dict[str, Any]:
    """Return the schema of a format, complete in itself.

    Args:
        name: one of `NAMES`: plan.json, cluster.toml (as what TOML holds), graph.json or run.json.

    Raises:
        InputError: for another name.
    """
    if name not in NAMES:
        raise InputError(f"there is no schema of '{name}'; there are {', '.join(NAMES)}")
    document: dict[str, Any] = json.loads(files(__name__).joinpath(f"{name}.schema.json").read_text(encoding="utf-8"))
    if name == "cluster":
        document["$defs"]["device"]["properties"]["like"]["enum"] = list(catalogue("device"))
        document["$defs"]["device"]["properties"]["family"]["enum"] = list(FAMILIES)
        document["$defs"]["link_like"]["enum"] = list(catalogue("link"))
    for other in CONTAINED.get(name, ()):
        document["$defs"][other] = schema(other)
    return document
