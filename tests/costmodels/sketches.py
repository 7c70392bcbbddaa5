"""Small graphs in a few characters: the role of a tensor is the first letter of its name."""

from collections.abc import Mapping, Sequence
from typing import Any

from graphs.ir import Attr, Graph, Op, Role, Tensor

ROLES = {"x": Role.INPUT, "w": Role.PARAMETER, "b": Role.BUFFER}

Line = tuple[str, str, str] | tuple[str, str, str, Mapping[str, Attr]]
"""Kind, tensors read, tensors written, attributes; names are separated by spaces."""


def sketch(shapes: Mapping[str, Any], lines: Sequence[Line], outputs: str = "") -> Graph:
    """A graph of float32 tensors; a shape may be a pair (shape, dtype) and the i-th operator is called op<i>.

    Tensors are inputs (x...), parameters (w...), buffers (b...) or else activations.
    """
    tensors = []
    for name, shape in shapes.items():
        dims, dtype = shape if shape and isinstance(shape[-1], str) else (shape, "float32")
        tensors.append(Tensor(name, tuple(dims), dtype, ROLES.get(name[0], Role.ACTIVATION)))
    ops = tuple(
        Op(f"op{i}", kind, tuple(reads.split()), tuple(writes.split()), attrs=dict(*attrs))
        for i, (kind, reads, writes, *attrs) in enumerate(lines)
    )
    inputs = tuple(tensor.name for tensor in tensors if tensor.role is Role.INPUT)
    return Graph("sketch", ops, tuple(tensors), inputs, tuple(outputs.split()))


def unrecorded(graph: Graph, training: bool = False) -> tuple[str, ...]:
    """Names of the operators whose memory is taken by rule, as no importer could record it."""
    return tuple(op.name for op in graph.ops if op.footprint is None or (training and op.footprint.backward is None))
