"""NetworkLayers: the layers of a network, as a pipeline cuts it and as recomputation and ZeRO treat it.

::

    ids ──► embed │ layers.0 │ layers.1 │ layers.2 │ norm ──► head          the largest stack of equal modules, with
            stem    layer      layer      layer      head                   what comes before and after it

    x ──► conv ─► relu │ conv ─► relu ─► pool │ flatten ─► linear           without a stack: cut where one tensor
              layer             layer                 layer                 crosses; each layer has parameters

An operator that depends on no parameter, such as a mask, belongs to no layer: each stage that needs it computes it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import itemgetter

from costmodels.operators.views import differentiated
from graphs.common.brief import brief
from graphs.common.errors import InputError
from graphs.ir import Graph, Op, Role
from graphs.operator_kinds import changes


@dataclass(frozen=True)
class NetworkLayers:
    """The operators of a network by layers.

    Attributes:
        graph: the network.
        stem: operators before the first layer.
        layers: operators of each layer.
        head: operators after the last layer.
    """

    graph: Graph
    stem: tuple[int, ...]
    layers: tuple[tuple[int, ...], ...]
    head: tuple[int, ...]

    __repr__ = brief

    @classmethod
    def of(cls, graph: Graph) -> "NetworkLayers":
        """Return the layers of a network.

        Raises:
            InputError: for a network without parameters.
        """
        carried = carried_of(graph)
        moving = [number for number, op in enumerate(graph.ops) if not carried.isdisjoint(op.outputs)]
        if not moving:
            raise InputError(f"'{graph.name}' has no parameters, so it has no layers to train")
        starts = _stack(graph, moving) or _narrow(graph, moving)
        parts = [tuple(moving[start:stop]) for start, stop in pairwise([0, *starts, len(moving)])]
        return cls(graph, parts[0], tuple(parts[1:-1]), parts[-1])

    @cached_property
    def carried(self) -> frozenset[str]:
        """Tensors that depend on parameters, or on random numbers: only one stage computes them."""
        return carried_of(self.graph)

    def stages(self, counts: Sequence[int]) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Return the blocks of each stage, from its number of layers: the layers, and the stem or the head.

        Raises:
            InputError: if the numbers do not add up to the layers.
        """
        if sum(counts) != len(self.layers) or min(counts) < 1:
            near = ", ".join(map(str, even_counts(len(self.layers), min(len(counts), len(self.layers)))))
            raise InputError(
                f"stages of {', '.join(map(str, counts))} layers do not fit '{self.graph.name}', which has "
                f"{len(self.layers)}; the nearest that work are {near}"
            )
        blocks, first = [], 0
        for count in counts:
            blocks.append(list(self.layers[first : first + count]))
            first += count
        if self.stem:
            blocks[0].insert(0, self.stem)
        if self.head:
            blocks[-1].append(self.head)
        return tuple(map(tuple, blocks))

    def free(self, blocks: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Return the operators outside of all layers that some blocks need, directly or not."""
        needed = {name for block in blocks for number in block for name in self.graph.ops[number].inputs}
        if self.layers and blocks[-1][-1] == max((*self.layers[-1], *self.head)):
            needed.update(self.graph.outputs)
        found = []
        for number in reversed(range(len(self.graph.ops))):
            op = self.graph.ops[number]
            if self.carried.isdisjoint(op.outputs) and not needed.isdisjoint(op.outputs):
                found.append(number)
                needed.update(op.inputs)
        return tuple(reversed(found))


def even_counts(layers: int, stages: int) -> tuple[int, ...]:
    """Return the number of layers of each stage; numbers differ by at most one."""
    return tuple(layers // stages + (stage < layers % stages) for stage in range(stages))


def carried_of(graph: Graph) -> frozenset[str]:
    """Return the tensors that depend on parameters or on random numbers."""
    carried = {tensor.name for tensor in graph.tensors if tensor.role is Role.PARAMETER}
    parameters = frozenset(carried)
    for op in graph.ops:
        if changes(op) or not carried.isdisjoint(op.inputs):
            carried.update(op.outputs)
    return frozenset(carried - parameters)


def learned_of(graph: Graph) -> frozenset[str]:
    """Return the tensors that have a gradient."""
    return frozenset(differentiated(graph))


def is_batch_norm(op: Op) -> bool:
    """Return whether an operator normalises a sample by statistics of its whole micro-batch."""
    return "batch_norm" in op.kind and bool(dict(op.attrs).get("training", True))


def _stack(graph: Graph, moving: Sequence[int]) -> list[int] | None:
    """Return where the layers of the largest stack of equal modules begin and the last one ends; None without one."""
    best: tuple[int, list[int]] = (0, [])
    for container in dict.fromkeys(name for number in moving for name, _ in _containers(graph.ops[number])):
        members = _members(graph, moving, container)
        forms = {_form(graph, [moving[position] for position in each]) for each in members}
        one_by_one = all(one[-1] < other[0] for one, other in pairwise(members))
        if len(members) > 1 and len(forms) == 1 and one_by_one:
            size = sum(n for _, n in next(iter(forms))) * len(members)
            best = max(best, (size, [*(each[0] for each in members), members[-1][-1] + 1]), key=itemgetter(0))
    return best[1] or None


def _members(graph: Graph, moving: Sequence[int], container: str) -> list[list[int]]:
    """Return the positions of the operators of each numbered module in a list of modules."""
    members: dict[str, list[int]] = {}
    for position, number in enumerate(moving):
        key = dict(_containers(graph.ops[number])).get(container)
        if key is not None:
            members.setdefault(key, []).append(position)
    return list(members.values())


def _containers(op: Op) -> Iterator[tuple[str, str]]:
    """Yield the numbered modules that an operator is in: the path of the list, and the number in it."""
    parts = op.module.split(".")
    for position, part in enumerate(parts):
        if part.isdigit():
            yield ".".join(parts[:position]), part


def _form(graph: Graph, ops: Sequence[int]) -> tuple[tuple[str, int], ...]:
    """Return kinds of operators and sizes of the parameters that they read; equal layers have equal forms."""
    return tuple(
        (graph.ops[number].kind, graph.tensor[name].n_elements)
        for number in ops
        for name in graph.ops[number].inputs
        if graph.tensor[name].role is Role.PARAMETER
    )


def _narrow(graph: Graph, moving: Sequence[int]) -> list[int]:
    """Return where layers begin that have parameters and read a single tensor from before; there is no stem."""
    last_read: Mapping[str, int] = {
        name: position for position, number in enumerate(moving) for name in graph.ops[number].inputs
    } | dict.fromkeys(graph.outputs, len(moving))
    carried = carried_of(graph)
    starts, crossing = [0], set[str]()
    for position, number in enumerate(moving):
        op = graph.ops[number]
        weighs = any(graph.tensor[name].role is Role.PARAMETER for name in op.inputs)
        weighed = any(
            graph.tensor[name].role is Role.PARAMETER
            for before in moving[starts[-1] : position]
            for name in graph.ops[before].inputs
        )
        if weighs and weighed and len(crossing) == 1:
            starts.append(position)
        crossing |= carried.intersection(op.outputs)
        crossing = {name for name in crossing if last_read.get(name, -1) > position}
    return [*starts, len(moving)]
