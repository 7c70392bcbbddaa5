"""The exact peak of devices for one cut of a graph, which what adds up operator by operator may not fall below."""

from collections.abc import Sequence

from costmodels.memory.device import LOOSE_BYTES
from costmodels.memory.footprints import Footprints
from costmodels.memory.optimizers import OPTIMIZERS
from costmodels.memory.passes import inference_bytes, training_passes
from costmodels.workload import Workload
from graphs.ir import STATE, Graph, Op


def device_bytes(graph: Graph, workload: Workload, stages: Sequence[Sequence[int]] | None = None) -> tuple[int, ...]:
    """[n_stages], peak bytes of each device, with one stage of the pipeline on each.

    ::

        parameters, buffers, states [, gradients]  +  the maximum of
            (held - 1) * kept + forward       one forward pass, while other micro-batches wait for their backward passes
            (held - 1) * kept + backward      one backward pass, with the gradients of its activations
            gradients + inputs + results + temporaries of the optimizer

    With recomputation, waiting micro-batches keep only the stage's inputs and the network's results. The stages have
    indices of operators, in the order of the pipeline; all are in one stage if left out. In inference, a device may
    hold all micro-batches in flight.

    """
    stages = stages or [range(len(graph.ops))]
    parts = [[graph.ops[i] for i in sorted(stage)] for stage in stages]
    if workload.trains:
        return tuple(
            _training_bytes(graph, workload, ops, held(workload, len(parts), number))
            for number, ops in enumerate(parts)
        )
    return tuple(_resident_bytes(graph, ops) + workload.in_flight * inference_bytes(graph, ops) for ops in parts)


def _resident_bytes(graph: Graph, ops: Sequence[Op]) -> int:
    """Bytes of the parameters and buffers of these operators, each counted once."""
    return sum({tensor.name: tensor.n_bytes for op in ops for tensor in graph.state(op)}.values())


def _training_bytes(graph: Graph, workload: Workload, ops: Sequence[Op], held: int) -> int:
    read = {name for op in ops for name in op.inputs}
    sizes = [graph.tensor[name].n_bytes for name in Footprints(graph).parameters if name in read]
    optimizer = OPTIMIZERS[workload.optimizer]
    accumulating = workload.micro_batches > 1
    passes = training_passes(graph, ops, accumulating)
    resident_bytes = _resident_bytes(graph, ops) + optimizer.state_bytes(sizes) + accumulating * sum(sizes)
    waiting_bytes = (held - 1) * (_ends(graph, ops) if workload.recompute == "full" else passes.kept_bytes)
    on_way_bytes = waiting_bytes + max(passes.forward_bytes, passes.backward_bytes)
    step_bytes = passes.left_bytes + optimizer.step_bytes(sizes)
    return resident_bytes + max(on_way_bytes, step_bytes) + LOOSE_BYTES


def _ends(graph: Graph, ops: Sequence[Op]) -> int:
    """Bytes that a stage of these operators keeps of each micro-batch with recomputation."""
    written = {name for op in ops for name in op.outputs}
    ends = {name for op in ops for name in op.inputs} - written | written.intersection(graph.outputs)
    return sum(tensor.n_bytes for tensor in map(graph.tensor.__getitem__, ends) if tensor.role not in STATE)


def held(workload: Workload, n_stages: int, stage: int) -> int:
    """The most micro-batches whose saved activations a stage holds at once: under 1F1B fewer in later stages."""
    return min(n_stages - stage, workload.micro_batches) if workload.schedule == "1f1b" else workload.micro_batches
