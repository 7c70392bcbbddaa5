"""Constraints: what a user demands of a placement besides the goal, by names and patterns.

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
from graphs.brief import Brief
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
class Constraint(Brief):
    """One demand on a placement.

    Attributes:
        rule: what is demanded.
        patterns: each names an operator, a module with everything in it (``encoder.layer.0``), or several of either
            with ``*``, ``?`` and ``[...]``.
        devices: names or kinds of devices, for PIN and FORBID.

    Raises:
        InputError: if a pattern or device is missing, or a device is named where none belongs.
    """

    rule: Rule
    patterns: tuple[str, ...]
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self, "a constraint")
        if not self.patterns or not all(self.patterns):
            raise InputError(f"'{self.rule}' names no operators; give a name, a module or a pattern such as 'head.*'")
        if bool(self.devices) != (self.rule in (Rule.PIN, Rule.FORBID)):
            need = "needs a device" if not self.devices else "takes no device"
            raise InputError(f"'{self.rule} {', '.join(self.patterns)}' {need}; only pin and forbid name devices")

    def __str__(self) -> str:
        operators = ", ".join(self.patterns)
        match self.rule:
            case Rule.PIN:
                return f"pin {operators} to {' or '.join(self.devices)}"
            case Rule.FORBID:
                return f"forbid {operators} on {', '.join(self.devices)}"
            case Rule.CONTIGUOUS if operators == ALL:
                return str(self.rule)
            case _:
                return f"{self.rule} {operators}"


def pin(pattern: str, *devices: str) -> Constraint:
    """Demand that these operators run on this device, or on one of several."""
    return Constraint(Rule.PIN, (pattern,), devices)


def forbid(pattern: str, *devices: str) -> Constraint:
    """Demand that these operators do not run on these devices."""
    return Constraint(Rule.FORBID, (pattern,), devices)


def together(*patterns: str) -> Constraint:
    """Demand that all of these operators share a device."""
    return Constraint(Rule.TOGETHER, patterns)


def whole(*patterns: str) -> Constraint:
    """Demand that each of these modules stays on one device; different modules may be on different devices."""
    return Constraint(Rule.WHOLE, patterns)


def contiguous(*patterns: str) -> Constraint:
    """Demand that no path among these operators (all, if none are named) leaves a device and returns to it."""
    return Constraint(Rule.CONTIGUOUS, patterns or (ALL,))


def matching(graph: Graph, patterns: Iterable[str]) -> tuple[int, ...]:
    """The operators that at least one of the patterns names, ascending.

    Raises:
        InputError: for a pattern that names no operator.
    """
    matches: set[int] = set()
    for pattern in patterns:
        ops = {i for i, op in enumerate(graph.ops) if any(fnmatchcase(name, pattern) for name in _names(op))}
        if not ops:
            names = sorted({name for op in graph.ops for name in _names(op)})
            close = get_close_matches(pattern, names, n=3) or names[:3]
            raise InputError(f"nothing in '{graph.name}' matches '{pattern}'; there are {', '.join(close)}")
        matches |= ops
    return tuple(sorted(matches))


def constrained(
    table: CostTable, graph: Graph, goal: Goal, constraints: Sequence[Constraint], kinds: Sequence[str] = ()
) -> Problem:
    """The problem of a graph's cost table under constraints, which may also name devices by ``kinds``, [n_devices].

    PIN and FORBID make times infinite, TOGETHER and WHOLE add groups, CONTIGUOUS makes operators contiguous.

    Raises:
        InputError: for a pattern or a device that names nothing.
        CollisionError: if an operator has no device left.
    """
    allowed = np.isfinite(table.forward_s)
    groups: list[tuple[int, ...]] = []
    inside: set[int] = set()  # operators that must be contiguous
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
                inside.update(ops)
    homeless = np.flatnonzero(~allowed.any(axis=1))
    if len(homeless):
        raise CollisionError(table.ops[homeless[0]])
    forward_s = np.where(allowed, table.forward_s, np.inf)
    return Problem(replace(table, forward_s=forward_s, together=(*table.together, *groups)), goal, frozenset(inside))


class CollisionError(Exception):
    """Constraints leave an operator without a device."""

    def __init__(self, op: str) -> None:
        super().__init__(f"no device is left for operator '{op}'")
        self.op = op


def _names(op: Op) -> list[str]:
    """The names of an operator, of its members and of every module that it is in."""
    return [op.name, *(member.name for member in op.members[1:]), *_modules_of(op)]


def _modules_of(op: Op) -> list[str]:
    """The names of every module that an operator or a member of it is in."""
    paths = [member.module.split(".") for member in op.members or (op,) if member.module]
    return list(dict.fromkeys(".".join(parts[: i + 1]) for parts in paths for i in range(len(parts))))


def _modules(graph: Graph, constraint: Constraint) -> list[tuple[int, ...]]:
    """The operators of each module of several operators that a constraint names."""
    ops_of: dict[str, list[int]] = {}
    for i, op in enumerate(graph.ops):
        for module in _modules_of(op):
            if any(fnmatchcase(module, pattern) for pattern in constraint.patterns):
                ops_of.setdefault(module, []).append(i)
    if not ops_of:
        raise InputError(f"'{constraint}' names operators and no module; an operator is always whole, leave it out")
    return [tuple(ops) for ops in ops_of.values() if len(ops) > 1]


def _devices(constraint: Constraint, names: Sequence[str], kinds: Sequence[str]) -> list[int]:
    """The devices that a constraint names."""
    chosen: set[int] = set()
    for wanted in constraint.devices:
        matches = {i for i, name in enumerate(names) if wanted == name or fnmatchcase(name, wanted)}
        matches |= {i for i, kind in enumerate(kinds) if wanted == kind}
        if not matches:
            close = nearest(wanted, names)
            raise InputError(f"'{constraint}' names the device '{wanted}'; there are {', '.join(names)}{close}")
        chosen |= matches
    return sorted(chosen)
