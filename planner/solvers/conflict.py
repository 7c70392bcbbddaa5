"""find_conflict: an irreducible set of demands that cannot be met at once, and what is missing.

The demands are the user's constraints and the memory of every device. The search leaves out one after the other; if
there is still no placement, that demand is not part of the conflict (the deletion filter of Chinneck, Feasibility and
Infeasibility in Optimization, 2008, section 6.1).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodels.arrays import Floats
from costmodels.table import CostTable
from costmodels.units import format_bytes
from graphs.ir import Graph
from planner.problem.blocks import Blocks, merge_blocks
from planner.problem.constraints import CollisionError, Constraint, constrained
from planner.problem.problem import Goal
from planner.problem.result import Status
from planner.solvers.solve import solve
from simulator.training import TrainingStep

PROBE_S = 2.0  # to find out whether some of the demands leave a placement


@dataclass(frozen=True)
class Conflict:
    """Demands that cannot all be met, while any smaller set of them can, as far as searches of `PROBE_S` show."""

    constraints: tuple[Constraint, ...]
    memories: tuple[str, ...]  # names of the devices whose memory is too little for them
    because: str  # what is missing, in words and bytes

    def __str__(self) -> str:
        memory = f"the memory of {', '.join(self.memories)}"
        if not self.constraints:
            return f"{memory} is not enough: {self.because}; add memory or devices"
        demands = [f"'{constraint}'" for constraint in self.constraints] + ([memory] if self.memories else [])
        if len(demands) == 1:
            return f"{demands[0]} cannot be met: {self.because}; leave it out"
        return f"{' and '.join(demands)} cannot be met at once: {self.because}; leave out one of them"


def find_conflict(
    table: CostTable,
    graph: Graph,
    goal: Goal,
    constraints: Sequence[Constraint],
    kinds: Sequence[str] = (),
    step: TrainingStep | None = None,
) -> Conflict | None:
    """An irreducible set of demands without a placement; None unless a search proves that all demands have none.

    The demands are the constraints, which may name devices by ``kinds``, [n_devices], and the memory of each device.
    """

    def possible(asked: Sequence[Constraint | int]) -> bool:
        """Whether a placement meets these demands, or at least no search has ruled it out."""
        rules = [demand for demand in asked if isinstance(demand, Constraint)]
        full = [demand for demand in asked if isinstance(demand, int)]
        try:
            problem = constrained(_limited(table, full), graph, goal, rules, kinds)
        except CollisionError:
            return False
        problem = replace(problem, step=step or problem.step)
        return solve(problem, time_limit_s=PROBE_S, gap=0.99).status is not Status.INFEASIBLE

    demands: list[Constraint | int] = [*constraints, *range(table.n_devices)]
    if possible(demands):
        return None
    for demand in list(demands):
        fewer = [other for other in demands if other is not demand]
        if not possible(fewer):
            demands = fewer
    kept = tuple(demand for demand in demands if isinstance(demand, Constraint))
    full = tuple(demand for demand in demands if isinstance(demand, int))
    return Conflict(kept, tuple(table.devices[d] for d in full), _because(table, graph, goal, kept, full, kinds))


def _limited(table: CostTable, full: Sequence[int]) -> CostTable:
    """The table with a limited memory on these devices alone."""
    capacity = np.full(table.n_devices, np.inf)
    capacity[list(full)] = table.capacity_bytes[list(full)]
    return replace(table, capacity_bytes=capacity)


def _because(
    table: CostTable, graph: Graph, goal: Goal, rules: Sequence[Constraint], full: Sequence[int], kinds: Sequence[str]
) -> str:
    """The reason why these demands leave no placement."""
    try:
        blocks = merge_blocks(constrained(_limited(table, full), graph, goal, rules, kinds).table)
    except CollisionError as collision:
        return str(collision)
    missing = least_missing_bytes(blocks)
    over = [
        f"'{table.devices[d]}' is over by {format_bytes(missing[d])}" for d in range(table.n_devices) if missing[d] > 1
    ]
    if over:
        return f"{' and '.join(over)} at least, however the rest is placed"
    if np.isfinite(blocks.room_bytes).any():
        return "whole operators cannot be packed into the memory that is left"
    return "what must share a device, be linked or be contiguous has no place"


def least_missing_bytes(blocks: Blocks) -> Floats:
    """[n_devices], the least additional memory, in all, with which everything would fit if operators were divisible.

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
