"""Constraints: what a user asks of a placement beside the goal, by names and patterns.

::

    pin embed* to cpu             these operators run there (on one of several devices, if several are named)
    forbid head on gpu1           these do not
    together encoder.layer.0      these share a device
    whole encoder.layer.*         each of these modules stays on one device
    contiguous                    no tensor comes back to a device that it has left
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import StrEnum
from fnmatch import fnmatchcase

import numpy as np

from costmodels.table import CostTable
from graphs.brief import brief
from graphs.checks import check_fields
from graphs.errors import InputError, nearest
from graphs.ir import Graph, Op
from planner.problem.problem import Goal, Problem

ALL = "*"


class Rule(StrEnum):
    """What a constraint demands of the operators that it names."""

    PIN = "pin"
    FORBID = "forbid"
    TOGETHER = "together"
    WHOLE = "whole"
    CONTIGUOUS = "contiguous"


@dataclass(frozen=True, slots=True)
class Constraint:
    """One demand.

    Attributes:
        rule: what is demanded.
        patterns: of operators. A pattern names an operator, a module with everything in it (``encoder.layer.0``), or
            many of either with ``*``, ``?`` and ``[...]``.
        devices: names or kinds of devices, for PIN and FORBID.

    Raises:
        InputError: if a pattern or device is missing, or a device is named where none belongs.
    """

    rule: Rule
    patterns: tuple[str, ...]
    devices: tuple[str, ...] = ()

    __repr__ = brief

    def __post_init__(self) -> None:
        check_fields(self, "a constraint")
        if not self.patterns or not all(self.patterns):
            raise InputError(f"'{self.rule}' names no operators; give a name, a module or a pattern such as 'head.*'")
        if bool(self.devices) != (self.rule in (Rule.PIN, Rule.FORBID)):
            need = "needs a device" if not self.devices else "takes no device"
            raise InputError(f"'{self.rule} {', '.join(self.patterns)}' {need}; only pin and forbid name devices")

    def __str__(self) -> str:
        what = ", ".join(self.patterns)
        match self.rule:
            case Rule.PIN:
                return f"pin {what} to {' or '.join(self.devices)}"
            case Rule.FORBID:
                return f"forbid {what} on {', '.join(self.devices)}"
            case Rule.CONTIGUOUS if what == ALL:
                return str(self.rule)
            case _:
                return f"{self.rule} {what}"


def pin(pattern: str, *devices: str) -> Constraint:
    """These operators run on this device, or on one of these."""
    return Constraint(Rule.PIN, (pattern,), devices)


def forbid(pattern: str, *devices: str) -> Constraint:
    """These operators do not run on these devices."""
    return Constraint(Rule.FORBID, (pattern,), devices)


def together(*patterns: str) -> Constraint:
    """All of these operators share a device."""
    return Constraint(Rule.TOGETHER, patterns)


def whole(*patterns: str) -> Constraint:
    """Each of these modules stays on one device; different ones may be on different devices."""
    return Constraint(Rule.WHOLE, patterns)


def contiguous(*patterns: str) -> Constraint:
    """Among these operators (all, if none are named) no tensor comes back to a device that it has left."""
    return Constraint(Rule.CONTIGUOUS, patterns or (ALL,))


def matching(graph: Graph, patterns: Iterable[str]) -> tuple[int, ...]:
    """The operators that at least one of the patterns names, ascending.

    Raises:
        InputError: for a pattern that names none.
    """
    found: set[int] = set()
    for pattern in patterns:
        here = {i for i, op in enumerate(graph.ops) if any(fnmatchcase(name, pattern) for name in _names(op))}
        if not here:
            known = sorted({name for op in graph.ops for name in _names(op)})
            close = get_close_matches(pattern, known, n=3) or known[:3]
            raise InputError(f"nothing in '{graph.name}' matches '{pattern}'; there are {', '.join(close)}")
        found |= here
    return tuple(sorted(found))


def constrained(
    table: CostTable, graph: Graph, goal: Goal, constraints: Sequence[Constraint], kinds: Sequence[str] = ()
) -> Problem:
    """The problem of a table with constraints: times become infinite, groups are added, operators contiguous.

    Args:
        table: of the graph.
        graph: for the names.
        goal: what is minimised.
        constraints: in any order.
        kinds: [n_devices], the kinds of the devices, by which a constraint may name them too.

    Raises:
        InputError: for a pattern or a device that names nothing.
        CollisionError: if an operator has no device left.
    """
    allowed = np.isfinite(table.forward_s)
    groups: list[tuple[int, ...]] = []
    lined_up: set[int] = set()
    for constraint in constraints:
        ops = list(matching(graph, constraint.patterns))
        match constraint.rule:
            case Rule.PIN:
                others = [d for d in range(table.n_devices) if d not in _devices(constraint, table.devices, kinds)]
                allowed[np.ix_(ops, others)] = False
            case Rule.FORBID:
                allowed[np.ix_(ops, _devices(constraint, table.devices, kinds))] = False
            case Rule.TOGETHER:
                groups += [tuple(ops)] if len(ops) > 1 else []
            case Rule.WHOLE:
                groups += _modules(graph, constraint)
            case Rule.CONTIGUOUS:
                lined_up.update(ops)
    homeless = np.flatnonzero(~allowed.any(axis=1))
    if len(homeless):
        raise CollisionError(table.ops[homeless[0]])
    forward_s = np.where(allowed, table.forward_s, np.inf)
    return Problem(replace(table, forward_s=forward_s, together=(*table.together, *groups)), goal, frozenset(lined_up))


class CollisionError(Exception):
    """Constraints leave an operator without a device."""

    def __init__(self, op: str) -> None:
        super().__init__(f"no device is left for operator '{op}'")
        self.op = op


def _names(op: Op) -> list[str]:
    """An operator's own name, and every module that it is in."""
    parts = op.module.split(".") if op.module else []
    return [op.name, *(".".join(parts[: i + 1]) for i in range(len(parts)))]


def _modules(graph: Graph, constraint: Constraint) -> list[tuple[int, ...]]:
    """The operators of each module that a constraint names, if there are several.

    Raises:
        InputError: if it names operators alone.
    """
    found: dict[str, list[int]] = {}
    for i, op in enumerate(graph.ops):
        for module in _names(op)[1:]:
            if any(fnmatchcase(module, pattern) for pattern in constraint.patterns):
                found.setdefault(module, []).append(i)
    if not found:
        raise InputError(f"'{constraint}' names operators and no module; an operator is always whole, leave it out")
    return [tuple(ops) for ops in found.values() if len(ops) > 1]


def _devices(constraint: Constraint, names: Sequence[str], kinds: Sequence[str]) -> list[int]:
    """The devices that a constraint names.

    Raises:
        InputError: for a name that is neither a device nor a kind.
    """
    found: set[int] = set()
    for wanted in constraint.devices:
        here = {i for i, name in enumerate(names) if wanted == name or fnmatchcase(name, wanted)}
        here |= {i for i, kind in enumerate(kinds) if wanted == kind}
        if not here:
            close = nearest(wanted, names)
            raise InputError(f"'{constraint}' names the device '{wanted}'; there are {', '.join(names)}{close}")
        found |= here
    return sorted(found)
