"""find_conflict: an irreducible set of demands that cannot be met at once, and the missing device or memory.

The demands are the user's constraints and the memory of every device. The search halves them and asks which demands of
one half are needed in addition to the other (QuickXplain: Junker, AAAI 2004). Two causes are found without a search:
operators without a device, and too little memory in total. Only other conflicts need a search for placements.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from costmodels.operators.device_kinds import only_on
from costmodels.table import CostTable
from costmodels.units import format_bytes
from graphs.common.arrays import Bools, Floats
from graphs.ir import Graph, Op
from graphs.rewrites.imported_names import taken_apart
from planner.problem.blocks import Blocks, merge_blocks
from planner.problem.constraints import (
    CollisionError,
    Constraint,
    Requirement,
    devices_left,
    effects,
    shared_devices,
    under,
)
from planner.problem.deadline import Deadline
from planner.problem.infeasible import infeasible_because
from planner.problem.problem import Goal, Problem
from planner.problem.result import Status
from planner.solvers.solve import solve
from simulator.training import TrainingStep

PROBE_S = 2.0  # to find out whether some of the demands leave a placement
NAMED = 6  # demands that a message names; it counts the others

Demands: TypeAlias = tuple[int, ...]
"""Numbers of constraints, then, from their number on, of devices whose memory is limited."""


@dataclass(frozen=True)
class Conflict:
    """Demands that cannot all be met.

    Any smaller set of them can be met, as far as searches of `PROBE_S` show, unless there was no time to find out.
    """

    constraints: tuple[Constraint, ...]
    memories: tuple[str, ...]  # names of the devices whose memory is too little for them
    because: str  # what is missing, in words and bytes
    smallest: bool = True  # whether there was time to leave out each of them
    fused: Op | None = None  # the operator that has no device only because several were fused into it

    def __str__(self) -> str:
        memory = f"the memory of {', '.join(self.memories)}"
        if not self.constraints:
            return f"{memory} is not enough: {self.because}; add memory or devices"
        demands = [f"'{constraint}'" for constraint in self.constraints[:NAMED]]
        if more := len(self.constraints) - NAMED:
            demands += [f"{more:,} more"] if more > 0 else []
        demands += [memory] if self.memories else []
        perhaps = "" if self.smallest else " (perhaps some of them can: there was no time to try)"
        because, way_out = self.because, ""
        if self.fused:
            members = [member.name for member in self.fused.members]
            because = f"{because}, as {', '.join(members[:-1])} and {members[-1]} are fused into '{self.fused.name}'"
            way_out = ", or keep them apart with --rewrites none (rewrites='none' in Python)"
        if len(demands) == 1:
            return f"{demands[0]} cannot be met: {because}; leave it out{way_out}"
        return f"{' and '.join(demands)} cannot be met at once{perhaps}: {because}; leave out one of them{way_out}"


@dataclass(frozen=True)
class Request:
    """A problem of placement without its constraints.

    Attributes:
        table: the costs.
        graph: the network.
        goal: the objective to minimise.
        kinds: [n_devices], kinds of devices, by which constraints may name them; may be empty.
        step: of training.
    """

    table: CostTable
    graph: Graph
    goal: Goal
    kinds: Sequence[str] = ()
    step: TrainingStep | None = None


def find_conflict(asked: Request, constraints: Sequence[Constraint], time_limit_s: float = 10.0) -> Conflict | None:
    """Return an irreducible set of demands without a placement; None unless the demands are proved to be the reason.

    The demands are the constraints and the memory of each device. After the time limit, the answer is the
    set that is known by then.
    """
    search = _ConflictSearch(asked, constraints, Deadline(time_limit_s))
    rules = tuple(range(len(constraints)))
    memories = range(len(rules), len(rules) + asked.table.n_devices)
    every = (*memories, *rules)  # the first are taken for given, so that few constraints are named
    if search.barred(()):
        return None
    if search.barred(rules):
        needed = _needed(search.barred, (), rules, False)
    elif search.barred(every):
        needed = _needed(search.barred, (), every, False)
    elif search.impossible(every):
        needed = every
    else:
        return None
    needed = tuple(sorted(_needed(search.impossible, (), tuple(d for d in every if d in needed), False)))
    kept = tuple(constraints[number] for number in needed if number < len(constraints))
    full = tuple(number - len(constraints) for number in needed if number >= len(constraints))
    names = tuple(asked.table.devices[device] for device in full)
    return Conflict(kept, names, search.because(needed), not search.late, search.fused(needed))


def _needed(impossible: Callable[[Demands], bool], given: Demands, asked: Demands, new: bool) -> Demands:
    """Return the demands that, together with the ``given`` ones, are needed to leave no placement.

    Args:
        impossible: whether some demands cannot be met; all that are asked and given cannot.
        given: that are kept.
        asked: of which the needed ones are looked for.
        new: whether some were given since it was last asked whether these are impossible.
    """
    if new and impossible(given):
        return ()
    if len(asked) == 1:
        return asked if new or not impossible(given) else ()
    first, second = asked[: len(asked) // 2], asked[len(asked) // 2 :]
    of_second = _needed(impossible, given + first, second, True)
    of_first = _needed(impossible, given + of_second, first, bool(of_second))
    return of_first + of_second


class _ConflictSearch:
    """Finds out which demands can be met at once; what constraints demand is worked out once."""

    def __init__(self, asked: Request, constraints: Sequence[Constraint], deadline: Deadline) -> None:
        self._asked, self._constraints, self._deadline = asked, constraints, deadline
        self._effects: tuple[Requirement, ...] = effects(asked.table, asked.graph, constraints, asked.kinds)
        self._known: dict[frozenset[int], bool] = {}
        self.late = False  # whether a search was left out because there was no time

    def barred(self, demands: Demands) -> bool:
        """Return whether, without a search, an operator has no device left or the total memory is too small."""
        try:
            problem = self._problem(demands)
        except CollisionError:
            return True
        return bool(infeasible_because(problem.table, 0.0))

    def impossible(self, demands: Demands) -> bool:
        """Return whether a search proves that these cannot be met at once; False if there is no time for it."""
        key = frozenset(demands)
        if key not in self._known:
            self._known[key] = self.barred(demands) or self._searched(demands)
        return self._known[key]

    def _searched(self, demands: Demands) -> bool:
        if self._deadline.over:
            self.late = True
            return False
        limit_s = min(PROBE_S, max(self._deadline.left_s, PROBE_S / 100))
        return solve(self._problem(demands), time_limit_s=limit_s, gap=0.99).status is Status.INFEASIBLE

    def because(self, demands: Demands) -> str:
        """Return the reason why these demands leave no placement."""
        try:
            blocks = merge_blocks(self._problem(demands).table)
        except CollisionError as collision:
            op = self._asked.graph.ops[self._asked.table.ops.index(collision.op)]
            return f"{collision}{f', which PyTorch has for {kind} alone' if (kind := only_on(op)) else ''}"
        if len(homeless := np.flatnonzero(~np.isfinite(blocks.forward_s).any(axis=1))):
            first, *others = (self._asked.table.ops[op] for op in blocks.members[homeless[0]])
            more = f"'{others[0]}'" if len(others) == 1 else f"{len(others):,} more"
            return f"'{first}' and {more} must share a device, and none is left for all of them"
        missing, devices = least_missing_bytes(blocks), self._asked.table.devices
        over = [
            f"'{device}' is over by {format_bytes(n_bytes)}"
            for device, n_bytes in zip(devices, missing.tolist(), strict=True)
            if n_bytes > 1
        ]
        if over:
            return f"{' and '.join(over)} at least, however the rest is placed"
        if np.isfinite(blocks.room_bytes).any():
            return "whole operators cannot be packed into the memory that is left"
        return "what must share a device, be linked or be contiguous has no place"

    def fused(self, demands: Demands) -> Op | None:
        """The fused operator for which these demands leave no device, where they leave one for each of its members."""
        table, (graph, holder) = self._asked.table, taken_apart(self._asked.graph)
        if len(holder) == table.n_ops:
            return None
        rules = [self._constraints[number] for number in demands if number < len(self._constraints)]
        able, ties = (
            np.isfinite(table.forward_s),
            [np.flatnonzero(np.isin(holder, group)).tolist() for group in table.together],
        )
        whole = self._left(able, self._asked.graph, rules, table.together)
        apart = self._left(able[holder], graph, rules, ties)
        if whole.any(axis=1).all() or not apart.any(axis=1).all():
            return None
        unlike = (op for op, left in zip(holder, apart, strict=True) if (left != apart[holder.index(op)]).any())
        return next((self._asked.graph.ops[op] for op in unlike if not whole[op].any()), None)

    def _left(self, able: Bools, graph: Graph, rules: Sequence[Constraint], ties: Sequence[Sequence[int]]) -> Bools:
        """[n_ops, n_devices], where operators of this graph may be under these rules."""
        demands = effects(self._asked.table, graph, rules, self._asked.kinds)
        groups = [group for demand in demands for group in demand.groups]
        return shared_devices(devices_left(able, demands), [*ties, *groups])

    def _problem(self, demands: Demands) -> Problem:
        """Return the problem under these demands.

        Raises:
            CollisionError: if an operator has no device left.
        """
        table, first = self._asked.table, len(self._effects)
        limited = [number - first for number in demands if number >= first]
        capacity = np.full(table.n_devices, np.inf)
        capacity[limited] = table.capacity_bytes[limited]
        rules = [self._effects[number] for number in demands if number < first]
        problem = under(replace(table, capacity_bytes=capacity), self._asked.goal, rules)
        return replace(problem, step=self._asked.step or problem.step)


def least_missing_bytes(blocks: Blocks) -> Floats:
    """Return [n_devices], the additional memory of the least sum with which all would fit, were operators divisible.

    ::

        min sum_d e[d]    sum_d x[b, d] = 1,  sum_b n_bytes[b] * x[b, d] <= room[d] + e[d],  x, e >= 0
    """
    from scipy.optimize import linprog  # late: scipy takes a moment to load
    from scipy.sparse import csr_array, hstack

    n_blocks, n_devices = blocks.forward_s.shape
    block, device = np.nonzero(np.isfinite(blocks.forward_s))
    column = np.arange(len(block))
    scale = float(blocks.n_bytes.sum()) or 1.0
    n_bytes = csr_array((blocks.n_bytes[block] / scale, (device, column)), shape=(n_devices, len(block)))
    once = csr_array((np.ones(len(block)), (block, column)), shape=(n_blocks, len(block)))
    room = np.clip(blocks.room_bytes, -scale, scale) / scale
    answer = linprog(
        c=np.concatenate([np.zeros(len(block)), np.ones(n_devices)]),
        A_ub=hstack([n_bytes, csr_array(-np.eye(n_devices))]),
        b_ub=room,
        A_eq=hstack([once, csr_array((n_blocks, n_devices))]),
        b_eq=np.ones(n_blocks),
        method="highs",
    )
    return np.asarray(answer.x[len(block) :] * scale) if answer.status == 0 else np.zeros(n_devices)
