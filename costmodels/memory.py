"""Bytes that operators keep for the whole run, and bytes that one micro-batch needs on its way."""

import numpy as np

from costmodels.table import Floats
from costmodels.views import bases
from costmodels.workload import Workload
from graphs.ir import Graph, Role


def op_bytes(graph: Graph) -> Floats:
    """[n_ops], parameters and buffers that live with each operator.

    A parameter with several readers counts once, at the first: they share a device (see `together`). A buffer is
    copied to wherever it is read, so it counts for each of its readers.
    """
    seen: set[str] = set()
    result = np.zeros(len(graph.ops))
    for i, op in enumerate(graph.ops):
        for tensor in graph.state(op):
            if tensor.name not in seen:
                result[i] += tensor.n_bytes
            if tensor.role is Role.PARAMETER:
                seen.add(tensor.name)
    return result


def together(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """Groups of two or more operators that share a device because they read the same parameters, directly or in turn.

    Indices ascend within a group, and groups by their first index.
    """
    leader = list(range(len(graph.ops)))

    def find(i: int) -> int:
        while leader[i] != i:
            leader[i] = leader[leader[i]]
            i = leader[i]
        return i

    first_reader: dict[str, int] = {}
    for i, op in enumerate(graph.ops):
        for tensor in graph.state(op):
            if tensor.role is Role.PARAMETER:
                a, b = find(first_reader.setdefault(tensor.name, i)), find(i)
                leader[max(a, b)] = min(a, b)
    groups: dict[int, list[int]] = {}
    for i in range(len(graph.ops)):
        groups.setdefault(find(i), []).append(i)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def peak_activation_bytes(graph: Graph) -> int:
    """The most that inputs and activations take at once while the operators run in the order of the graph.

    A tensor is there from the operator that writes it (an input: from the start) to its last reader, a result to the
    end; during an operator its inputs and its outputs are both there. A view keeps the storage alive that it shows.
    """
    base = bases(graph)
    n_ops = len(graph.ops)
    born: dict[str, int] = dict.fromkeys(graph.inputs, 0)
    last: dict[str, int] = dict.fromkeys(graph.inputs, 0)
    for i, op in enumerate(graph.ops):
        for name in (*op.inputs, *op.outputs):
            storage = base.get(name, name)
            if graph.tensor[storage].role in (Role.INPUT, Role.ACTIVATION):
                born.setdefault(storage, i)
                last[storage] = i
    for name in graph.outputs:
        storage = base.get(name, name)
        if storage in born:
            last[storage] = n_ops
    change = [0] * (n_ops + 2)
    for storage, start in born.items():
        change[start] += graph.tensor[storage].n_bytes
        change[last[storage] + 1] -= graph.tensor[storage].n_bytes
    return int(np.cumsum(change).max())


def working_bytes(graph: Graph, workload: Workload) -> float:
    """Bytes that a device needs besides, wherever the graph is cut: the activations of all micro-batches in flight."""
    return float(peak_activation_bytes(graph) * workload.in_flight)
