"""ILP: the best of all placements by integer programming with PuLP and HiGHS."""

from dataclasses import dataclass, replace
from math import inf

import numpy as np

from costmodels.table import CostTable
from planner.problem.blocks import Blocks, merge_blocks
from planner.problem.bounds import cost_bound, load_bound, longest_paths
from planner.problem.deadline import loading
from planner.problem.devices import uniform_links
from planner.problem.problem import Goal, Problem
from planner.solvers.base import Answer, Budget, Incumbent
from planner.solvers.milp.highs import LEAST_GAP, SAFETY
from planner.solvers.milp.latency import LatencyModel
from planner.solvers.milp.model import CostModel, PlacementModel

MOST_COSTS = 300_000  # operators times devices; with more, not even merging leaves few enough columns
MOST_COLUMNS = 20_000  # with more, HiGHS spends minutes on the first relaxation


@dataclass(frozen=True)
class ILP:
    """Integer programming: a program for each goal.

    Operators that must share a device have one variable; so have operators that share a device in every placement that
    is better than the incumbent (see `merge_forced`). The search ends after a number of steps (see
    `planner.solvers.milp.highs`).

    Source: the throughput programs follow Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph
    Operators, NeurIPS 2020, with transfers for each pair of devices.
    """

    name: str = "ilp"
    goals: frozenset[Goal] = frozenset({Goal.THROUGHPUT, Goal.LATENCY, Goal.COST})

    def refuses(self, problem: Problem) -> str:
        """Refuse contiguity: no program has it."""
        return "contiguous operators" if problem.contiguous else ""

    def search(self, problem: Problem, budget: Budget) -> Answer:
        """Search for the best placement and prove a bound; return the incumbent if the model is too large."""
        best = Incumbent(problem, budget, self.name)
        if problem.table.n_ops * problem.table.n_devices > MOST_COSTS:
            return Answer(best.placement, budget.bound_s)
        worst_s = min(best.objective_s, self.worst_case_s(problem.table)) or 1.0
        blocks = self.merged(problem, worst_s)
        if not blocks.fits.any(axis=1).all():
            return Answer(best.placement, worst_s, complete=True)
        own_s = cost_bound(blocks) if problem.goal is Goal.COST else load_bound(blocks)
        between_s = min(worst_s, max(budget.bound_s, own_s)), worst_s
        if problem.goal is not Goal.THROUGHPUT:
            return self.solved(problem, budget, best, blocks, between_s)
        with loading():
            from planner.solvers.milp.traffic import traffic_bound  # late: numba takes half a second to load

        cut_s, spent_s = traffic_bound(blocks, between_s, budget)
        if best.placement is not None and cut_s >= best.objective_s * (1 - budget.gap):
            return Answer(best.placement, cut_s, spent=budget.share(spent_s))
        cutting = budget.share(spent_s)
        answer = self.solved(problem, replace(budget.part(1 - cutting), bound_s=cut_s), best, blocks, between_s)
        spent = cutting + (1 - cutting) * answer.spent
        return replace(answer, bound_s=max(answer.bound_s, min(cut_s, best.objective_s)), spent=spent)

    def solved(
        self, problem: Problem, budget: Budget, best: Incumbent, blocks: Blocks, between_s: tuple[float, float]
    ) -> Answer:
        """Solve the program of a goal, in which no placement is below and none above the two seconds.

        The budget may know a higher bound: a program that is given it has a relaxation that is equal to it everywhere,
        which does not tell where to branch.
        """
        lower_s, worst_s = between_s
        if self.count_columns(problem, blocks) > MOST_COLUMNS:
            return Answer(best.placement, lower_s)
        model = self.program_of(problem)(blocks, lower_s, worst_s)
        if not model.build(budget):
            return Answer(best.placement, lower_s)
        bound_s, spent = model.minimise(budget, best.placement, best.offer)
        if bound_s == inf and best.placement is None:
            return Answer(None, complete=True)
        proved_s = min(worst_s, max(lower_s, bound_s))
        if proved_s < best.objective_s * (1 - max(budget.gap, LEAST_GAP)) and best.objective_s < worst_s / 2:
            # Under a lower upper bound more blocks are merged, and shorter times matter.
            left = replace(budget.part(1 - spent), incumbent=best.placement, bound_s=proved_s)
            again = self.search(problem, left)
            return replace(again, spent=spent + (1 - spent) * again.spent)
        return Answer(best.placement, proved_s, spent=spent)

    def merged(self, problem: Problem, upper_s: float) -> Blocks:
        """Return blocks that some placement better than ``upper_s`` keeps together, if there is one."""
        return merge_blocks(problem.table) if problem.goal is Goal.COST else merge_forced(problem, upper_s)

    def program_of(self, problem: Problem) -> type[PlacementModel]:
        """Return the program for a goal."""
        return {Goal.THROUGHPUT: PlacementModel, Goal.COST: CostModel}.get(problem.goal, LatencyModel)

    def count_columns(self, problem: Problem, blocks: Blocks) -> int:
        """Return the number of variables of the model, about."""
        k = problem.table.n_devices
        columns = (blocks.n + len(blocks.nets) * (2 if uniform_links(problem.table) else k)) * k
        if problem.goal is Goal.LATENCY:
            columns += sum(len(net.readers) for net in blocks.nets) * k * k + problem.table.n_ops**2
        return columns

    def worst_case_s(self, table: CostTable) -> float:
        """Return more seconds than any placement: all operators in turn, each on its slowest device, and all flows."""
        sends_s = table.link_s.max(axis=1, initial=0.0).sum()
        overheads_s = 2 * len(table.flows) * table.overhead_s.max()
        return (slowest_s(table) + float(sends_s + overheads_s) * table.n_devices) * (1 + SAFETY)


def slowest_s(table: CostTable) -> float:
    """Return the seconds of all operators, each on the slowest device that can run it."""
    return float(np.where(np.isfinite(table.forward_s), table.forward_s, 0.0).max(axis=1).sum())


def merge_forced(problem: Problem, upper_s: float) -> Blocks:
    """Merge the ends of every net that no placement better than ``upper_s`` cuts.

    For throughput, cutting such a net makes a device or a channel that busy, by the transfer and, without overlap, the
    block at its end. For latency, the longest path through the cut takes that long. Merged blocks weigh more, so it
    repeats until nothing changes.
    """
    uncut = _uncut_by_latency if problem.goal is Goal.LATENCY else _uncut_by_load
    forced: list[tuple[int, int]] = []
    while True:
        blocks = merge_blocks(problem.table, forced)
        pairs = uncut(blocks, upper_s)
        if not pairs:
            return blocks
        forced += pairs


def _uncut_by_load(blocks: Blocks, upper_s: float) -> list[tuple[int, int]]:
    """Operators at the ends of nets that make a device or channel busy for ``upper_s`` if they are cut."""
    busy = np.where(blocks.fits, blocks.forward_s, inf)
    forced = []
    for net in blocks.nets:
        seconds = net.seconds(blocks.table)
        np.fill_diagonal(seconds, inf)
        sends = seconds if blocks.table.sharing != "unlimited" else np.where(np.isfinite(seconds), 0.0, inf)
        for reader in net.readers:
            ends = np.maximum(busy[net.writer][:, None], busy[reader])
            if (np.maximum(sends, ends) if blocks.table.overlap else seconds + ends).min() >= upper_s:
                forced.append((blocks.members[net.writer][0], blocks.members[reader][0]))
    return forced


def _uncut_by_latency(blocks: Blocks, upper_s: float) -> list[tuple[int, int]]:
    """Operators at the ends of flows that make a path of ``upper_s`` if they are cut."""
    table, block = blocks.table, blocks.block
    takes = np.where(blocks.fits[block], table.forward_s, inf)
    head_s, tail_s = longest_paths(table)
    behind_s = tail_s - table.forward_s.min(axis=1)
    forced = []
    for flow, seconds in zip(table.flows, table.transfer_s, strict=True):
        between = np.where(np.eye(table.n_devices, dtype=bool), inf, seconds)
        for reader in flow.readers:
            if block[reader] != block[flow.writer]:
                path = (takes[flow.writer][:, None] + between + takes[reader]).min()
                if head_s[flow.writer] + path + behind_s[reader] >= upper_s:
                    forced.append((flow.writer, reader))
    return forced
