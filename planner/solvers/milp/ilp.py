"""ILP: the best of all placements by integer programming with PuLP and HiGHS."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from costmodels.table import CostTable
from planner.problem.blocks import Blocks, merge_blocks
from planner.problem.bounds import cost_bound, load_bound, longest_paths
from planner.problem.devices import uniform_links
from planner.problem.problem import Goal, Problem
from planner.problem.reporter import SILENT
from planner.solvers.base import Answer, Budget, Incumbent
from planner.solvers.milp.highs import LEAST_GAP, PROBING, SAFETY, allowance, minimise
from planner.solvers.milp.latency import LatencyModel
from planner.solvers.milp.model import CostModel, PlacementModel
from planner.solvers.milp.offload import OffloadCostModel, OffloadModel, Pool, pool_of
from planner.solvers.milp.reduce import reduce_blocks

PROBES = ((0.125, 0.3), (0.61, 0.9), (1.0, 0.4))
"""How far T is from the lower to the upper bound, and its share of the steps left; the last third costs most."""

Pose = Callable[[float, float], PlacementModel]
"""The program for loads between a lower and an upper number of seconds."""


@dataclass
class Prober:
    """Closes the gap around the least load within the budget: it probes as in `PROBES`, then minimises.

    ::

        lower ───────────── T ──── upper    "none" raises the lower bound to T, a placement lowers the upper one below
                            └──► asks the integer program with T as a constant

    To decide a program with a constant T is often several times as fast as to find the least T: its rows are knapsacks.
    Bounds from refuted values are called destructive (Klein and Scholl, EJOR 112(2), 1999).
    """

    budget: Budget
    best: Incumbent  # hears of every placement
    lower_s: float  # no placement is below it
    worst_s: float  # no placement is above it
    pose: Pose
    spent: float = 0.0  # share of the budget's steps

    def search(self) -> Answer:
        """The best placement and bound."""
        for reach, share in PROBES:
            refuted = self._probe_at(reach, share)
            if refuted and self.best.placement is None:
                return Answer(None, complete=True)
            if not refuted:
                break
        if not self._closed:
            # The lower bound is left out: a relaxation that is equal to it everywhere does not tell where to branch.
            bound_s = self._run(0.0, self._upper_s, 1 - self.spent)
            if bound_s == inf and self.best.placement is None:
                return Answer(None, complete=True)
            self.lower_s = max(self.lower_s, min(bound_s, self._upper_s))
        spent = PROBING.share * min(1.0, self.spent)
        return Answer(self.best.placement, min(self.lower_s, self._upper_s), spent=spent)

    @property
    def _upper_s(self) -> float:
        return min(self.worst_s, self.best.objective_s)

    @property
    def _claim_s(self) -> float:
        """The load to refute to close the gap; without a placement, the largest of all."""
        if self.best.placement is None:
            return self.worst_s
        return self._upper_s * (1 - max(self.budget.gap, LEAST_GAP))

    @property
    def _closed(self) -> bool:
        """Whether the gap is closed or the budget is used up."""
        proved = self.best.placement is not None and self._claim_s * (1 - 2 * SAFETY) <= self.lower_s
        return proved or self.spent >= 1 or self.budget.brake_s <= 0

    def _probe_at(self, reach: float, share: float) -> bool:
        """Probe until a load is refuted, then True; False if that does not happen within the budget."""
        while not self._closed:
            target_s, before_s = self._claim_s, self.best.objective_s
            if self.best.placement is not None:
                target_s = min(target_s, self.lower_s + reach * (self._upper_s - self.lower_s))
            if self._run(target_s, target_s, (1 - self.spent) * share) == inf:
                self.lower_s = min(target_s * (1 - SAFETY), self._upper_s)
                return True
            if self.best.objective_s >= before_s:
                return False
        return False

    def _run(self, lower_s: float, upper_s: float, share: float) -> float:
        """Solve the program between two loads with a share of all steps; return the bound in seconds."""
        model = self.pose(lower_s, upper_s)
        if not model.build(self.budget):
            self.spent = 1.0
            return 0.0
        best, start = self.best.placement, None
        if upper_s > lower_s and best is not None and model.expresses(best):  # else it has to find one
            start = model.start(best)
        whole = allowance(model.model, self.budget.time_limit_s, PROBING)
        steps = int(share * whole)
        proof = minimise(model.model, self.budget, steps, lambda values: self.best.offer(model.read(values)), start)
        self.spent += (proof.steps + 1) / (whole + 1)
        return model.proved_s(proof.bound)


POOLED = 0.5  # share of the time that the pooled problem gets at most
MOST_COSTS = 300_000  # operators times devices; with more, not even merging leaves few enough columns
MOST_COLUMNS = 20_000  # with more, HiGHS spends minutes on the first relaxation


@dataclass(frozen=True)
class ILP:
    """Integer programming: a program for each goal, for tensors that go directly or through the memory of a host.

    Operators that must share a device have one variable; so have operators that share a device in every placement that
    is better than the incumbent (see `merge_forced` and `reduce_blocks`). The search ends after a number of steps (see
    `planner.solvers.milp.highs`).

    Source: the throughput programs follow Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph
    Operators, NeurIPS 2020, with transfers for each pair of devices where there is no host between them.
    """

    name: str = "ilp"
    goals: frozenset[Goal] = frozenset({Goal.THROUGHPUT, Goal.LATENCY, Goal.COST})

    def refuses(self, problem: Problem) -> str:
        """Refuse contiguity, and accelerators that wait for each other: no program has these."""
        if problem.table.offload and problem.goal is Goal.LATENCY:
            return "the latency of a host with accelerators"
        return "contiguous operators" if problem.contiguous else ""

    def search(self, problem: Problem, budget: Budget) -> Answer:
        """Search for the best placement and prove a bound; return the incumbent if the model is too large."""
        best = Incumbent(problem, budget, self.name)
        if problem.table.n_ops * problem.table.n_devices > MOST_COSTS:
            return Answer(best.placement, budget.bound_s)
        worst_s = min(best.objective_s, _worst_case(problem.table)) or 1.0
        blocks = _merge(problem, worst_s)
        if not blocks.fits.any(axis=1).all():
            return Answer(best.placement, worst_s, complete=True)
        own_s = cost_bound(blocks) if problem.goal is Goal.COST else load_bound(blocks)
        lower_s = min(worst_s, max(budget.bound_s, own_s))
        spent, offload = 0.0, problem.table.offload and problem.goal is Goal.THROUGHPUT
        if offload and (pool := pool_of(problem)):
            pooled = self._pooled(pool, budget, best)
            lower_s, spent = max(lower_s, pooled.bound_s), POOLED * pooled.spent
        if count_columns(problem, blocks) > MOST_COLUMNS:
            return Answer(best.placement, lower_s, spent=spent)
        if offload:

            def pose(lower_s: float, upper_s: float) -> PlacementModel:
                """The program for loads between two bounds, with the blocks that are left under the upper bound."""
                return OffloadModel(reduce_blocks(problem.table, upper_s), lower_s, upper_s)

            return Prober(budget, best, lower_s, worst_s, pose, spent / PROBING.share).search()
        model = program_of(problem)(blocks, lower_s, worst_s)
        if not model.build(budget):
            return Answer(best.placement, lower_s)
        bound_s, spent = model.minimise(budget, best.placement, best.offer)
        if bound_s == inf and best.placement is None:
            return Answer(None, complete=True)
        proved_s = min(worst_s, max(lower_s, bound_s))
        if proved_s < best.objective_s * (1 - max(budget.gap, LEAST_GAP)) and best.objective_s < worst_s / 2:
            # Under a lower upper bound more blocks are merged, and shorter times matter.
            again = self.search(problem, replace(budget, incumbent=best.placement, bound_s=proved_s))
            return replace(again, spent=min(1.0, spent + again.spent))
        return Answer(best.placement, proved_s, spent=spent)

    def _pooled(self, pool: Pool, budget: Budget, best: Incumbent) -> Answer:
        """The answer for the pooled problem, whose bound holds; offer its placement, divided among the members."""
        start = pool.pooled(best.placement) if best.placement is not None else None
        share_s = POOLED * budget.time_limit_s
        answer = self.search(pool.problem, replace(budget, time_limit_s=share_s, incumbent=start, reporter=SILENT))
        if answer.placement is not None:
            best.offer(pool.divided(answer.placement))
        return answer


def _merge(problem: Problem, upper_s: float) -> Blocks:
    """Blocks that some placement better than ``upper_s`` keeps together, if there is one."""
    if problem.goal is Goal.COST:
        return merge_blocks(problem.table)
    if problem.table.offload:
        return reduce_blocks(problem.table, upper_s)
    return merge_forced(problem, upper_s)


def program_of(problem: Problem) -> type[PlacementModel]:
    """The program for a goal and a way of exchanging tensors."""
    if problem.goal is Goal.THROUGHPUT:
        return OffloadModel if problem.table.offload else PlacementModel
    if problem.goal is Goal.COST:
        return OffloadCostModel if problem.table.offload else CostModel
    return LatencyModel


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


def count_columns(problem: Problem, blocks: Blocks) -> int:
    """The number of variables of the model, about."""
    k = problem.table.n_devices
    if problem.table.offload:
        return (blocks.n + 2 * len(blocks.nets)) * k
    columns = (blocks.n + len(blocks.nets) * (2 if uniform_links(problem.table) else k)) * k
    if problem.goal is Goal.LATENCY:
        columns += sum(len(net.readers) for net in blocks.nets) * k * k + problem.table.n_ops**2
    return columns


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


def _worst_case(table: CostTable) -> float:
    """More seconds than any placement: all operators in turn, each on its slowest device, all flows to all devices."""
    total_s = np.where(np.isfinite(table.forward_s), table.forward_s, 0.0).max(axis=1).sum()
    if table.offload:
        total_s += table.offload.store_s.max(axis=1).sum() + table.offload.fetch_s.sum()
    else:
        sends_s = table.link_s.max(axis=1, initial=0.0).sum()
        overheads_s = 2 * len(table.flows) * table.overhead_s.max()
        total_s += (sends_s + overheads_s) * table.n_devices
    return float(total_s) * (1 + SAFETY)
