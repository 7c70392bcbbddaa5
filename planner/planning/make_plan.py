"""From a graph and a cluster to a plan, and the options of the search."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from operator import attrgetter

from costmodels.cluster.cluster import Cluster
from costmodels.profile_cache import cached_profiles, learned_costs
from costmodels.tabulate import tabulate
from costmodels.workload import Workload
from graphs.common import checks
from graphs.common.errors import InputError
from graphs.ir import Graph
from graphs.rewrites.rewrite import Rewrite, rewritten
from planner.planning.copies import Copies
from planner.planning.last_moves import SCATTER_MARGIN, settled
from planner.planning.parsimony import simplest
from planner.planning.rewriting import (
    AUTO_REWRITES,
    COPIES,
    SPLIT,
    allows,
    check_rewrites,
    rewrites_for,
    stay_as_imported,
)
from planner.planning.splitting import SPLITS_S, best_in_step, splits_for, too_large_to_split
from planner.plans.plan import Plan, step_of
from planner.problem.constraints import CollisionError, Constraint
from planner.problem.deadline import Deadline
from planner.problem.problem import Goal, Problem
from planner.problem.reporter import SILENT, Reporter
from planner.problem.result import Interrupted, NoPlanError, Result, Status
from planner.solvers.conflict import Request, find_conflict
from planner.solvers.portfolio import AUTO, SOLVERS
from planner.solvers.robust import SOLVED, Draws, harden
from planner.solvers.single_moves import is_scattered
from planner.solvers.solve import CLIMB, best_single_device, solve
from simulator.placement import Placement

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
    profiles, (pace, pace_spread) = cached_profiles(cluster), paces_of(cluster)

    def asked(network: Graph, *splits: Rewrite) -> Plan:
        """Return a plan without an answer for the network, whole or split."""
        others = rewrites_for(search.rewrites, network, cluster.devices, workload.trains)
        own = rewritten(network, others)
        table = tabulate(own, cluster, workload, profiles, learned_costs)
        nowhere = Placement((0,) * table.n_ops)
        plan = Plan(own, cluster, workload, table, goal, nowhere, "", "", 0.0, constraints, None, pace, pace_spread)
        return replace(plan, rewrites=(*splits, *others), network=graph.fingerprint)

    whole = asked(graph)
    in_step: Plan | None = None
    try:
        if splits := splits_for(search.rewrites, graph, whole, min(search.time_limit_s * ASIDE, SPLITS_S)):
            in_step = best_in_step(splits, asked, SPLITS_S)
    except KeyboardInterrupt as stopped:
        raise Interrupted(search_plan(whole, search.part(HASTE))) from stopped
    except Exception as error:  # a plan of the whole operators is as good
        stay_as_imported(search.rewrites, SPLIT, error)
    return _better(whole, in_step, search) if in_step else search_plan(whole, search)


def check_goal(goal: Goal, workload: Workload) -> None:
    """Check that a goal and a workload go together; raise InputError if they do not."""
    for mode, of in (("training", Goal.TRAINING), ("generation", Goal.GENERATION)):
        if (workload.mode == mode) != (goal is of):
            raise InputError(f"the goal '{goal}' does not go with a workload for {workload.mode}; make both '{mode}'")


def paces_of(cluster: Cluster) -> tuple[dict[str, Mapping[str, float]], dict[str, Mapping[str, float]]]:
    """Return the usual pace and its spread of the kinds of devices that were measured with them, see `Plan`."""
    profiles = cached_profiles(cluster)
    profile_of = {device.kind: profiles[device.profile] for device in cluster.devices if device.profile in profiles}
    paced = {kind: profile for kind, profile in profile_of.items() if profile.pace}
    pace = {kind: profile.usual_pace for kind, profile in paced.items()}
    return pace, {kind: profile.pace_spread for kind, profile in paced.items()}


def _better(whole: Plan, in_step: Plan, search: Search) -> Plan:
    """Return the better plan, of the whole network or of the split one, for which ``in_step`` is a plan."""
    half = search.part((1 - ASIDE) / 2)
    alone, parts_alone = (best_single_device(plan.problem) for plan in (whole, in_step))
    if alone and parts_alone and parts_alone[1]:
        in_step = replace(in_step, whole_share=alone[1] / parts_alone[1])
    refused: NoPlanError | None = None
    stopped: Interrupted | None = None
    answers = [in_step]
    large = in_step.table.n_ops * in_step.table.n_devices > MOST_SEARCHED
    for each in (whole,) if large else (whole, in_step):
        try:
            answers.append(search_plan(each, half))
        except NoPlanError as error:
            refused = error
        except Interrupted as error:
            stopped = error
            answers.append(error.best)
            break
    feasible = [plan for plan in answers if plan.evaluation.feasible]
    if refused and not feasible:
        raise refused
    best = min(feasible, key=attrgetter("predicted_s"))
    if stopped:
        raise Interrupted(best) from stopped
    return best


def search_plan(asked: Plan, search: Search) -> Plan:
    """Find a placement for the costs and the constraints of a plan, whatever its own is.

    Raises:
        NoPlanError, Interrupted: as `make_plan`.
    """
    deadline = Deadline(search.time_limit_s)
    try:
        copies = Copies.of(asked, search.gap) if allows(search.rewrites, COPIES) and search.solver == AUTO else None
        if copies and not search.robust and (enough := copies.enough):
            return enough
        result = search.part(NOMINAL if search.robust else 1.0).solve(asked.problem)
    except CollisionError as collision:
        nothing = Result(Status.INFEASIBLE, None, inf, inf, 0.0, "constraints", str(collision))
        raise _no_plan(asked, nothing, deadline.left_s) from collision
    except Interrupted as stopped:
        raise Interrupted(asked.answered(stopped.best)) from stopped
    if result.placement is None:
        raise _no_plan(asked, result, deadline.left_s)
    try:
        if not search.robust:
            found = asked.answered(result)
            single = _contiguous(found, search)
            if copies:
                single = copies.or_better(single, partial(_unscattered, search.part(ASIDE)))
            chosen = found if found.period_s < single.period_s * (1 - SCATTER_MARGIN) else single
            return _finished(chosen, search)
        quick = search.part((1 - NOMINAL) * SCENARIOS / SOLVED)
        draws = Draws(search.robust, search.seed, deadline, search.reporter)
        placement, robustness = harden(asked.problem, result, draws, quick.solve)
        steady = asked.answered(replace(result, placement=placement))
        return replace(steady, status=str(Status.FEASIBLE), robustness=robustness)
    except KeyboardInterrupt as stopped:
        raise Interrupted(asked.answered(result)) from stopped


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
    return found.answered(contiguous) if contiguous.placement else found


def _unscattered(search: Search, problem: Problem) -> Result:
    """Return the best placement, or the best contiguous one if that takes hardly more time."""
    result = search.solve(problem)
    if not result.placement or not is_scattered(problem, result.placement):
        return result
    contiguous = replace(search, solver=CONTIGUOUS).solve(problem)
    return result if result.objective_s < contiguous.objective_s * (1 - SCATTER_MARGIN) else contiguous


def _no_plan(asked: Plan, result: Result, time_limit_s: float) -> NoPlanError:
    """Return the error for a result without a placement; it names the smallest set of constraints that collide."""
    if asked.constraints and result.status is Status.INFEASIBLE:
        kinds = [device.kind for device in asked.cluster.devices]
        step = step_of(asked.workload) if asked.workload.trains else None
        question = Request(asked.table, asked.graph, asked.minimised, kinds, step)
        conflict = find_conflict(question, asked.constraints, time_limit_s)
        result = replace(result, advice=str(conflict or result.advice))
    elif result.status is Status.INFEASIBLE:
        result = replace(result, advice=f"{result.advice}{too_large_to_split(asked)}")
    return NoPlanError(result)


def batch_of(graph: Graph) -> int:
    """Return the first dimension of the first input that has one; 1 if none has."""
    shapes = (graph.tensor[name].shape for name in graph.inputs)
    return next((shape[0] for shape in shapes if shape), 1)
