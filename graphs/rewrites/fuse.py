"""Fusions: groups of operators that one kernel computes, as one operator each.

::

    pad ─► conv ─► bn ─► relu ─► pool          conv (members pad, conv, bn, relu) ─► pool

A fused operator reads and writes what crosses the border of its group, under the names of the network, and has the name
of the member that multiplies by weights, else of its first one. Its members, run one after another, compute the same:
they run where no kernel knows the group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from graphs.common.errors import InputError
from graphs.footprint import Footprint, Run
from graphs.ir import STATE, Graph, Op, Role
from graphs.operator_kinds import plain
from graphs.rewrites.patterns import ANCHORS, ONE_PASS, Readers, behind_border, chain, constants

KIND, SCAN = "fused", "scan"
"""The kinds of operators that one kernel may compute, and of loops whose members always run one after another."""


@dataclass(frozen=True)
class Fuse:
    """The fusion of some groups of operators.

    Attributes:
        groups: names of the operators of each group, in their order.
        kind: of the operators that the groups become, `KIND` or `SCAN`.
    """

    groups: tuple[tuple[str, ...], ...]
    kind: str = KIND

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with an operator for each group, where the last member of the group was.

        Operators that read nothing but what the network holds are where their first member was.

        Raises:
            InputError: if a group is empty or shares an operator with another one, an operator does not exist or is
                fused already, or something inside a group is read before the group is complete.
        """
        group_of = {name: group for group in self.groups for name in group}
        if not all(self.groups) or len(group_of) < sum(map(len, self.groups)):
            raise InputError("a group of fused operators is empty, or shares an operator with another one; plan again")
        for name in group_of:
            if name not in graph.index:
                raise InputError(f"operator '{name}' is to be fused, and '{graph.name}' has none; plan for this model")
            if graph.ops[graph.index[name]].members:
                raise InputError(f"operator '{name}' is fused already; fuse the network as it was imported")
        read = Readers.in_graph(graph).of
        fused = {_place(graph, group): _fused(graph, group, read, self.kind) for group in self.groups}
        ops = (
            fused.get(number, op) for number, op in enumerate(graph.ops) if op.name not in group_of or number in fused
        )
        return replace(graph, ops=tuple(ops))


def find_fusions(graph: Graph) -> Fuse:
    """Return the groups that there are kernels for.

    They are what never changes, convolutions and products with what follows them, norms, and sums.
    """
    readers = Readers.in_graph(graph)
    once = constants(readers)
    taken = {number for group in once for number in group}
    groups = [tuple(graph.ops[member].name for member in group) for group in once]
    for number in range(len(graph.ops)):
        if number in taken:
            continue
        start = behind_border(readers, number)
        members, steps = chain(readers, start, taken) if _is_anchor(graph, graph.ops[start]) else ([], [])
        found = (find(readers, number) for find in ONE_PASS)
        if start > number and members:
            members = [number, *members]
        elif not steps:
            members = next(filter(None, found), [])
        if members and taken.isdisjoint(members):
            taken.update(members)
            groups.append(tuple(graph.ops[member].name for member in sorted(members)))
    return Fuse(tuple(groups))


def _is_anchor(graph: Graph, op: Op) -> bool:
    """Return whether an operator multiplies float32 numbers by weights."""
    if plain(op.kind) not in ANCHORS or graph.tensor[op.outputs[0]].dtype != "float32":
        return False
    return any(graph.tensor[name].role is Role.PARAMETER for name in op.inputs)


def _place(graph: Graph, group: Sequence[str]) -> int:
    """Return the index of the member of a group that the fused operator stands for."""
    numbers = [graph.index[name] for name in group]
    written = {name for number in numbers for name in graph.ops[number].outputs}
    read = {name for number in numbers for name in graph.ops[number].inputs} - written
    return min(numbers) if all(graph.tensor[name].role in STATE for name in read) else max(numbers)


def _fused(graph: Graph, group: Sequence[str], read: Mapping[str, Sequence[int]], kind: str) -> Op:
    members = tuple(graph.ops[graph.index[name]] for name in sorted(group, key=graph.index.__getitem__))
    numbers = {graph.index[op.name] for op in members}
    written = [name for op in members for name in op.outputs]
    inputs = tuple(dict.fromkeys(name for op in members for name in op.inputs if name not in set(written)))
    leaving = tuple(name for name in written if not set(read.get(name, ())) <= numbers)
    outputs = leaving or members[-1].outputs  # a part of a split operator may have no reader
    inner_bytes = sum(graph.tensor[name].n_bytes for name in written if name not in outputs)
    extra = max((op.footprint.inference.extra_bytes for op in members if op.footprint), default=0)
    run = Run(tuple(graph.tensor[name].n_bytes for name in outputs), inner_bytes + extra)
    leading = next((op for op in members if _is_anchor(graph, op)), members[0])
    return Op(leading.name, kind, inputs, outputs, leading.module, {}, members, Footprint(run))
