"""The memory of devices: bytes that stay, bytes that each micro-batch saves, and bytes for its computation.

::

    device    parameters, buffers, caches, gradients, optimizer states         op_bytes
              saved activations of all micro-batches that the device holds     saved_bytes
              temporary memory of the micro-batch that is computed now         working_bytes

These three add up, operator by operator, wherever a graph is cut.
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from costmodels.memory.footprints import Footprints
from costmodels.memory.optimizers import OPTIMIZERS
from costmodels.memory.passes import inference_bytes, training_passes
from costmodels.workload import Workload
from graphs.caches import users
from graphs.common.arrays import Floats
from graphs.common.groups import least_members
from graphs.ir import STATE, Graph, Role
from graphs.rewrites.scans import unrolled

GROWS = ("cat", "concat", "slice_scatter", "index_copy", "index_put", "scatternd", "tensorscatter")  # kinds, of a cache
LOOSE_BYTES = 4096  # the loss, its gradient, and the scalars of an optimizer's step


def op_bytes(graph: Graph, workload: Workload | None = None) -> Floats:
    """[n_ops], bytes of each operator's parameters, buffers, caches and, in training, gradients and optimizer states.

    A parameter with several readers counts once, at the first reader, since they share a device (see `tied_groups`). A
    buffer counts for each of its readers, since it is copied to them. A frozen parameter has no gradient and no state.
    A cache counts once for each micro-batch in flight, at the first operator that uses it.
    """
    trains = workload is not None and workload.trains
    trained = frozenset(Footprints(graph).parameters) if trains else frozenset()
    seen: set[str] = set()
    result = np.zeros(len(graph.ops))
    for i, op in enumerate(graph.ops):
        for tensor in graph.state(op):
            if tensor.name not in seen:
                result[i] += tensor.n_bytes
                if workload is not None and tensor.name in trained:
                    state_bytes = OPTIMIZERS[workload.optimizer].state_bytes([tensor.n_bytes])
                    result[i] += tensor.n_bytes + state_bytes
            if tensor.role is Role.PARAMETER:
                seen.add(tensor.name)
    return result + (1 if workload is None else workload.in_flight) * lasting_bytes(graph)


def lasting_bytes(graph: Graph) -> Floats:
    """[n_ops], bytes of the caches of one micro-batch that live from call to call, at their first operators.

    See `graphs.ir.Graph.caches`; zeros for a network that keeps nothing.
    """
    n_bytes = np.zeros(len(graph.ops))
    for (cache, _), ops in zip(graph.caches, users(graph), strict=True):
        if ops:
            n_bytes[ops[0]] += graph.tensor[cache].n_bytes
    return n_bytes


def tied_groups(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """Return groups of two or more operators that share a device because they share parameters or caches.

    They share them directly or transitively; for a cache see `graphs.caches.users`.

    Indices ascend within a group, and groups ascend by their first index.
    """
    readers: dict[str, list[int]] = {}
    for i, op in enumerate(graph.ops):
        for tensor in graph.state(op):
            if tensor.role is Role.PARAMETER:
                readers.setdefault(tensor.name, []).append(i)
    groups: dict[int, list[int]] = {}
    for i, first in enumerate(least_members(len(graph.ops), [*readers.values(), *filter(None, users(graph))])):
        groups.setdefault(first, []).append(i)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


together = tied_groups
"""The former name, by which scripts of users ask for it."""


def saved_bytes(graph: Graph, workload: Workload) -> Floats:
    """[n_ops], bytes that an operator's device keeps of each micro-batch from the forward to the backward pass.

    These are the tensors that autograd saves, and the network's inputs and results. A storage counts once, at the first
    operator that saves it, and again on a device that receives it. Zeros in inference.
    """
    kept = training_passes(graph).saved_bytes if workload.trains else {}
    return np.array([float(kept.get(op.name, 0)) for op in graph.ops])


def ends_bytes(graph: Graph, workload: Workload) -> Floats:
    """[n_ops], bytes of the network's inputs at their first readers, and of its results at their writers."""
    n_bytes = np.zeros(len(graph.ops))
    if workload.trains:
        first = {name: i for i, op in reversed(list(enumerate(graph.ops))) for name in op.inputs}
        first |= {name: i for i, op in enumerate(graph.ops) for name in op.outputs}
        for name in dict.fromkeys((*graph.inputs, *graph.outputs)):
            if name in first and graph.tensor[name].role not in STATE:
                n_bytes[first[name]] += graph.tensor[name].n_bytes
    return n_bytes


def gradient_bytes(graph: Graph) -> Floats:
    """[n_ops], bytes of each operator's gradients of trained parameters, each counted as in `op_bytes`."""
    trained = set(Footprints(graph).parameters)
    n_bytes = np.zeros(len(graph.ops))
    for i, op in enumerate(graph.ops):
        for tensor in graph.state(op):
            if tensor.name in trained:
                trained.remove(tensor.name)
                n_bytes[i] += tensor.n_bytes
    return n_bytes


def cache_bytes(graph: Graph) -> Floats:
    """[n_ops], bytes of the caches of one micro-batch before and after the operators that extend or overwrite them.

    A cache, such as the keys and values of earlier tokens, is an input of the network that an operator of `GROWS` reads
    and whose successor is a result of the network.
    Caches that stay on their device are no part of it, see `lasting_bytes`.
    """
    n_bytes, stays = np.zeros(len(graph.ops)), {after for _, after in graph.caches}
    for i, op in enumerate(graph.ops):
        grows = op.kind.removesuffix(".default").rpartition(".")[2].rstrip("_").lower() in GROWS
        before = [name for name in op.inputs if graph.tensor[name].role is Role.INPUT]
        if grows and before and not stays.intersection(op.outputs) and not set(op.outputs).isdisjoint(graph.outputs):
            n_bytes[i] = sum(graph.tensor[name].n_bytes for name in {*before, *op.outputs})
    return n_bytes


def working_bytes(graph: Graph, workload: Workload, parts: Mapping[str, float] = MappingProxyType({})) -> float:
    """Bytes of temporary memory on a device, wherever the graph is cut; it has these parts of parameters, or the whole.

    In inference, they are the activations of all micro-batches in flight. In training, they are either the activations
    that are not saved, gradients of activations and temporaries of one micro-batch, or the step of the optimizer.
    """
    if not workload.trains:
        return float(inference_bytes(unrolled(graph)[0]) * workload.in_flight)
    sizes = [round(graph.tensor[name].n_bytes * parts.get(name, 1.0)) for name in Footprints(graph).parameters]
    step_bytes = OPTIMIZERS[workload.optimizer].step_bytes(sizes)
    passing_bytes = training_passes(graph, accumulating=workload.micro_batches > 1).passing_bytes
    return float(max(passing_bytes, step_bytes) + LOOSE_BYTES)
