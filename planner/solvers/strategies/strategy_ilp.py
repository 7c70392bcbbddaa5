"""Strategy ILP: the integer program of a strategy problem, for memory limits and for graphs that elimination cannot do.

::

    x[v, s] in {0, 1}      sum_s x[v, s] = 1
    y[e, cell] >= 0        sum of y over the cells of e with strategy s of v  =  x[v, s]      for every node v of e
    minimise               sum cost_v[s] x[v, s] + sum cost_e[cell] y[e, cell]
    so that                sum usage_v[s] x[v, s]  <=  limit                                   at every moment

Variables of forbidden strategies and cells are left out. The relaxation is the local polytope, which is exact on trees.

Sources: Koster, van Hoesel and Kolen, Operations Research Letters 1998; Alpa (Zheng et al., OSDI 2022), which has no
limit over time.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import numpy as np

from planner.problem.deadline import loading
from planner.problem.strategies import StrategyProblem
from planner.solvers.base import Budget
from planner.solvers.milp.highs import SAFETY, Pace, allowance, minimise

PACE = Pace(3.5e-4, 1.6, 0.9)  # measured from 4 000 to 140 000 coefficients
BUILD_S = 2e-5  # of a variable
MOST_CELLS = 300_000  # variables that Python can hand over in a few seconds


class StrategyILP:
    """The program; costs are in units of ``scale``, memory in units of the limit."""

    def __init__(self, problem: StrategyProblem, scale: float) -> None:
        with loading():
            import pulp  # late: see milp

        self._pulp, self._problem, self._scale = pulp, problem, scale
        self._model = pulp.LpProblem("strategies", pulp.LpMinimize)
        self._objective: list[tuple[Any, float]] = []
        self._chosen: list[dict[int, Any]] = [self._node(node) for node in range(len(problem.node_cost))]
        for number in range(len(problem.edges)):
            self._edge(number)
        self._memory()
        self._model += pulp.LpAffineExpression(self._objective)
        self.spent_s = BUILD_S * len(self._objective)  # to build and solve it, by its size and its steps

    def solve(self, budget: Budget, start: Sequence[int] | None, tell: Callable[[tuple[int, ...]], None]) -> float:
        """Solve within the budget and tell of every better choice; returns a bound, infinite if there is no choice."""
        outcome = minimise(
            self._model,
            budget,
            allowance(self._model, budget.time_limit_s, PACE),
            lambda values: tell(self._read(values)),
            None if start is None else self._start(start),
        )
        self.spent_s += outcome.steps * PACE.share / max(1, allowance(self._model, 1.0, PACE))
        return inf if outcome.bound == inf else (outcome.bound - SAFETY * max(1.0, abs(outcome.bound))) * self._scale

    def _node(self, node: int) -> dict[int, Any]:
        """sum_s x[v, s] = 1."""
        chosen = {}
        for strategy, cost in enumerate(self._problem.node_cost[node].tolist()):
            if cost < inf:
                chosen[strategy] = self._model.add_variable(f"x_{node}_{strategy}", 0, 1, self._pulp.LpInteger)
                self._objective.append((chosen[strategy], cost / self._scale))
        self._add([(variable, 1.0) for variable in chosen.values()], "==", 1.0)
        return chosen

    def _edge(self, number: int) -> None:
        """The sum of y over the cells with one strategy of one node is x of this strategy."""
        nodes, table = self._problem.edges[number]
        cells: dict[tuple[int, int], list[Any]] = defaultdict(list)
        for cell in np.argwhere(np.isfinite(table)).tolist():
            if all(strategy in self._chosen[node] for node, strategy in zip(nodes, cell, strict=True)):
                name = "_".join(map(str, ("y", number, *cell)))
                variable = self._model.add_variable(name, 0, 1)
                self._objective.append((variable, float(table[tuple(cell)]) / self._scale))
                for end in zip(nodes, cell, strict=True):
                    cells[end].append(variable)
        for node in nodes:
            for strategy, variable in self._chosen[node].items():
                self._add([(variable, -1.0), *((y, 1.0) for y in cells[node, strategy])], "==", 0.0)

    def _memory(self) -> None:
        """The usage of what is live at once is at most the limit."""
        live, limit = self._problem.live, self._problem.limit
        if limit == inf:
            return
        for together in self._problem.moments:
            terms: dict[Any, float] = defaultdict(float)
            for node, _, _, usage in (live[i] for i in together):
                for strategy, variable in self._chosen[node].items():
                    terms[variable] += float(usage[strategy])
            unit = max(limit, 1.0)
            self._add([(variable, used / unit) for variable, used in terms.items()], "<=", limit / unit)

    def _add(self, terms: Sequence[tuple[Any, float]], sense: str, right: float) -> None:
        senses = {"<=": self._pulp.LpConstraintLE, "==": self._pulp.LpConstraintEQ}
        expression = self._pulp.LpAffineExpression(list(terms))
        self._model.addConstraint(self._pulp.LpConstraint(expression, senses[sense], rhs=right))

    def _start(self, choice: Sequence[int]) -> dict[Any, float]:
        """Return every variable's value for a choice."""
        on = {f"x_{node}_{strategy}" for node, strategy in enumerate(choice)}
        for number, (nodes, _) in enumerate(self._problem.edges):
            on.add("_".join(map(str, ("y", number, *(choice[node] for node in nodes)))))
        return {variable: float(variable.name in on) for variable in self._model.variables()}

    def _read(self, values: Mapping[str, float]) -> tuple[int, ...]:
        return tuple(max(chosen, key=lambda s: values[chosen[s].name], default=0) for chosen in self._chosen)
