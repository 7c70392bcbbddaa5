"""Layer-wise plans of least step time: an integer program for each number of pipeline stages.

Layers are equal, so that a stage is known by how many of its layers have each strategy.

::

    n[i, s] whole, 0 or more     layers of stage i with strategy s           sum_s n[i, s] = layers of stage i
    y[e], b[w] in {0, 1}         embedding and head; the width that the buffer is made for       sum y = sum b = 1
    n[i, s] <= layers * sum of b[w] over the widths w that admit s           the same for y
    memory   sum_s mb[i, s] n[i, s] + sum_e mb[i, e] y[e] + sum_w mb[w] b[w]  <=  limit
    A_i      compute time, S_i time with gradients: linear in n and y
    minimise step + late         step >= each of `pace_factors` times A;   late >= S_i - sum_{j <= i} A_j,  late >= 0

Width 0 has no buffer and admits what is not tensor-parallel; width w admits strategies of w ranks at most.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from graphs.brief import Brief
from planner.problem.layerwise.plan import LayerwisePlan, price_of
from planner.problem.layerwise.prices import StagePrices, pace_factors
from planner.problem.layerwise.setting import LayerStrategy, LayerwiseSetting
from planner.problem.result import PROOF_TOLERANCE, Status
from planner.solvers.base import Budget
from planner.solvers.milp.highs import SAFETY, allowance, minimise


@dataclass(frozen=True)
class LayerwiseResult(Brief):
    """An answer with its proof."""

    status: Status  # how the search ended
    plan: LayerwisePlan | None  # the best that was found, or None
    step_ms: float  # its time; infinite without a plan
    bound_ms: float  # no plan takes less
    wall_s: float  # seconds that the search took


def solve_layerwise(setting: LayerwiseSetting, time_limit_s: float = 60.0) -> LayerwiseResult:
    """Find the plan with the shortest step within the memory limit."""
    budget = Budget(time_limit_s, gap=0.0)
    best = _BestPlan(setting)
    bound_ms = inf
    numbers = list(_stage_numbers(setting))
    for position, stages in enumerate(numbers):
        prices = StagePrices(setting, stages)
        if setting.uniform:
            best.offer_all(_uniform_plans(prices))
        elif prices.strategies:
            share = Budget(budget.left_s / (len(numbers) - position), gap=0.0)
            bound_ms = min(bound_ms, _StageProgram(prices, best.step_ms).solve(share, best))
    bound_ms = min(bound_ms, best.step_ms)
    return LayerwiseResult(best.status(bound_ms), best.plan, best.step_ms, bound_ms, budget.wall_s)


@dataclass
class _BestPlan:
    """The best plan so far."""

    setting: LayerwiseSetting
    plan: LayerwisePlan | None = None
    step_ms: float = inf

    def offer(self, plan: LayerwisePlan) -> None:
        """Take a plan if it keeps the limit and is faster."""
        price = price_of(self.setting, plan)
        if price.feasible and price.step_ms < self.step_ms:
            self.plan, self.step_ms = plan, price.step_ms

    def offer_all(self, plans: Iterator[LayerwisePlan]) -> None:
        """Offer one plan after another."""
        for plan in plans:
            self.offer(plan)

    def status(self, bound_ms: float) -> Status:
        """How a search with this bound ended."""
        if self.plan is None:
            return Status.INFEASIBLE if bound_ms == inf else Status.UNKNOWN
        return Status.OPTIMAL if self.step_ms * (1 - PROOF_TOLERANCE) <= bound_ms else Status.FEASIBLE


def _stage_numbers(setting: LayerwiseSetting) -> Iterator[int]:
    """Powers of two, up to the GPUs, the layers and the micro-batches."""
    stages = 1
    while stages <= min(setting.gpus, setting.layers, setting.micro_batches):
        yield stages
        stages *= 2


def _uniform_plans(prices: StagePrices) -> Iterator[LayerwisePlan]:
    """Every plan with one strategy."""
    for strategy in prices.strategies:
        outer = strategy._replace(recompute=False)
        yield LayerwisePlan(prices.stages, outer, (strategy,) * prices.setting.layers)


class _StageProgram:
    """The integer program for a number of stages; times are in ms, memory in shares of the limit."""

    def __init__(self, prices: StagePrices, most_ms: float) -> None:
        import pulp  # late: see milp

        self._pulp, self._prices = pulp, prices
        self._model = pulp.LpProblem("layers", pulp.LpMinimize)
        self._outers = [strategy for strategy in prices.strategies if not strategy.recompute]
        self._widths = sorted({0, *(max(strategy[:2]) for strategy in prices.strategies)} - {1})
        binary = {"lowBound": 0, "upBound": 1, "cat": pulp.LpInteger}
        self._y = [self._model.add_variable(f"y_{e}", **binary) for e in range(len(self._outers))]
        self._b = [self._model.add_variable(f"b_{w}", **binary) for w in self._widths]
        self._n = [
            [
                self._model.add_variable(f"n_{stage}_{s}", 0, count, pulp.LpInteger)
                for s in range(len(prices.strategies))
            ]
            for stage, count in enumerate(prices.stage_layers)
        ]
        self._step = self._model.add_variable("step", 0)
        self._late = self._model.add_variable("late", 0)
        self._model += self._step + self._late
        if most_ms < inf:
            self._model += self._step + self._late <= most_ms
        for family in (self._counts, self._admitted, self._memory, self._time):
            family()

    def solve(self, budget: Budget, best: _BestPlan) -> float:
        """Offer every better plan; returns a bound in ms, infinite if no plan is as good as the best one before."""
        steps = allowance(self._model, budget.time_limit_s)
        outcome = minimise(self._model, budget, steps, lambda values: best.offer(self._read(values)))
        return outcome.bound * (1 - SAFETY) if outcome.bound < inf else inf

    def _counts(self) -> None:
        """Every layer has a strategy; embedding and head have one; there is one buffer."""
        for n, count in zip(self._n, self._prices.stage_layers, strict=True):
            self._model += self._sum([1.0] * len(n), n) == count
        for chosen in (self._y, self._b):
            self._model += self._sum([1.0] * len(chosen), chosen) == 1

    def _admitted(self) -> None:
        """The buffer is made for the widest strategy."""
        for e, strategy in enumerate(self._outers):
            self._model += self._y[e] <= self._admitting(strategy)
        for n, count in zip(self._n, self._prices.stage_layers, strict=True):
            for s, strategy in enumerate(self._prices.strategies):
                self._model += n[s] <= count * self._admitting(strategy)

    def _memory(self) -> None:
        """Every stage keeps the limit."""
        prices, limit = self._prices, max(1.0, float(self._prices.setting.limit_mb))
        outer = [prices.outer_mb(strategy) for strategy in self._outers]
        buffers = [prices.buffer_mb(width) / limit if width else 0.0 for width in self._widths]
        for stage, n in enumerate(self._n):
            layers = [prices.layer_mb(strategy, stage) / limit for strategy in prices.strategies]
            ends = [held[stage] / limit for held in outer]
            held = self._sum(layers, n) + self._sum(ends, self._y) + self._sum(buffers, self._b)
            self._model += held <= prices.setting.limit_mb / limit

    def _time(self) -> None:
        """The pipeline's pace, and the wait for gradients."""
        prices = self._prices
        times = [prices.layer(strategy) for strategy in prices.strategies]
        outer = [prices.outer_ms(strategy) for strategy in self._outers]
        compute = [
            self._sum([time.plain_ms for time in times], n) + self._sum([ms[stage] for ms in outer], self._y)
            for stage, n in enumerate(self._n)
        ]
        for factors in pace_factors(prices.stages, prices.setting.micro_batches):
            self._model += self._step >= self._pulp.lpSum(f * ms for f, ms in zip(factors, compute, strict=True))
        for stage, n in enumerate(self._n):
            synced = self._sum([time.synced_ms for time in times], n)
            self._model += self._late >= synced - self._pulp.lpSum(compute[: stage + 1])

    def _admitting(self, strategy: LayerStrategy) -> Any:
        """1 if the buffer admits a strategy, else 0."""
        wide = max(strategy[:2])
        admitting = [
            b for w, b in zip(self._widths, self._b, strict=True) if (w >= wide if w else strategy.tensor == 1)
        ]
        return self._pulp.lpSum(admitting)

    def _sum(self, factors: Sequence[float], variables: Sequence[Any]) -> Any:
        return self._pulp.LpAffineExpression(list(zip(variables, factors, strict=True)))

    def _read(self, values: Mapping[str, float]) -> LayerwisePlan:
        outer = max(range(len(self._outers)), key=lambda e: values[f"y_{e}"])
        layers: list[LayerStrategy] = []
        for stage in range(self._prices.stages):
            for s, strategy in enumerate(self._prices.strategies):
                layers += [strategy] * round(values[f"n_{stage}_{s}"])
        return LayerwisePlan(self._prices.stages, self._outers[outer], tuple(layers))
