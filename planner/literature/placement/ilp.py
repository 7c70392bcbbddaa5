"""Integer programming for a host with accelerators."""

from dataclasses import dataclass, replace

from costmodels.table import CostTable
from planner.literature.placement.offload import offload_of
from planner.literature.placement.program import OffloadCostModel, OffloadModel, Pool, pool_of
from planner.literature.placement.reduce import reduce_blocks
from planner.problem.blocks import Blocks, merge_blocks
from planner.problem.problem import Goal, Problem
from planner.problem.reporter import SILENT
from planner.solvers.base import Answer, Budget, Incumbent
from planner.solvers.milp.highs import SAFETY
from planner.solvers.milp.ilp import ILP, MOST_COLUMNS, slowest_s
from planner.solvers.milp.model import PlacementModel
from planner.solvers.milp.probing import PROBING, Prober

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
        worst_s, spent = between_s[1], 0.0
        lower_s = max(between_s[0], min(budget.bound_s, worst_s))
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
        answer = self.search(pool.problem, replace(budget.part(POOLED), incumbent=start, reporter=SILENT))
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
