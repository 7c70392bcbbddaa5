"""Trade-offs of training: step time and memory for schedules, numbers of devices, replicas and micro-batches."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import inf

from costmodels.cluster.cluster import Cluster
from costmodels.table import CostTable
from costmodels.workload import RECOMPUTE_MODES, TRAINING_SCHEDULES, Workload
from graphs.ir import Graph
from planner.parallelism.closed_form.config import Demands, StageLayers
from planner.parallelism.network.shape_tables import ShapeCosts, Tables
from planner.parallelism.network.training_rows import Choice, TradeOffs, choice_of, fastest_first
from planner.parallelism.network.training_shapes import Shape, searched_shapes
from planner.parallelism.stages.own_degrees import OwnDegrees
from planner.problem.bounds import lower_bound
from planner.problem.deadline import Deadline
from planner.problem.problem import Goal, Problem
from planner.problem.reporter import SearchLimits
from planner.problem.result import Interrupted
from planner.solvers.base import Budget, objective_of
from planner.solvers.dp.chains.pipeline import Pipeline
from planner.solvers.solve import DEFAULT_GAP
from simulator.placement import Placement
from simulator.training import TrainingStep

FIRST = ("1f1b", "interleaved", "zbv")
"""The schedules that come first: one for each kind of placement, with one stage on each device, with several stages in
turns, and with stages that go down the devices and up again. The other ones start from what these have found."""

SCHEDULES = (*FIRST, *(name for name in TRAINING_SCHEDULES if name not in FIRST))
RUN_IN_LAYERS = ("1f1b", "zb-h1")
"""Schedules of stages of whole layers, which devices share."""

SAME_DEGREES = 0.8  # of the time, for stages that all have the same degrees
LEAST_S = 1e-3  # for one search, which always evaluates one placement
SEARCH = Pipeline(most_work=64)
ALL_OPEN = Demands()


def trade_offs(
    graph_of: Callable[[int], Graph],
    cluster: Cluster,
    batch: int,
    search: SearchLimits,
    optimizer: str = "sgd",
    demands: Demands = ALL_OPEN,
) -> TradeOffs:
    """Return all choices that fit into memory; those with the most devices are searched first.

    Args:
        graph_of: the network for a number of samples; a number that it refuses is left out, unless it refuses all.
        cluster: a choice with n devices uses the first n, for one pipeline or, if they are alike, for replicas.
        batch: samples of a step.
        optimizer: a name of an optimizer of `Workload`.
        search: its time is for everything, including ``graph_of``. The remaining searches share the remaining time
            equally. A size is left out if the last import took longer than the remaining time; at least one size is
            imported and one placement evaluated. Its reporter receives the progress.
        demands: the only degrees to search; the caller filters schedules, pipelines and recomputation.

    Raises:
        InputError: for a batch below 1, an unknown optimizer, degrees that devices, batch or network do not allow, or
            from ``graph_of``.
        Interrupted: on Ctrl-C, with the choices so far.
    """
    deadline, reporter = Deadline(SAME_DEGREES * search.time_limit_s), search.reporter
    tables = Tables(graph_of, cluster, Workload("training", optimizer=optimizer), demands, reporter)
    shapes = searched_shapes(cluster, batch, demands)
    found: dict[tuple[object, ...], Choice] = {}
    unsearched, bound_s = len(shapes), inf
    try:
        for number, shape in enumerate(shapes):
            if (found or tables.graphs) and deadline.left_s <= tables.import_s(shape):
                continue
            step = f"comparing schedules on {shape.n_devices} device{'s'[: shape.n_devices - 1]}"
            reporter.on_step(step, number, len(shapes))
            costs, plain = tables.of(shape), tables.plain(shape)
            if costs is not None:
                bound_s = min(bound_s, _bound_s(costs.table, shape))
                schedules = SCHEDULES if plain else RUN_IN_LAYERS
                each = _choices(costs, shape, schedules, deadline, len(shapes) - number, not found)
                _keep_best(found, each if plain else (_in_layers(one, tables, shape, demands) for one in each))
            unsearched -= 1
        own = OwnDegrees(tables, cluster, demands, reporter)
        for best, least_s in own.choices(shapes, Deadline((1 - SAME_DEGREES) * search.time_limit_s)):
            bound_s = min(bound_s, least_s)
            _keep_best(found, best)
    except KeyboardInterrupt as stopped:
        raise Interrupted(TradeOffs(fastest_first(found.values()), unsearched, bound_s)) from stopped
    if not found:
        tables.check(demands.tensor or 1)
    return TradeOffs(fastest_first(found.values()), unsearched, bound_s if found else 0.0)


def _keep_best(found: dict[tuple[object, ...], Choice], choices: Iterable[Choice]) -> None:
    """Keep the fastest choice of each shape."""
    for choice in choices:
        if choice.shape not in found or choice.step_s < found[choice.shape].step_s:
            found[choice.shape] = choice


def _in_layers(choice: Choice, tables: Tables, shape: Shape, demands: Demands) -> Choice:
    """Return a choice for devices that share layers or states, with the layers of each stage."""
    network = tables.network(tables.graphs[shape.samples], shape.samples, shape.tensor)
    assert network is not None
    counts = network.counts([choice.placement.operators(device) for device in choice.placement.used])
    layers = tuple(StageLayers.of(count, choice.recompute) for count in counts)
    row = replace(choice, tensor=shape.tensor, zero=shape.zero, layers=layers)
    return replace(row, precision=demands.precision, gradients=demands.gradients)


def _bound_s(table: CostTable, shape: Shape) -> float:
    """Return a lower bound of a step over all schedules and stages: split backward passes have the least bound.

    A single device adds up all gradients after its last backward pass; several devices may overlap this with computing.
    """
    alone_s = table.update.sync_s(range(table.n_ops), 0) if table.update and table.n_devices == 1 else 0.0
    return alone_s + lower_bound(Problem(table, Goal.TRAINING, step=TrainingStep("zb-h1", shape.micro_batches)))


def _choices(
    costs: ShapeCosts,
    shape: Shape,
    schedules: Sequence[str],
    deadline: Deadline,
    shapes_left: int,
    must_find: bool,
) -> Iterator[Choice]:
    """Yield each schedule under each recomputation, with the best placement that was found for it or any before.

    On a single device all schedules are the same and nothing is recomputed. After the time limit, the remaining
    schedules are left out, unless a first choice must be found.
    """
    placements: dict[Placement, None] = {}
    table, alone = costs.table, costs.table.n_devices == 1
    for schedule, recompute in [(SCHEDULES[0], RECOMPUTE_MODES[0])] if alone else product(schedules, RECOMPUTE_MODES):
        if deadline.over and not must_find:
            return
        step = TrainingStep(schedule, shape.micro_batches, recompute)
        problem = Problem(table, Goal.TRAINING, step=step)
        best, best_s = _best_of(placements, problem)
        limit_s = max(LEAST_S, deadline.left_s / (shapes_left * len(RECOMPUTE_MODES) * len(schedules)))
        budget = Budget(limit_s, DEFAULT_GAP, incumbent=best, bound_s=lower_bound(problem))
        placement = SEARCH.search(problem.contended, budget).placement
        if placement is not None and placement not in placements:
            placements[placement] = None
            if objective_of(problem, placement, best_s) < best_s:
                best = placement
        if best is not None:
            choice = choice_of(problem, best, shape, costs)
            if alone or must_find or len(choice.devices) > 1:
                yield choice
                must_find = False


def _best_of(placements: Iterable[Placement], problem: Problem) -> tuple[Placement | None, float]:
    """Return the best of some placements, if one is feasible, and its seconds."""
    best: Placement | None = None
    best_s = inf
    for known in placements:
        if (step_s := objective_of(problem, known, best_s)) < best_s:
            best, best_s = known, step_s
    return best, best_s
