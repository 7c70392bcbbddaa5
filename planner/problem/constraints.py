"""Constraints: a user's demands on a placement besides the goal, by names and patterns.

::

    pin embed* to cpu             these operators run there (on one of several devices, if several are named)
    forbid head on gpu1           these do not
    together encoder.layer.0      these share a device
    whole encoder.layer.*         each of these modules stays on one device
    contiguous                    no tensor comes back to a device that it has left
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import StrEnum
from fnmatch import fnmatchcase

import numpy as np

from costmodels.table import CostTable
from graphs.common.arrays import Bools
from graphs.common.brief import Brief
from graphs.common.checks import check_fields
from graphs.common.errors import InputError, nearest
from graphs.ir import Graph, Op
from graphs.rewrites.imported_names import imported_names
from planner.problem.problem import Goal, Problem

ALL = "*"
WILD = re.compile(r"[*?[]")  # characters that make a name a pattern


class Rule(StrEnum):
    """The kinds of demands on the operators that a constraint names."""

    PIN = "pin"
    FORBID = "forbid"
    TOGETHER = "together"
    WHOLE = "whole"
    CONTIGUOUS = "contiguous"


@dataclass(frozen=True, slots=True)
class Constraint(Brief):
    """One demand on a placement.

    Attributes:
        rule: the kind of demand.
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


@dataclass(frozen=True)
class Requirement:
    """The demands of a constraint, by the numbers of operators.

    Attributes:
        ops: that cannot run on some devices.
        barred: these devices.
        groups: operators that must share a device.
        inside: operators that must be contiguous.
    """

    ops: tuple[int, ...] = ()
    barred: tuple[int, ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()
    inside: frozenset[int] = frozenset()


def effects(
    table: CostTable, graph: Graph, constraints: Iterable[Constraint], kinds: Sequence[str] = ()
) -> tuple[Requirement, ...]:
    """Return the effect of each constraint; constraints may also name devices by ``kinds``, [n_devices].

    Raises:
        InputError: for a pattern or a device that names nothing.
    """
    names = NamedOps(graph)
    return tuple(_effect(table, names, constraint, kinds) for constraint in constraints)


def _effect(table: CostTable, names: "NamedOps", constraint: Constraint, kinds: Sequence[str]) -> Requirement:
    ops = names.matching(constraint.patterns)
    match constraint.rule:
        case Rule.PIN:
            chosen = _devices(constraint, table.devices, kinds)
            return Requirement(ops, tuple(d for d in range(table.n_devices) if d not in chosen))
        case Rule.FORBID:
            return Requirement(ops, tuple(_devices(constraint, table.devices, kinds)))
        case Rule.TOGETHER:
            return Requirement(groups=(ops,) if len(ops) > 1 else ())
        case Rule.WHOLE:
            return Requirement(groups=names.modules_of(constraint))
        case Rule.CONTIGUOUS:
            return Requirement(inside=frozenset(ops))


def constrained(
    table: CostTable, graph: Graph, goal: Goal, constraints: Sequence[Constraint], kinds: Sequence[str] = ()
) -> Problem:
    """Return the problem of a graph's cost table under constraints, see `effects` and `under`.

    Raises:
        InputError: for a pattern or a device that names nothing.
        CollisionError: if an operator has no device left.
    """
    return under(table, goal, effects(table, graph, constraints, kinds))


def under(table: CostTable, goal: Goal, demands: Iterable[Requirement]) -> Problem:
    """Return the problem of a cost table under the effects of constraints.

    PIN and FORBID make times infinite, TOGETHER and WHOLE add groups, CONTIGUOUS makes operators contiguous.

    Raises:
        CollisionError: if an operator has no device left.
    """
    demands = tuple(demands)
    allowed = devices_left(np.isfinite(table.forward_s), demands)
    groups = tuple(group for demand in demands for group in demand.groups)
    inside = frozenset(op for demand in demands for op in demand.inside)
    homeless = np.flatnonzero(~allowed.any(axis=1))
    if len(homeless):
        raise CollisionError(table.ops[homeless[0]])
    forward_s = np.where(allowed, table.forward_s, np.inf)
    return Problem(replace(table, forward_s=forward_s, together=(*table.together, *groups)), goal, inside)


def devices_left(able: Bools, demands: Iterable[Requirement]) -> Bools:
    """[n_ops, n_devices], where operators may be, of where they are ``able`` to run, apart from groups."""
    left = able.copy()
    for demand in demands:
        left[np.ix_(demand.ops, demand.barred)] = False
    return left


def shared_devices(left: Bools, groups: Sequence[Sequence[int]]) -> Bools:
    """[n_ops, n_devices], where operators may be if groups share a device, of where each may be ``left`` to itself."""
    shared = left.copy()
    for _ in range(len(groups)):  # a group may meet another through any number of groups
        for group in groups:
            shared[list(group)] = shared[list(group)].all(axis=0)
        if (shared == left).all():
            break
        left = shared.copy()
    return shared


class CollisionError(Exception):
    """Constraints leave an operator without a device."""

    def __init__(self, op: str) -> None:
        super().__init__(f"no device is left for operator '{op}'")
        self.op = op


class NamedOps:
    """The operators of a graph by the names that patterns may have: as they were imported, and their modules'."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._ops: dict[str, list[int]] = {}
        self._modules: dict[str, list[int]] = {}
        for number, op in enumerate(graph.ops):
            modules = _modules_of(op)
            for name in dict.fromkeys((*imported_names(op), *modules)):
                self._ops.setdefault(name, []).append(number)
            for name in modules:
                self._modules.setdefault(name, []).append(number)

    def matching(self, patterns: Iterable[str]) -> tuple[int, ...]:
        """Return the operators that at least one of the patterns names, ascending.

        Raises:
            InputError: for a pattern that names no operator.
        """
        matches: set[int] = set()
        for pattern in patterns:
            named = _named(self._ops, pattern)
            if not named:
                names = sorted(self._ops)
                close = get_close_matches(pattern, names, n=3) or names[:3]
                raise InputError(f"nothing in '{self._graph.name}' matches '{pattern}'; there are {', '.join(close)}")
            matches.update(op for name in named for op in self._ops[name])
        return tuple(sorted(matches))

    def modules_of(self, constraint: Constraint) -> tuple[tuple[int, ...], ...]:
        """Return the operators of each named module with several operators, ordered by first operator.

        Raises:
            InputError: if it names operators and no module.
        """
        named = {name for pattern in constraint.patterns for name in _named(self._modules, pattern)}
        if not named:
            raise InputError(f"'{constraint}' names operators and no module; an operator is always whole, leave it out")
        return tuple(tuple(ops) for name, ops in self._modules.items() if name in named and len(ops) > 1)


def _named(names: Mapping[str, object], pattern: str) -> list[str]:
    """Return the names that match a pattern; one without wildcards, or a part's ``up[0/2]``, is looked up."""
    if pattern in names or not WILD.search(pattern):
        return [pattern] if pattern in names else []
    return [name for name in names if fnmatchcase(name, pattern)]


def _modules_of(op: Op) -> list[str]:
    """Return the names of every module that an operator or a member of it is in."""
    paths = [member.module.split(".") for member in op.members or (op,) if member.module]
    return list(dict.fromkeys(".".join(parts[: i + 1]) for parts in paths for i in range(len(parts))))


def _devices(constraint: Constraint, names: Sequence[str], kinds: Sequence[str]) -> list[int]:
    """Return the devices that a constraint names."""
    chosen: set[int] = set()
    for wanted in constraint.devices:
        matches = {i for i, name in enumerate(names) if wanted == name or fnmatchcase(name, wanted)}
        matches |= {i for i, kind in enumerate(kinds) if wanted == kind}
        if not matches:
            close = nearest(wanted, names)
            raise InputError(f"'{constraint}' names the device '{wanted}'; there are {', '.join(names)}{close}")
        chosen |= matches
    return sorted(chosen)
