"""Kinds of weights that a language model can be imported with."""

from graphs.ir import Graph, Role

FLOATS = ("float32", "bfloat16", "float16")
WEIGHTS = (*FLOATS, "int8", "int4")
"""As they are kept: int8 with a scale for each row, int4 with one and a zero for `GROUP` elements of a row."""

GROUP = 32
OF_DTYPE = {"uint8": "int4"}  # two to a byte


def kind_of_weights(graph: Graph) -> str:
    """Return the kind of a network's weights: the integers among them, or the dtype that most bytes have."""
    n_bytes: dict[str, int] = {}
    for tensor in graph.tensors:
        if tensor.role is Role.PARAMETER:
            n_bytes[tensor.dtype] = n_bytes.get(tensor.dtype, 0) + tensor.n_bytes
    whole = [dtype for dtype in n_bytes if "int" in dtype]
    dtype = max(whole or n_bytes, key=lambda each: n_bytes[each], default="")
    return OF_DTYPE.get(dtype, dtype)
