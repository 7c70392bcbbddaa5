"""Pipeline: cuts a line of all operators into stages for a training step under a schedule.

::

    line     0   1   2   3   4   5         the first stage of 1F1B keeps the activations of all micro-batches in
             └ x ┘   └ y ┘   └ z ┘         flight, the last stage those of one: early stages have less room
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise, permutations
from math import inf

import numpy as np

from costmodels.table import CostTable
from graphs.common.arrays import Floats
from planner.problem.blocks import merge_blocks
from planner.problem.devices import alike, interchangeable
from planner.problem.problem import Goal, Problem
from planner.problem.schedule_bounds import held_micro_batches
from planner.solvers.base import Answer, Budget, Incumbent, judging_s
from planner.solvers.dp.chains.chain import Line, chains, line_of
from planner.solvers.single_moves import climbing
from simulator.placement import Placement
from simulator.training import IN_TURNS, TURNS_BACK

MOST_PERMUTED = 4  # devices that are tried in every sequence
MOST_STAGES = 4  # of one device, under a schedule that gives a device several
MOST_COSTS = 16  # cached matrices of interval costs, 5 MB each at most
STEPS = (1, 2, 4, 8, 16)  # places by which a cut moves
FIRST_CLIMB, CLIMBING = 128, 0.25  # the work before single operators move for the first time, and their part of it


@dataclass(frozen=True)
class Pipeline:
    """Dynamic programming over the line for every number of stages, then descents that move cuts and operators.

    ``F[r, j]`` is the longest stage when the first r stages take the line before j::

        F[0, 0] = 0        F[r, j] = min over i < j of max(F[r - 1, i], cost(r, i, j))

    where ``cost`` is forward and backward of the interval, its part of the optimizer, and the transfers across its
    ends. It is infinite if the interval needs more memory than its device has with the micro-batches that the schedule
    holds at stage r. The longest stage dominates a step of many micro-batches; the evaluator decides between the
    answers, each of which is the start of a descent that moves single cuts. Now and then, the best one so far is the
    start of a descent that moves single operators. What is done next does not depend on the time limit, which only
    cuts the search off, so that more time never gives a worse answer.

    Source: Narayanan et al., PipeDream, SOSP 2019; Fan et al., DAPPLE, PPoPP 2021, for the dependence on the stage.

    Attributes:
        most_work: placements to evaluate at most, where each stage of a program counts as one; None for as many as the
            usual machine evaluates in the time.
    """

    most_work: int | None = None
    name: str = "pipeline"
    goals: frozenset[Goal] = frozenset({Goal.TRAINING})

    def refuses(self, problem: Problem) -> str:  # noqa: ARG002  # the form of a solver
        """Refuse nothing."""
        return ""

    def search(self, problem: Problem, budget: Budget) -> Answer:
        """Search for the best cuts; it proves no bound."""
        most = int(budget.time_limit_s / judging_s(problem)) if self.most_work is None else self.most_work
        best, left = Incumbent(problem, budget, self.name), _RemainingWork(budget, most)
        climber, enough_s = _Climber(problem, best, left), budget.bound_s * (1 + budget.gap)
        for line, devices, held in _ways(problem):
            cuts = _cut(line, devices, held)
            if cuts is not None:
                _descend(best, line, cuts, devices, left)
            if not left.take(len(devices)) or best.objective_s <= enough_s:
                break
            climber.climb_in_turn()
        else:
            climber.climb(most)
        return Answer(best.placement, spent=min(1.0, left.spent / max(1, most)))


class _Climber:
    """Moves of single operators from the best placement on, in turns with the search for cuts."""

    def __init__(self, problem: Problem, best: Incumbent, left: "_RemainingWork") -> None:
        self._problem, self._best, self._left = problem, best, left
        self._turn_at = FIRST_CLIMB
        self._top: Placement | None = None  # from which no move helps

    def climb_in_turn(self) -> None:
        """Take a turn whenever the search has done twice the work of the last turn, for a part of that work."""
        if self._left.spent >= self._turn_at:
            self.climb(int(self._turn_at * CLIMBING))
            self._turn_at *= 2

    def climb(self, most: int) -> None:
        """Climb until no move helps, or for some evaluations."""
        start = self._best.placement
        if start is None or start is self._top:
            return
        moves = climbing(self._problem, start, lambda _: True)
        for _ in range(most):
            if not self._left.take():
                return
            if (placement := next(moves, None)) is None:
                self._top = self._best.placement
                return
            if placement is not self._best.placement:
                self._best.offer(placement)


def _ways(problem: Problem) -> Iterator[tuple[Line, tuple[int, ...], tuple[int, ...]]]:
    """Yield lines with sequences of devices, [n_stages], and of the micro-batches that each stage holds, [n_stages]."""
    table, step = problem.table, problem.step
    free = replace(table, training=table.training and replace(table.training, held=0.0))
    lines = [line_of(chain, step) for chain in chains(merge_blocks(free))]
    several: Sequence[int] = range(1, MOST_STAGES + 1) if step.schedule in IN_TURNS else (1,)
    if step.schedule == "interleaved":
        several = several[1:]
    if step.schedule in TURNS_BACK:
        several = (2,)
    for per_device in several:
        for n_used in range(table.n_devices, 0, -1):
            held = held_micro_batches(step.schedule, n_used, step.micro_batches, per_device)
            for row in _sequences(table, n_used) if held is not None else ():
                devices = row + row[::-1] if step.schedule in TURNS_BACK else row * per_device
                for line in lines:
                    yield line, devices, held or ()


def _sequences(table: CostTable, n_used: int) -> list[tuple[int, ...]]:
    """Return sequences of devices; sequences that differ in interchangeable devices alone occur once."""
    if table.n_devices > MOST_PERMUTED:
        total = np.where(np.isfinite(table.forward_s), table.forward_s, 0.0).sum(axis=0)
        fastest = tuple(sorted(range(table.n_devices), key=lambda d: (float(total[d]), d))[:n_used])
        return list(dict.fromkeys([tuple(sorted(fastest)), fastest, fastest[::-1]]))
    number = {device: index for index, devices in enumerate(interchangeable(table)) for device in devices}
    rows: dict[tuple[int, ...], tuple[int, ...]] = {}
    for row in permutations(range(table.n_devices), n_used):
        rows.setdefault(tuple(number[device] for device in row), row)
    return list(rows.values())


def _cut(line: Line, devices: Sequence[int], held: Sequence[int]) -> list[int] | None:
    """Return [n_stages + 1], the best cuts as indices into ``line.at``; None if no cuts are within memory."""
    n = len(line.at)
    if n - 1 < len(devices):
        return None
    best = np.full((len(devices) + 1, n), inf)
    best[0, 0] = 0.0
    came_from = np.zeros((len(devices) + 1, n), dtype=np.int64)
    costs, table = lru_cache(MOST_COSTS)(partial(_interval_costs, line)), line.blocks.table
    same = alike(table)  # every interval takes as long on each of them
    first = {device: devices[0] for devices in same for device in devices}
    links = [-1, *(int(table.link_class[src, dst]) for src, dst in pairwise(devices)), -1]
    for stage, device in enumerate(devices):
        total_s = np.maximum(best[stage][:, None], costs(first[device], links[stage], links[stage + 1]))
        total_s[line.needed_bytes(held[stage]) > line.blocks.room_bytes[device]] = inf
        came_from[stage + 1] = total_s.argmin(axis=0)
        best[stage + 1] = total_s.min(axis=0)
    if best[-1, -1] == inf:
        return None
    cuts = [n - 1]
    for stage in range(len(devices), 0, -1):
        cuts.append(int(came_from[stage, cuts[-1]]))
    return cuts[::-1]


def _interval_costs(line: Line, device: int, enters: int, leaves: int) -> Floats:
    """Return [n_cuts, n_cuts], seconds of the interval between two cuts on a device; infinite if it cannot run.

    ``enters`` is the link class from the stage before, ``leaves`` that to the stage after; -1 without such a stage.
    """
    table, seconds, barred = line.blocks.table, line.seconds[:, device], line.barred[:, device]
    cost = seconds[None, :] - seconds[:, None]
    cost += table.overhead_s[device] * (line.traffic[:, 0][:, None] + line.traffic[:, 0][None, :])
    enters_s, leaves_s = (
        line.traffic[:, 1 + link_class] if link_class >= 0 else np.zeros(len(line.at))
        for link_class in (enters, leaves)
    )
    if table.overlap:  # each direction has half of the traffic
        cost = np.maximum(cost, np.maximum(enters_s[:, None], leaves_s[None, :]) / 2)
    else:
        cost = cost + enters_s[:, None] + leaves_s[None, :]
    cost[barred[None, :] > barred[:, None]] = inf
    cost[np.tril_indices(len(line.at))] = inf  # a stage has at least one block
    return np.asarray(cost)


class _RemainingWork:
    """The work that is left."""

    def __init__(self, budget: Budget, most_work: int) -> None:
        self._budget, self._most, self.spent = budget, most_work, 0

    def take(self, work: int = 1) -> bool:
        """Spend some work; False if none is left, or the clock stops the search."""
        if self._budget.brake_s <= 0 or self.spent >= self._most:
            return False
        self.spent += work
        return True


def _descend(best: Incumbent, line: Line, cuts: list[int], devices: Sequence[int], left: _RemainingWork) -> None:
    """Move one cut at a time while that helps and time and work are left."""
    first = line.placement(cuts, devices)
    value_s, moved = best.value(first), True
    best.offer(first, value_s)
    while moved:
        moved = False
        for number in range(1, len(devices)):
            for step in (*STEPS, *(-step for step in STEPS)):
                trial = [*cuts[:number], cuts[number] + step, *cuts[number + 1 :]]
                if not trial[number - 1] < trial[number] < trial[number + 1]:
                    continue
                if not left.take():
                    return
                placement = line.placement(trial, devices)
                trial_s = best.value(placement, value_s)
                if trial_s < value_s * (1 - 1e-9):
                    cuts, value_s, moved = trial, trial_s, True
                    best.offer(placement, trial_s)
