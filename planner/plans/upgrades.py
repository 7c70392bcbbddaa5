"""What older versions of plan.json lack, added when they are read."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from graphs.common.errors import InputError

VERSION = 11
"""2 has constraints and training, 3 other contended times, 4 pace, 5 ranges, 6 copies, 7 rewrites, 8 lockstep,
9 selective recomputation, 10 what a split network takes whole and the network before rewrites,
11 how slow copies are that go on by themselves."""

Document: TypeAlias = Mapping[str, Any]
Upgrade: TypeAlias = Callable[[Document], Document]


def upgraded(document: Document) -> Document:
    """The document as this version writes it."""
    version: Any = document.get("version")
    if version not in range(1, VERSION + 1):
        raise InputError(
            f"the plan has the version {version!r}, this planner reads 1 to {VERSION}; update the planner or plan again"
        )
    for first, upgrade in UPGRADES.items():
        if version < first:
            document = upgrade(document)
    return document


def _costs_by(change: Upgrade) -> Upgrade:
    """An upgrade that changes the costs of each operator."""
    return lambda document: {**document, "costs": [change(cost) for cost in document["costs"]]}


def _lockstep(cost: Document) -> Document:
    """The costs of an operator with what copies take in lockstep, once as long as anything else at once."""
    return {**cost, "lockstep_slowdown": cost["slowdown"]} if "slowdown" in cost else cost


def _named_recomputation(document: Document) -> Document:
    """What runs again by its name; once it was a yes or no."""
    again = document["workload"].get("recompute") or "none"
    return {**document, "workload": {**document["workload"], "recompute": "full" if again is True else again}}


def _copies(cost: Document) -> Document:
    """The costs of a device with the slowdown of copies, which were taken to be a third of the time in lockstep."""
    if "slowdown" not in cost:
        return cost
    pairs = zip(cost["slowdown"], cost["lockstep_slowdown"], strict=True)
    return {**cost, "copies_slowdown": [(2 * apart + in_step) / 3 for apart, in_step in pairs]}


def _isolated(cost: Document) -> Document:
    """The costs of a device with isolated times, from those with contended ones."""
    if "slowdown" not in cost:
        return cost
    isolated = {
        name: [None if s is None else s / (1 + more) for s, more in zip(cost[name], cost["slowdown"], strict=True)]
        for name in ("forward_s", "backward_s")
        if name in cost
    }
    return {**cost, **isolated}


UPGRADES: Mapping[int, Upgrade] = {
    2: lambda document: {**document, "constraints": [], "robustness": None},
    3: _costs_by(_isolated),
    5: lambda document: {"pace": {}, **document, "pace_spread": {}},
    6: lambda document: {**document, "copies": []},
    7: lambda document: {**document, "rewrites": []},
    8: _costs_by(_lockstep),
    9: _named_recomputation,
    10: lambda document: {**document, "whole_share": 1.0, "network": None},
    11: _costs_by(_copies),
}
"""By the first version that needs none, in order."""
