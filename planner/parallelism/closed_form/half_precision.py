"""in_bfloat16: a network as it trains with products in bfloat16; masks, statistics and what the caller gives stay."""

from dataclasses import replace

from graphs.footprint import Backward, Footprint, Gradient, Run, Storage
from graphs.ir import Graph, Op, Role

WIDE, NARROW = "float32", "bfloat16"
SHARE = 2  # bytes of the one for each byte of the other
CONVERTED = (Role.PARAMETER, Role.ACTIVATION)


def in_bfloat16(graph: Graph) -> Graph:
    """Return the network with all float32 parameters and results in bfloat16."""
    wide = {tensor.name for tensor in graph.tensors if tensor.role in CONVERTED and tensor.dtype == WIDE}
    tensors = (replace(tensor, dtype=NARROW) if tensor.name in wide else tensor for tensor in graph.tensors)
    return replace(graph, tensors=tuple(tensors), ops=tuple(_converted(op, wide) for op in graph.ops))


def _converted(op: Op, wide: set[str]) -> Op:
    """Return the operator with storages of half the bytes."""
    if op.footprint is None:
        return op

    def storage(name: str, recorded: Storage) -> Storage:
        return recorded // SHARE if isinstance(recorded, int) and name in wide else recorded

    def run(recorded: Run) -> Run:
        return replace(recorded, writes=tuple(map(storage, op.outputs, recorded.writes)))

    def backward(recorded: Backward) -> Backward:
        given = (Gradient(name, storage(name, own), viewed) for name, own, viewed in recorded.gradients)
        return replace(recorded, gradients=tuple(given))

    known = op.footprint
    training = None if known.training is None else run(known.training)
    back = None if known.backward is None else backward(known.backward)
    return replace(op, footprint=Footprint(run(known.inference), training, back))
