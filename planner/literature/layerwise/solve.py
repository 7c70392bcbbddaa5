"""Layer-wise plans of least step time: an integer program for each number of pipeline stages.

Layers are equal, so that a stage is known by how many of its layers have each strategy.

::

    n[i, s] whole, 0 or more     layers of stage i with strategy s           sum_s n[i, s] = layers of stage i
    y[e], b[w] in {0, 1}         embedding and head; the width that the buffer is made for       sum y = sum b = 1
    n[i, s] <= layers * sum of b[w] over the widths w that admit s           the same for y
    memory   sum_s mb[i, s] n[i, s] + sum_e mb[i, e] y[e] + sum_w mb[w] b[w]  <=  limit
    A_i      compute time, S_i time with gradients: linear in n and y
    minimise step + late         step >= each of `pace_factors` times A;   late >= S_i - sum_{j <= i} A_j,  late >= 0

Width 0 has no buffer and admits what is not tensor-parallel; width w admits strategies of w ranks at most. A strategy
with which one layer alone takes longer than a known plan, or more memory than there is, has no variable: numbers that
stand for infinity would spoil the program.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from graphs.common.brief import Brief
from planner.literature.layerwise.plan import LayerwisePlan, price_of
from planner.literature.layerwise.prices import StagePrices, pace_factors
from planner.literature.layerwise.setting import LayerStrategy, LayerwiseSetting
from planner.problem.deadline import loading
from planner.problem.result import PROOF_TOLERANCE, Interrupted, Status
from planner.solvers.base import Budget
from planner.solvers.milp.highs import SAFETY, allowance, minimise

HUGE = 1e6  # times the quickest layers: what takes longer is left out of the program, and its bound says no more


@dataclass(frozen=True)
class LayerwiseResult(Brief):
    """An answer with its proof."""

    status: Status  # how the search ended
    plan: LayerwisePlan | None  # the best that was found, or None
    step_ms: float  # its time; infinite without a plan
    bound_ms: float  # no plan takes less
    wall_s: float  # seconds that the search took


def solve_layerwise(setting: LayerwiseSetting, time_limit_s: float = 60.0) -> LayerwiseResult:
    """Find the plan with the shortest step within the memory limit.

    Raises:
        Interrupted: on Ctrl-C, with the best result until then.
    """
    budget = Budget(time_limit_s, gap=0.0)
    best = _BestPlan(setting)
    numbers = list(_stage_numbers(setting))
    try:
        for stages in numbers:
            best.offer_all(_uniform_plans(StagePrices(setting, stages)))
        bound_ms = inf
        for position, stages in enumerate([] if setting.uniform else numbers):
            prices = StagePrices(setting, stages)
            if prices.strategies:
                left_s = max(0.0, time_limit_s - budget.wall_s)
                share = Budget(left_s / (len(numbers) - position), gap=0.0)
                bound_ms = min(bound_ms, _StageProgram(prices, best.step_ms).solve(share, best))
    except KeyboardInterrupt as stopped:
        if best.plan is None:
            raise
        raise Interrupted(best.result(0.0, budget)) from stopped
    return best.result(min(bound_ms, best.step_ms), budget)


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

    def result(self, bound_ms: float, budget: Budget) -> LayerwiseResult:
        """Return the answer of a search with this bound."""
        status = Status.OPTIMAL if self.step_ms * (1 - PROOF_TOLERANCE) <= bound_ms else Status.FEASIBLE
        if self.plan is None:
            status = Status.INFEASIBLE if bound_ms == inf else Status.UNKNOWN
        return LayerwiseResult(status, self.plan, self.step_ms, bound_ms, budget.wall_s)


def _stage_numbers(setting: LayerwiseSetting) -> Iterator[int]:
    """Yield powers of two, up to the GPUs, the layers and the micro-batches."""
    stages = 1
    while stages <= min(setting.gpus, setting.layers, setting.micro_batches):
        yield stages
        stages *= 2


def _uniform_plans(prices: StagePrices) -> Iterator[LayerwisePlan]:
    """Yield every plan with one strategy."""
    for strategy in prices.strategies:
        outer = strategy._replace(recompute=False)
        yield LayerwisePlan(prices.stages, outer, (strategy,) * prices.setting.layers)


class _StageProgram:
    """The integer program for a number of stages; times are in ms, memory in shares of the limit."""

    def __init__(self, prices: StagePrices, best_ms: float) -> None:
        with loading():
            import pulp  # late: see milp

        self._pulp, self._prices = pulp, prices
        self._model = pulp.LpProblem("layers", pulp.LpMinimize)
        self._widths = sorted({0, *(max(strategy[:2]) for strategy in prices.strategies)} - {1})
        self._least_ms = {strategy: max(prices.layer(strategy)) for strategy in prices.strategies}
        self._most_ms = min(best_ms, HUGE * prices.setting.layers * min(self._least_ms.values()))
        limit_mb = prices.setting.limit_mb
        outers = [strategy for strategy in prices.strategies if not strategy.recompute]
        held = [max(prices.outer_mb(strategy)) for strategy in outers]
        quick = [max(prices.outer_ms(strategy)) <= self._most_ms for strategy in outers]
        self._y = {s: self._whole(f"y_{e}", 1) for e, s in enumerate(outers) if quick[e] and held[e] <= limit_mb}
        self._b = [self._whole(f"b_{w}", 1) for w in self._widths]
        self._n = [
            {
                strategy: self._whole(f"n_{stage}_{s}", count)
                for s, (strategy, least_ms) in enumerate(self._least_ms.items())
                if least_ms <= self._most_ms and prices.layer_mb(strategy, stage) <= limit_mb
            }
            for stage, count in enumerate(prices.stage_layers)
        ]
        self._slow = not all(quick) or max(self._least_ms.values()) > self._most_ms  # something is left out for that
        self._step = self._model.add_variable("step", 0)
        self._late = self._model.add_variable("late", 0)
        self._model += self._step + self._late
        if best_ms < inf:
            self._model += self._step + self._late <= best_ms
        for family in (self._counts, self._admitted, self._memory, self._time):
            family()

    def solve(self, budget: Budget, best: _BestPlan) -> float:
        """Offer every better plan; returns a bound in ms, infinite if no plan is as good as the best one before."""
        bound_ms = inf
        if self._y and all(self._n):
            steps = allowance(self._model, budget.time_limit_s)
            outcome = minimise(self._model, budget, steps, lambda values: best.offer(self._read(values)))
            bound_ms = outcome.bound * (1 - SAFETY) if outcome.bound < inf else inf
        return min(bound_ms, self._most_ms) if self._slow else bound_ms

    def _whole(self, name: str, most: int) -> Any:
        return self._model.add_variable(name, 0, most, self._pulp.LpInteger)

    def _counts(self) -> None:
        """Demand that every layer has a strategy; embedding and head have one; there is one buffer."""
        for n, count in zip(self._n, self._prices.stage_layers, strict=True):
            self._model += self._pulp.lpSum(n.values()) == count
        for chosen in (self._y.values(), self._b):
            self._model += self._pulp.lpSum(chosen) == 1

    def _admitted(self) -> None:
        """Demand a buffer for the widest strategy."""
        for strategy, y in self._y.items():
            self._model += y <= self._admitting(strategy)
        for n, count in zip(self._n, self._prices.stage_layers, strict=True):
            for strategy, variable in n.items():
                self._model += variable <= count * self._admitting(strategy)

    def _memory(self) -> None:
        """Demand that every stage keeps the limit."""
        prices, limit = self._prices, max(1.0, float(self._prices.setting.limit_mb))
        outer = {strategy: prices.outer_mb(strategy) for strategy in self._y}
        buffers = [
            (b, prices.buffer_mb(width) / limit if width else 0.0)
            for width, b in zip(self._widths, self._b, strict=True)
        ]
        for stage, n in enumerate(self._n):
            held = [(variable, prices.layer_mb(strategy, stage) / limit) for strategy, variable in n.items()]
            held += [(y, outer[strategy][stage] / limit) for strategy, y in self._y.items()]
            self._model += self._sum([*held, *buffers]) <= prices.setting.limit_mb / limit

    def _time(self) -> None:
        """Demand the pipeline's pace, and the wait for gradients."""
        prices = self._prices
        times = {strategy: prices.layer(strategy) for strategy in prices.strategies}
        outer = [(y, prices.outer_ms(strategy)) for strategy, y in self._y.items()]
        compute = [
            self._sum([(variable, times[strategy].plain_ms) for strategy, variable in n.items()])
            + self._sum([(y, ms[stage]) for y, ms in outer])
            for stage, n in enumerate(self._n)
        ]
        for factors in pace_factors(prices.stages, prices.setting.micro_batches):
            self._model += self._step >= self._pulp.lpSum(f * ms for f, ms in zip(factors, compute, strict=True))
        for stage, n in enumerate(self._n):
            synced = self._sum([(variable, times[strategy].synced_ms) for strategy, variable in n.items()])
            self._model += self._late >= synced - self._pulp.lpSum(compute[: stage + 1])

    def _admitting(self, strategy: LayerStrategy) -> Any:
        """1 if the buffer admits a strategy, else 0."""
        wide = max(strategy[:2])
        admitting = [
            b for w, b in zip(self._widths, self._b, strict=True) if (w >= wide if w else strategy.tensor == 1)
        ]
        return self._pulp.lpSum(admitting)

    def _sum(self, terms: Sequence[tuple[Any, float]]) -> Any:
        return self._pulp.LpAffineExpression(list(terms))

    def _read(self, values: Mapping[str, float]) -> LayerwisePlan:
        outer = max(self._y, key=lambda strategy: values[self._y[strategy].name])
        layers: list[LayerStrategy] = []
        for n in self._n:
            for strategy, variable in n.items():
                layers += [strategy] * round(values[variable.name])
        return LayerwisePlan(self._prices.stages, outer, tuple(layers))
