"""Ways to train a batch with a plan: devices, replicas, micro-batches, schedules and recomputation, searched in turns.

::

    turn    1  2  3  4  5  6  7  8     every other turn begins with the next way, and every other one of the rest goes
    way     a  a  b  b  c  a  d  b     on with the best way of those with one turn, and so on; each turn of a way takes
    turn's  1  2  1  4  1  2  1  8     twice the work of the one before

No turn depends on the time limit, which only cuts off the last one: more time never gives a slower plan.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import inf

from costmodels.cluster.cluster import Cluster
from costmodels.profile_cache import cached_profiles
from costmodels.table import CostTable
from costmodels.workload import RECOMPUTE_MODES, Workload
from graphs.common.errors import InputError
from graphs.rewrites.batch_sizes import SizedGraphs
from planner.parallelism.closed_form.config import Demands
from planner.parallelism.network.training_shapes import of_this_host, searched_shapes
from planner.planning.make_plan import Search, placement_task
from planner.plans.plan import PlacementTask, Plan
from planner.problem.bounds import lower_bound
from planner.problem.deadline import Deadline
from planner.problem.problem import Goal
from planner.problem.result import Interrupted, Status
from planner.solvers.base import judging_s

LEAST_IDLE_FIRST = ("zb-h2", "zbv", "zb-h1", "interleaved", "breadth-first", "gpipe", "1f1b")
"""The schedules in the order in which they begin: where devices wait least comes first, what is known already last."""

JUDGED = 64  # placements that the first turn of a way judges
ROUNDING = 1e-6  # relative; sums of seconds
POSING = 16  # placements that are judged in the time in which a way is posed: its table and its bound


def ways_to_train(
    cluster: Cluster, graph_of: SizedGraphs, batch: int, optimizer: str, deadline: Deadline
) -> Iterator[PlacementTask]:
    """Yield the ways to train a batch with a plan, those with the most devices first.

    Devices of this host train as one replica: its processes and threads run no others.

    Args:
        cluster: a way with n devices uses the first n, for one pipeline or, if they are alike, for replicas.
        graph_of: the network for a number of samples; a number that it refuses is left out, and so is one that would
            have to be imported when no time is left.
        batch: samples of a step.
        optimizer: a name of an optimizer of `Workload`.
        deadline: for imports.
    """
    here, sizes, profiles = of_this_host(cluster), dict[int, bool](), cached_profiles(cluster)
    for shape in searched_shapes(cluster, batch, Demands()):
        if not shape.plain or (here and shape.replicas > 1):
            continue
        if shape.samples not in sizes:
            sizes[shape.samples] = not deadline.over and _imports(graph_of, shape.samples)
        if not sizes[shape.samples]:
            continue
        part = cluster.first(shape.n_devices).divided(shape.replicas)
        work = Workload("training", batch=shape.samples, optimizer=optimizer, micro_batches=shape.micro_batches)
        task = placement_task(graph_of(shape.samples), part, Goal.TRAINING, work, profiles)
        alone = len(part.devices) == 1
        again = RECOMPUTE_MODES[:1] if alone or _has_room(task.table, shape.micro_batches) else RECOMPUTE_MODES
        for recompute, schedule in product(again, LEAST_IDLE_FIRST[-1:] if alone else LEAST_IDLE_FIRST):
            yield replace(task, workload=replace(work, schedule=schedule, recompute=recompute))


def _imports(graph_of: SizedGraphs, samples: int) -> bool:
    """Import a network for a number of samples, and return whether it can be."""
    try:
        graph_of(samples)
    except InputError:
        return False
    return True


def _has_room(table: CostTable, micro_batches: int) -> bool:
    """Return whether each device has room for everything under any schedule, so that nothing is gained by recomputing.

    Stages keep at most all micro-batches and the current one, and receive at most all tensors.
    """
    kept_bytes = float(table.trained.saved_bytes.sum() + table.flow_bytes.sum())
    most_bytes = float(table.op_bytes.sum()) + table.working_bytes + (micro_batches + 1) * kept_bytes
    return bool((table.capacity_bytes >= most_bytes).all())


@dataclass
class _Way:
    """A way to train, with its best plan so far."""

    task: PlacementTask
    plan: Plan | None = None
    turns: int = 0

    @property
    def step_s(self) -> float:
        """Seconds of a step; infinite without a plan."""
        return self.plan.objective_s if self.plan else inf


class WaysInTurns:
    """A search for the fastest of some ways to train.

    Attributes:
        best: the fastest plan so far, at first a given one.
    """

    def __init__(self, first: Plan, ways: Iterable[PlacementTask], search: Search) -> None:
        """Begin nothing yet.

        Args:
            first: a plan for one of the ways, which takes part in no turn.
            ways: the ways; each is asked for when its first turn comes.
            search: how long to search, and how each way is searched.
        """
        self.best = first
        self._search, self._unbegun = search, iter(ways)
        self._begun: list[_Way] = []
        self._left_s = search.time_limit_s
        self._known = first.task

    def run(self, deadline: Deadline) -> Plan:
        """Take turns until time is up or nothing is left to search, and return the fastest plan.

        Args:
            deadline: at which the clock stops the search, on a machine slower than the usual one.

        Raises:
            Interrupted: on Ctrl-C, with the fastest plan so far.
        """
        number = 0
        while self._left_s > 0 and not deadline.over:
            number += 1
            level = (number & -number).bit_length() - 1  # 0, 1, 0, 2, 0, 1, 0, 3, ...
            try:
                way = self._next(level)
                if way is None or self._left_s <= 0:
                    break
                self._take_turn(way)
            except KeyboardInterrupt as stopped:  # before a way has a placement
                raise Interrupted(self.best) from stopped
        return self.best

    def _next(self, level: int) -> _Way | None:
        """Return the best way with as many turns as the level; if there is none, with fewer, or else with more."""
        turns = sorted({way.turns for way in self._begun}, key=lambda turns: (turns > level, abs(turns - level)))
        if (level == 0 or not turns or turns[0] > level) and (way := self._begin()) is not None:
            return way
        if not turns:
            return None
        return min((way for way in self._begun if way.turns == turns[0]), key=lambda way: way.step_s)

    def _begin(self) -> _Way | None:
        """Return the next way that could be the fastest; None if there is none."""
        for task in self._unbegun:
            self._left_s -= POSING * judging_s(task.problem)
            if self._is_known(task):
                continue
            if lower_bound(task.problem) < self.best.objective_s:
                self._begun.append(_Way(task))
                return self._begun[-1]
        return None

    def _is_known(self, task: PlacementTask) -> bool:
        """Return whether a task is that of the first plan."""
        work = replace(task.workload, in_flight=self._known.workload.in_flight)  # of which training takes no notice
        return (task.cluster, work) == (self._known.cluster, self._known.workload)

    def _take_turn(self, way: _Way) -> None:
        """Search one way again, for twice the work; it takes no more part if it is searched to the end."""
        limit_s = JUDGED * judging_s(way.task.problem) * 2**way.turns
        given_s = min(limit_s, self._left_s)
        try:
            result = replace(self._search, time_limit_s=given_s).solve(way.task.problem)
        except Interrupted as stopped:
            self._offer(way, way.task.answered(stopped.best))
            raise
        way.turns += 1
        self._left_s -= result.spent_s
        if result.placement is not None:
            self._offer(way, way.task.answered(result))
        done = result.status in (Status.OPTIMAL, Status.INFEASIBLE) or result.spent_s < given_s * (1 - ROUNDING)
        if done or lower_bound(way.task.problem) >= self.best.objective_s:
            self._begun.remove(way)

    def _offer(self, way: _Way, plan: Plan) -> None:
        """Take a plan if it is the fastest of its way, or of all."""
        if plan.objective_s < way.step_s:
            way.plan = plan
        if plan.objective_s < self.best.objective_s:
            self.best = plan
