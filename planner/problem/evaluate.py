"""evaluate: the cost of a placement. No solver owns it; every answer passes through it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import singledispatch
from graphlib import CycleError, TopologicalSorter
from math import inf
from typing import NamedTuple

import numpy as np

from costmodels.table import CostTable
from graphs.common.arrays import Floats
from graphs.common.brief import Brief
from graphs.common.checks import instance
from planner.problem.problem import Goal, Problem
from simulator.placement import Placement
from simulator.simulate import simulate
from simulator.training import SPLIT_BACKWARD, simulate_training, training_stages

MEMORY_TOLERANCE = 1e-9  # relative; sums of bytes in floating point
ROUNDING = 1e-9  # relative; sums of seconds in another order
OVER = "is over by"  # follows the device in a violation that more memory would mend


@dataclass(frozen=True)
class Evaluation(Brief):
    """The objective of a placement, its loads and memory, and the constraints that it breaks.

    Attributes:
        objective_s: the goal's seconds.
        load_s: [n_devices], seconds that each device is occupied by one micro-batch, in training forward and backward.
        memory_bytes: [n_devices], bytes needed.
        violations: one line for each constraint that is broken; empty if the placement is feasible.
    """

    objective_s: float
    load_s: Floats
    memory_bytes: Floats
    violations: tuple[str, ...]

    @property
    def feasible(self) -> bool:
        """Whether every constraint holds."""
        return not self.violations


def evaluate(problem: Problem, placement: Placement, below_s: float = inf) -> Evaluation:
    """Judge a placement.

    Throughput: the busiest device or channel, ``max(load, channel load)``. A device's load is what it computes for
    one micro-batch, the overhead of what it sends and receives and, unless the cluster overlaps them, the transfers
    themselves; each flow counts once for each pair of devices. Latency: the makespan of one micro-batch in the
    simulator, each device in the placement's order. Cost: everything added up, see `total_s`. Training: the makespan of
    a step in the simulator, with the memory that its schedule needs. Contention between devices counts as in
    `Placement.costs`.

    If a training step takes ``below_s`` or more, the objective is only a lower bound, which is ``below_s`` or more too,
    and memory is not checked.

    Raises:
        InputError: if the placement does not fit the problem's table at all.
    """
    instance(problem, Problem, "the problem", "a Problem")
    instance(placement, Placement, "the placement", "a Placement")
    if problem.goal is Goal.TRAINING:
        table = problem.costs(placement)
        run = simulate_training(table, placement, problem.step, below_s=below_s)
        violations = tuple(_violations(problem, placement, run.memory_bytes))
        return Evaluation(run.makespan_s, run.load_s, run.memory_bytes, violations)
    placement.check(problem.table)
    table = problem.costs(placement)
    found: PlacementCosts = costs_of_placement(table, placement, problem.goal)
    memory_bytes = memory(table, placement)
    violations = (*_violations(problem, placement, memory_bytes), *found.broken)
    return Evaluation(found.objective_s, found.load_s, memory_bytes, violations)


class PlacementCosts(NamedTuple):
    """The costs of a placement."""

    objective_s: float
    load_s: Floats  # [n_devices], see `Evaluation`
    broken: tuple[str, ...] = ()  # rules of this kind of table that the placement breaks


@singledispatch
def costs_of_placement(table: CostTable, placement: Placement, goal: Goal) -> PlacementCosts:
    """Return the costs of a placement; a kind of table with other transfers registers a function of its own."""
    load_s, channel_s = loads(table, placement)
    if goal is Goal.THROUGHPUT:
        return PlacementCosts(float(max(load_s.max(), channel_s.max(initial=0.0))), load_s)
    if goal is Goal.COST:
        return PlacementCosts(total_s(table, placement), load_s)
    return PlacementCosts(simulate(table, placement).makespan_s, load_s)


def step_bounds(problem: Problem, placement: Placement) -> Iterator[float]:
    """Yield two lower bounds of a training step in seconds, the cheaper one first.

    A device does one pass at a time. Before its first forward pass a micro-batch goes forward through the stages before
    it, and after its last backward pass, unless that is split, back through them. Messages are left out. There are no
    bounds for devices that slow each other down, because the evaluation counts contention.
    """
    table, step = problem.table, problem.step
    if table.slowdown.any():
        return
    device = np.asarray(placement.device)
    own = np.arange(len(device)), device
    load_s = np.bincount(device, problem.work_s[own], table.n_devices)
    yield float(load_s.max()) * (1 - ROUNDING)
    forward_s, both_s = table.forward_s[own], problem.both_s[own]
    passes_s = step.micro_batches * np.bincount(device, both_s, table.n_devices)
    ahead_s, back_s, longest_s = 0.0, 0.0, 0.0
    seen: set[int] = set()
    for ops in map(list, training_stages(table, placement, step.schedule)):
        home = placement.device[ops[0]]
        if home not in seen:
            seen.add(home)
            longest_s = max(longest_s, ahead_s + max(float(load_s[home]), float(passes_s[home]) + back_s))
        stage_s = float(forward_s[ops].sum())
        ahead_s += stage_s
        back_s += 0.0 if step.schedule in SPLIT_BACKWARD else float(both_s[ops].sum()) - stage_s
    yield longest_s * (1 - ROUNDING)


def loads(table: CostTable, placement: Placement) -> tuple[Floats, Floats]:
    """Return the seconds that a micro-batch occupies each device, [n_devices], and each channel, [n_channels].

    Channels that carry any number of tensors at once are never occupied. With several copies of the network, the
    seconds are the mean over copies.
    """
    channel_s = np.zeros(int(table.channel.max(initial=-1)) + 1)
    load_s = placement.busy_s(table)
    part = 1 / len(placement.copies)
    for flow, src, dst in placement.all_cuts(table):
        seconds = table.send_s(flow, src, dst) * part
        if table.sharing != "unlimited":
            channel_s[table.channel[src, dst]] += seconds
        load_s[[src, dst]] += table.overhead_s[[src, dst]] * part
        if not table.overlap:
            load_s[[src, dst]] += seconds
    return load_s, channel_s


def total_s(table: CostTable, placement: Placement) -> float:
    """Return the seconds of all computing, handing over and sending of one micro-batch, each counted once."""
    seconds = float(placement.busy_s(table).sum())
    sent_s = 0.0
    for flow, src, dst in placement.all_cuts(table):
        sent_s += table.send_s(flow, src, dst) + float(table.overhead_s[src] + table.overhead_s[dst])
    return seconds + sent_s / len(placement.copies)


def backward_edge(problem: Problem, placement: Placement) -> tuple[int, int] | None:
    """Return two devices between which tensors of contiguous operators go back and forth, in the first copy."""
    inside, device = problem.contiguous, placement.device
    after: dict[int, set[int]] = {}
    for writer, reader in problem.table.edges:
        if writer in inside and reader in inside and device[writer] != device[reader]:
            after.setdefault(device[writer], set()).add(device[reader])
    try:
        tuple(TopologicalSorter(after).static_order())
    except CycleError as error:
        return error.args[1][0], error.args[1][1]
    return None


def memory(table: CostTable, placement: Placement) -> Floats:
    """Return [n_devices], bytes of the operators placed there, and working memory if there are any."""
    memory_bytes = placement.held_bytes(table.placed_bytes, table.n_devices)
    memory_bytes[list(placement.used)] += table.working_bytes
    return memory_bytes


def _violations(problem: Problem, placement: Placement, memory_bytes: Floats) -> list[str]:
    table = problem.table
    found = [
        f"'{table.devices[d]}' {OVER} {memory_bytes[d] - table.capacity_bytes[d]:,.0f} bytes"
        for d in range(table.n_devices)
        if memory_bytes[d] > table.capacity_bytes[d] * (1 + MEMORY_TOLERANCE)
    ]
    for group, copy in ((group, copy) for copy in placement.copies for group in table.together):
        used = sorted({copy.device[op] for op in group})
        if len(used) > 1:
            names = " and ".join(f"'{table.devices[d]}'" for d in used)
            found.append(f"'{table.ops[group[0]]}' and {len(group) - 1} more must share a device but are on {names}")
    if pair := next(filter(None, (backward_edge(problem, copy) for copy in placement.copies)), None):
        names = " and ".join(f"'{table.devices[d]}'" for d in sorted(pair))
        found.append(f"tensors go to and fro between {names}, but the placement must be contiguous")
    return found
