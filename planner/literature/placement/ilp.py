"""Integer programming for a host with accelerators."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from costmodels.table import CostTable
from planner.literature.placement.offload import offload_of
from planner.literature.placement.program import OffloadCostModel, OffloadModel, Pool, pool_of
from planner.literature.placement.reduce import reduce_blocks
from planner.problem.blocks import Blocks, merge_blocks
from planner.problem.problem import Goal, Problem
from planner.problem.reporter import SILENT
from planner.solvers.base import Answer, Budget, Incumbent
from planner.solvers.milp.highs import LEAST_GAP, SAFETY, Pace, allowance, minimise
from planner.solvers.milp.ilp import ILP, MOST_COLUMNS, slowest_s
from planner.solvers.milp.model import PlacementModel

PROBING = Pace(1e-4, 2.2, 0.9)
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
        """Return the best placement and bound."""
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
        """Return the load to refute to close the gap; without a placement, the largest of all."""
        if self.best.placement is None:
            return self.worst_s
        return self._upper_s * (1 - max(self.budget.gap, LEAST_GAP))

    @property
    def _closed(self) -> bool:
        """Return whether the gap is closed or the budget is used up."""
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
        proof = minimise(
            model.model, self.budget, steps, lambda values: self.best.offer(model.read(values)), start, PROBING
        )
        self.spent += (proof.steps + 1) / (whole + 1)
        return model.proved_s(proof.bound)


POOLED = 0.5  # share of the time that the pooled problem gets at most


@dataclass(frozen=True)
class OffloadILP(ILP):
    """Integer programming for tensors that go through the memory of a host; for throughput a `Prober` asks for loads.

    Operators that share a device in some best placement have one variable (see `reduce_blocks`).

    Source: Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020.
    """

    def refuses(self, problem: Problem) -> str:
        """Refuse contiguity, and accelerators that wait for each other: no program has these."""
        return "the latency of a host with accelerators" if problem.goal is Goal.LATENCY else super().refuses(problem)

    def solved(
        self, problem: Problem, budget: Budget, best: Incumbent, blocks: Blocks, between_s: tuple[float, float]
    ) -> Answer:
        """Solve the program of a goal; for throughput, first with one host in place of several."""
        if problem.goal is not Goal.THROUGHPUT:
            return super().solved(problem, budget, best, blocks, between_s)
        (lower_s, worst_s), spent = between_s, 0.0
        if pool := pool_of(problem):
            pooled = self._pooled(pool, budget, best)
            lower_s, spent = max(lower_s, pooled.bound_s), POOLED * pooled.spent
        if self.count_columns(problem, blocks) > MOST_COLUMNS:
            return Answer(best.placement, lower_s, spent=spent)

        def pose(lower_s: float, upper_s: float) -> PlacementModel:
            """Return the program for loads between two bounds, with the blocks left under the upper bound."""
            return OffloadModel(reduce_blocks(problem.table, upper_s), lower_s, upper_s)

        return Prober(budget, best, lower_s, worst_s, pose, spent / PROBING.share).search()

    def _pooled(self, pool: Pool, budget: Budget, best: Incumbent) -> Answer:
        """Return the answer for the pooled problem, whose bound holds; offer its placement, divided among members."""
        start = pool.pooled(best.placement) if best.placement is not None else None
        share_s = POOLED * budget.time_limit_s
        answer = self.search(pool.problem, replace(budget, time_limit_s=share_s, incumbent=start, reporter=SILENT))
        if answer.placement is not None:
            best.offer(pool.divided(answer.placement))
        return answer

    def merged(self, problem: Problem, upper_s: float) -> Blocks:
        """Return blocks that some placement better than ``upper_s`` keeps together, if there is one."""
        return merge_blocks(problem.table) if problem.goal is Goal.COST else reduce_blocks(problem.table, upper_s)

    def program_of(self, problem: Problem) -> type[PlacementModel]:
        """Return the program for a goal."""
        return OffloadCostModel if problem.goal is Goal.COST else OffloadModel

    def count_columns(self, problem: Problem, blocks: Blocks) -> int:
        """Return the number of variables of the model, about."""
        return (blocks.n + 2 * len(blocks.nets)) * problem.table.n_devices

    def worst_case_s(self, table: CostTable) -> float:
        """Return more seconds than any placement: all operators in turn, all flows to all devices."""
        offload = offload_of(table)
        return (slowest_s(table) + float(offload.store_s.max(axis=1).sum() + offload.fetch_s.sum())) * (1 + SAFETY)
