"""From a graph and a cluster to a plan, and the options of the search."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from costmodels.cluster.cluster import Cluster
from costmodels.measured import Profile
from costmodels.profile_cache import cached_profiles, learned_costs
from costmodels.tabulate import tabulate
from costmodels.workload import Workload
from graphs.common import checks
from graphs.common.errors import InputError
from graphs.ir import Graph
from graphs.rewrites.rewrite import Rewrite, rewritten
from graphs.rewrites.split import Split
from planner.planning.apart import splits_of_experts, with_experts_apart
from planner.planning.candidates import Candidate, best_of
from planner.planning.copies import Copies
from planner.planning.last_moves import SCATTER_MARGIN, settled
from planner.planning.parsimony import simplest
from planner.planning.rewriting import (
    AUTO_REWRITES,
    COPIES,
    SPLIT,
    allows,
    check_rewrites,
    optional,
    rewrites_for,
)
from planner.planning.splitting import SPLITS_S, best_in_step, splits_for, too_large_to_split, with_costs_of_parts
from planner.plans.plan import PlacementTask, Plan, step_of
from planner.problem.constraints import CollisionError, Constraint
from planner.problem.deadline import Deadline
from planner.problem.problem import Goal, Problem
from planner.problem.reporter import SILENT, Reporter
from planner.problem.result import Interrupted, NoPlanError, Result, Status
from planner.solvers.conflict import Request, find_conflict
from planner.solvers.fewer_devices import best_single_device
from planner.solvers.portfolio import AUTO, SOLVERS
from planner.solvers.robust import SOLVED, Draws, harden
from planner.solvers.single_moves import is_scattered
from planner.solvers.solve import CLIMB, solve

CONTIGUOUS = "chain-dp"
ASIDE = 0.1  # share of a search's time that the search for the best contiguous placement takes on top
MOST_SEARCHED = 1_000_000  # operators of a split network times devices; with more, its parts stay side by side
HASTE = 1e-6  # share of the time for a search for any plan after an interrupt
NOMINAL = 0.5  # share of a robust search's time for the costs as they were measured
SCENARIOS = 0.8  # share of the remaining time for placements of other costs; the rest evaluates them


@dataclass(frozen=True)
class Search:
    """How to search for a plan.

    Attributes:
        solver: a name from `planner.solvers.portfolio.SOLVERS`, or "auto".
        time_limit_s: of the search.
        gap: the relative gap that is good enough; costs are hardly known to 5 %.
        seed: of every random choice.
        robust: how many times to draw errors of the costs, if time allows, to find the placement that loses least; 0 to
            trust the costs.
        reporter: receives the progress.
        rewrites: which changes of the network a plan may make, with commas between: with "copies", micro-batches that
            stream may take turns among several copies of it; with "fuse", one kernel computes several operators. "auto"
            for those that help, "none" for none.
        autotuning: given several clusters, run their plans on this host in turns and take the fastest; False to trust
            the predictions, so that nothing runs and the same input gives the same plan.

    Raises:
        InputError: for an unknown solver or rewrite, or a limit, gap, seed or number out of range.
    """

    solver: str = "auto"
    time_limit_s: float = 10.0
    gap: float = 0.05
    seed: int = 0
    robust: int = 0
    reporter: Reporter = SILENT
    rewrites: str = AUTO_REWRITES
    autotuning: bool = True

    def __post_init__(self) -> None:
        checks.check_fields(self, "the search")
        checks.one_of(self.solver, "the solver", (AUTO, *SOLVERS))
        checks.seconds(self.time_limit_s, "the time limit")
        checks.share(self.gap, "the gap")
        checks.integer(self.seed, "the seed")
        check_rewrites(self.rewrites)
        checks.integer(self.robust, "the number of draws of a robust search")

    def part(self, share: float) -> "Search":
        """This search with a share of its time."""
        return replace(self, time_limit_s=self.time_limit_s * share)

    def solve(self, problem: Problem) -> Result:
        """Solve a problem with these options."""
        return solve(problem, self.solver, self.time_limit_s, gap=self.gap, seed=self.seed, reporter=self.reporter)


def make_plan(
    graph: Graph, cluster: Cluster, goal: Goal, workload: Workload, constraints: tuple[Constraint, ...], search: Search
) -> Plan:
    """Find where every operator of a graph runs on one cluster. Nothing runs for it.

    Raises:
        InputError: if there are no operators, the workload is for another goal, the cluster cannot run an operator, or
            a constraint names what does not exist.
        NoPlanError: if no placement keeps the constraints, or none was found in time.
        Interrupted: on Ctrl-C, with the best plan so far.
    """
    check_goal(goal, workload)
    if not graph.ops:
        raise InputError(f"network '{graph.name}' has no operators, so there is nothing to place")
    profiles = cached_profiles(cluster)

    def task(network: Graph, *splits: Rewrite) -> PlacementTask:
        """Return the task of the network, whole or split."""
        others = rewrites_for(search.rewrites, network, cluster.devices, workload.trains)
        asked = placement_task(rewritten(network, others), cluster, goal, workload, profiles, constraints)
        return replace(asked, rewrites=(*splits, *others), network=graph.fingerprint)

    def apart(split: Split) -> Plan:
        """Return the plan of the network with experts apart, whose costs follow from those of the whole one."""
        applied = split.applied(graph)
        divided = task(applied.graph, split)
        return search_plan(with_costs_of_parts(divided, applied.parts, whole.graph, whole.table), search)

    whole = task(graph)
    in_step: Plan | None = None
    try:
        with optional(search.rewrites, SPLIT):
            if splits := splits_for(search.rewrites, graph, whole, min(search.time_limit_s * ASIDE, SPLITS_S)):
                in_step = best_in_step(splits, task, SPLITS_S)
    except KeyboardInterrupt as stopped:
        raise Interrupted(search_plan(whole, search.part(HASTE))) from stopped

    def found() -> Plan:
        return _better(whole, in_step, search) if in_step else search_plan(whole, search)

    return with_experts_apart(found, whole, search.rewrites, partial(splits_of_experts, graph), apart)


def placement_task(
    graph: Graph,
    cluster: Cluster,
    goal: Goal,
    workload: Workload,
    profiles: Mapping[str, Profile],
    constraints: tuple[Constraint, ...] = (),
) -> PlacementTask:
    """Return the task of a network that stays as it is on one cluster, with the costs that profiles know of it."""
    table = tabulate(graph, cluster, workload, profiles, learned_costs)
    task = PlacementTask(graph, cluster, workload, table, goal, constraints, *paces_of(cluster, profiles))
    return replace(task, network=graph.fingerprint)


def check_goal(goal: Goal, workload: Workload) -> None:
    """Check that a goal and a workload go together; raise InputError if they do not."""
    for mode, of in (("training", Goal.TRAINING), ("generation", Goal.GENERATION)):
        if (workload.mode == mode) != (goal is of):
            raise InputError(f"the goal '{goal}' does not go with a workload for {workload.mode}; make both '{mode}'")


def paces_of(
    cluster: Cluster, profiles: Mapping[str, Profile]
) -> tuple[dict[str, Mapping[str, float]], dict[str, Mapping[str, float]]]:
    """Return the usual pace and its spread of the kinds of devices that were measured with them, see `Plan`."""
    profile_of = {device.kind: profiles[device.profile] for device in cluster.devices if device.profile in profiles}
    paced = {kind: profile for kind, profile in profile_of.items() if profile.pace}
    pace = {kind: profile.usual_pace for kind, profile in paced.items()}
    return pace, {kind: profile.pace_spread for kind, profile in paced.items()}


def _better(whole: PlacementTask, in_step: Plan, search: Search) -> Plan:
    """Return the better plan, of the whole network or of the split one, for which ``in_step`` is a plan."""
    half = search.part((1 - ASIDE) / 2)
    alone, parts_alone = (best_single_device(task.problem) for task in (whole, in_step.task))
    if alone and parts_alone and parts_alone[1]:
        in_step = replace(in_step, whole_share=alone[1] / parts_alone[1])
    refused: NoPlanError | None = None
    stopped: Interrupted | None = None
    candidates = [Candidate(in_step)]
    large = in_step.table.n_ops * in_step.table.n_devices > MOST_SEARCHED
    for task in (whole,) if large else (whole, in_step.task):
        try:
            candidates.append(Candidate(search_plan(task, half)))
        except NoPlanError as error:
            refused = error
        except Interrupted as error:
            stopped = error
            candidates.append(Candidate(error.best))
            break
    best = best_of(candidates)
    if best is None:
        assert refused is not None  # a plan that is found is feasible
        raise refused
    if stopped:
        raise Interrupted(best) from stopped
    return best


def search_plan(task: PlacementTask, search: Search) -> Plan:
    """Find a placement for a task.

    Raises:
        NoPlanError, Interrupted: as `make_plan`.
    """
    deadline = Deadline(search.time_limit_s)
    try:
        copies = Copies.of(task, search.gap) if allows(search.rewrites, COPIES) and search.solver == AUTO else None
        if copies and not search.robust and (enough := copies.enough):
            return enough
        result = search.part(NOMINAL if search.robust else 1.0).solve(task.problem)
    except CollisionError as collision:
        nothing = Result(Status.INFEASIBLE, None, inf, inf, 0.0, "constraints", str(collision))
        raise _no_plan(task, nothing, deadline.left_s) from collision
    except Interrupted as stopped:
        raise Interrupted(task.answered(stopped.best)) from stopped
    if result.placement is None:
        raise _no_plan(task, result, deadline.left_s)
    found = task.answered(result)
    try:
        if not search.robust:
            return _finished(best_of(_candidates(found, copies, search)) or found, search)
        quick = search.part((1 - NOMINAL) * SCENARIOS / SOLVED)
        draws = Draws(search.robust, search.seed, deadline, search.reporter)
        placement, robustness = harden(task.problem, result, draws, quick.solve)
        return replace(found.placed(placement), status=str(Status.FEASIBLE), robustness=robustness)
    except KeyboardInterrupt as stopped:
        raise Interrupted(found) from stopped


def _candidates(found: Plan, copies: Copies | None, search: Search) -> Iterator[Candidate]:
    """Yield the plans to choose from: contiguous, with copies, and as a solver has found it."""
    single = _contiguous(found, search)
    yield Candidate(single)
    if copies:
        yield from copies.candidates(single, partial(_unscattered, search.part(ASIDE)))
    if single is not found:
        yield Candidate(found, SCATTER_MARGIN)


def _finished(plan: Plan, search: Search) -> Plan:
    """Return a plan after its last steps: single moves, and the simplest plan unless the optimum was asked for."""
    time_limit_s = CLIMB * search.time_limit_s
    best = settled(plan, time_limit_s)
    return simplest(best, time_limit_s) if search.gap > 0 and search.solver == AUTO else best


def _contiguous(found: Plan, search: Search) -> Plan:
    """Return the best contiguous plan if a micro-batch comes back to a device that it has left, otherwise ``found``."""
    if (
        found.minimised is not Goal.THROUGHPUT
        or search.solver != AUTO
        or not is_scattered(found.problem, found.placement)
    ):
        return found
    contiguous = replace(search.part(ASIDE), solver=CONTIGUOUS).solve(found.problem)
    return found.task.answered(contiguous) if contiguous.placement else found


def _unscattered(search: Search, problem: Problem) -> Result:
    """Return the best placement, or the best contiguous one if that takes hardly more time."""
    result = search.solve(problem)
    if not result.placement or not is_scattered(problem, result.placement):
        return result
    contiguous = replace(search, solver=CONTIGUOUS).solve(problem)
    return result if result.objective_s < contiguous.objective_s * (1 - SCATTER_MARGIN) else contiguous


def _no_plan(task: PlacementTask, result: Result, time_limit_s: float) -> NoPlanError:
    """Return the error for a result without a placement; it names the smallest set of constraints that collide."""
    if task.constraints and result.status is Status.INFEASIBLE:
        kinds = [device.kind for device in task.cluster.devices]
        step = step_of(task.workload) if task.workload.trains else None
        question = Request(task.table, task.graph, task.minimised, kinds, step)
        conflict = find_conflict(question, task.constraints, time_limit_s)
        result = replace(result, advice=str(conflict or result.advice))
    elif result.status is Status.INFEASIBLE:
        result = replace(result, advice=f"{result.advice}{too_large_to_split(task)}")
    return NoPlanError(result)


def batch_of(graph: Graph) -> int:
    """Return the first dimension of the first input that has one; 1 if none has, or inputs are empty."""
    shapes = (graph.tensor[name].shape for name in graph.inputs)
    return next((shape[0] for shape in shapes if shape and shape[0]), 1)
