"""Choice: the strategy problem of a sharding program on one mesh, and a choice as specs of the program's operators.

Operators that choose are nodes. An operator that follows an input has one spec for each strategy of the node that it
follows in the end, so that it adds to the costs of nodes and of pairs of nodes, but is no node itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from graphs.common.arrays import Floats
from graphs.common.brief import Brief
from graphs.common.errors import InputError
from planner.literature.strategies.program import MeshCase, ShardingProgram, TensorOp
from planner.literature.strategies.rules import Spec, Strategy, chooses, follow, resharding, strategies
from planner.problem.strategies import Edge, StrategyProblem


@dataclass(frozen=True)
class ShardingChoice(Brief):
    """The strategy problem of a program on one mesh."""

    problem: StrategyProblem  # with a node for each operator that chooses
    nodes: tuple[TensorOp, ...]  # the operator of each node
    specs: tuple[tuple[Spec, ...], ...]  # for each node, the spec that each strategy gives

    def assignment(self, choice: Sequence[int]) -> dict[str, list[int | None]]:
        """Return the spec of every parameter and every dot by its id."""
        return {
            str(op.key): list(specs[chosen])
            for op, specs, chosen in zip(self.nodes, self.specs, choice, strict=True)
            if op.kind in ("parameter", "dot")
        }


def sharding_choice(program: ShardingProgram, case: MeshCase) -> ShardingChoice:
    """Return the strategy problem of a program on a mesh.

    Raises:
        InputError: if no strategy of a dot splits what ``must_split`` asks for.
    """
    costs = _Costs(program, case)
    for position, op in enumerate(program.ops):
        if op.kind != "tuple":
            costs.add(position)
    for one, other in program.ties:
        costs.tie(one, other)
    nodes = tuple(program.ops[position] for position in costs.chosen)
    return ShardingChoice(costs.problem, nodes, tuple(costs.specs))


class _Costs:
    """The costs of nodes and pairs of nodes, added up from one operator after another.

    Attributes:
        chosen: the position of each node's operator.
        specs: for each node, the spec that each strategy gives.
        states: for each operator, its strategy under each strategy of its node; None if it cannot keep a split.
    """

    def __init__(self, program: ShardingProgram, case: MeshCase) -> None:
        self._program, self._case = program, case
        self._node: list[int] = [-1] * len(program.ops)
        self._depth: list[int] = []
        for op in program.ops:
            self._depth.append(1 + max((self._depth[i] for i in op.inputs), default=-1))
        self._node_cost: list[Floats] = []
        self._pair_cost: dict[tuple[int, int], Floats] = {}
        self.chosen: list[int] = []
        self.specs: list[tuple[Spec, ...]] = []
        self.states: dict[int, tuple[Strategy | None, ...]] = {}

    @property
    def problem(self) -> StrategyProblem:
        """The problem of the operators that were added."""
        edges = tuple(Edge(pair, cost) for pair, cost in self._pair_cost.items() if cost.any())
        return StrategyProblem(tuple(self._node_cost), edges)

    def add(self, position: int) -> None:
        """Add the costs of an operator, and of resharding its inputs."""
        op = self._program.ops[position]
        leader = None if chooses(op) else max(op.inputs, key=lambda read: self._depth[read])
        if leader is None:
            self._new_node(position, op)
        else:
            self._node[position] = self._node[leader]
            shape = self._program.ops[leader].shape
            states = tuple(s and follow(op, self._case, s.spec, shape) for s in self.states[leader])
            self.states[position] = states
            self._node_cost[self._node[position]] += [inf if state is None else state.cost for state in states]
        for number, read in enumerate(op.inputs):
            if read != leader:
                self._reshard(read, position, None if leader is not None else number)

    def _new_node(self, position: int, op: TensorOp) -> None:
        """Make a node of an operator that chooses."""
        ranks = [len(self._program.ops[read].shape) for read in op.inputs]
        found = strategies(op, self._case, ranks)
        must = self._case.must_split.get(position)
        if must is not None:
            found = tuple(strategy for strategy in found if strategy.spec[must.axis] == must.mesh_axis)
            if not found:
                raise InputError(
                    f"must_split asks {op.name} to split axis {must.axis} on mesh axis {must.mesh_axis}, which no "
                    f"strategy does on mesh {self._case.name}; ask for another axis, or leave it out"
                )
        self._node[position] = len(self.chosen)
        self.chosen.append(position)
        self.specs.append(tuple(strategy.spec for strategy in found))
        self.states[position] = found
        self._node_cost.append(np.asarray([strategy.cost for strategy in found]))

    def _reshard(self, read: int, position: int, wanted: int | None) -> None:
        """Add the resharding of an input to the demands on it, or to the operator's own spec."""
        tensor = self._program.ops[read]
        if not tensor.shape:
            return  # a number has nothing to split
        price: dict[tuple[Spec, Spec], float] = {}

        def cost(have: Strategy | None, state: Strategy | None) -> float:
            if have is None or state is None:
                return 0.0  # forbidden already
            want = state.spec if wanted is None else state.wants[wanted]
            if want is None:
                return 0.0
            if (have.spec, want) not in price:
                price[have.spec, want] = resharding(self._case, tensor.n_bytes, have.spec, want)
            return price[have.spec, want]

        self._together(read, position, cost)

    def tie(self, one: int, other: int) -> None:
        """Forbid different specs."""
        self._together(one, other, lambda a, b: inf if a is None or b is None or a.spec != b.spec else 0.0)

    def _together(self, one: int, other: int, cost: Callable[[Strategy | None, Strategy | None], float]) -> None:
        """Add a cost that depends on what two operators do."""
        table = np.asarray([[cost(a, b) for b in self.states[other]] for a in self.states[one]])
        u, v = self._node[one], self._node[other]
        if u == v:
            self._node_cost[u] += table.diagonal()
        elif u < v:
            self._pair_cost[u, v] = self._pair_cost.get((u, v), 0.0) + table
        else:
            self._pair_cost[v, u] = self._pair_cost.get((v, u), 0.0) + table.T
