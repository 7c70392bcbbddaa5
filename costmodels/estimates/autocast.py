"""Dtypes of a network that PyTorch runs under autocast, as networks in float16 are: parameters stay in float32.

::

    image 32 ─cast─► conv 16 ──► + position 32 ══32══► layer_norm 16 ──► linear 16 ──► softmax 32 ─cast─► @ 16

Products and convolutions compute in 16 bits, softmax and some functions in 32; other operators take the widest of their
inputs, so that a stream to which a parameter is added stays wide to the end. Each change of dtype in front of an
operator is a pass over its input. The lists are those of PyTorch
(https://pytorch.org/docs/stable/amp.html#autocast-op-reference), but for layer and group norms, which PyTorch computes
in 32 bits: published figures of timm fit ones in 16 bits better (its ``fast_norm``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from costmodels.operators.views import bases, operation
from graphs.common.arrays import Floats
from graphs.ir import Graph, Role, Tensor
from graphs.operator_kinds import aten_kinds

NARROW, WIDE = "float16", "float32"
NARROW_BYTES, WIDE_BYTES = 2.0, 4.0

NARROWING = aten_kinds(
    "conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d linear mm bmm matmul mv addmm "
    "baddbmm addbmm addmv einsum prelu scaled_dot_product_attention lstm gru rnn_tanh rnn_relu lstm_cell gru_cell "
    "layer_norm native_layer_norm group_norm native_group_norm"
)
"""Kinds that are computed in 16 bits."""

CONVERTED = aten_kinds(
    "norm linalg_vector_norm logsumexp exp expm1 log log10 log1p "
    "log2 pow rsqrt reciprocal softplus sinh cosh tan acos asin erfinv cdist cosine_similarity "
    "upsample_bilinear2d upsample_bicubic2d upsample_nearest2d upsample_linear1d upsample_trilinear3d "
    "fft_rfft2 fft_irfft2 fft_rfft fft_irfft fft_fft2 fft_ifft2"
)
"""Kinds whose inputs autocast converts to 32 bits in a pass of its own."""

WIDENING = aten_kinds("softmax _softmax log_softmax cumsum cumprod prod sum")
"""Kinds that read 16 bits and write 32."""

FIRST = aten_kinds("batch_norm instance_norm dropout type_as embedding index index_select gather to _to_copy")
"""Kinds whose result has the dtype of their first input, whatever the others have."""


@dataclass(frozen=True)
class Autocast:
    """A network with the dtypes that its tensors have under autocast."""

    graph: Graph  # the tensors that are not read and written in float16 anyway have another dtype
    cast_bytes: Floats  # [n_ops], read and written to convert the operator's inputs
    n_casts: Floats  # [n_ops], how many inputs are converted


def runs_in_autocast(graph: Graph) -> bool:
    """Return whether a network is estimated as it runs under autocast: its widest parameters are float16.

    Who has weights of 16 bits without autocast uses bfloat16, as the range of float16 is small.
    """
    floating = {t.dtype for t in graph.tensors if t.role is Role.PARAMETER and "float" in t.dtype}
    return NARROW in floating and WIDE not in floating and "float64" not in floating


def under_autocast(graph: Graph) -> Autocast:
    """Return the network as it runs under autocast."""
    given, base = graph.tensor, bases(graph)
    wide = {t.name for t in graph.tensors if t.dtype == NARROW and t.role is not Role.ACTIVATION}
    cast_bytes, n_casts = np.zeros(len(graph.ops)), np.zeros(len(graph.ops))
    for i, op in enumerate(graph.ops):
        name = operation(op.leading.kind)
        floating = [each for each in dict.fromkeys(op.inputs) if given[each].dtype in (NARROW, WIDE)]
        widens = _widens(name, floating, wide, given)
        wide.update(each for each in op.outputs if widens and given[each].dtype == NARROW)
        if op.outputs and all(each in base for each in op.outputs):
            continue
        converted = _converted(name, floating, wide, given)
        n_casts[i] = len(converted)
        cast_bytes[i] = (NARROW_BYTES + WIDE_BYTES) * sum(given[each].n_elements for each in converted)
    tensors = tuple(replace(t, dtype=WIDE) if t.name in wide else t for t in graph.tensors)
    return Autocast(replace(graph, tensors=tensors), cast_bytes, n_casts)


def _converted(name: str, floating: list[str], wide: set[str], given: Mapping[str, Tensor]) -> list[str]:
    """Return the floating-point inputs that are converted in a pass of their own."""
    if name in NARROWING:
        return [each for each in floating if each in wide]
    if name in CONVERTED:
        return [each for each in floating if each not in wide and given[each].dtype == NARROW]
    return []


def _widens(name: str, floating: list[str], wide: set[str], given: Mapping[str, Tensor]) -> bool:
    """Return whether an operator with these floating-point inputs writes 32 bits."""
    if name in NARROWING:
        return False
    if name in CONVERTED | WIDENING:
        return True
    counted = floating[:1] if name in FIRST else floating
    return any(each in wide and given[each].shape for each in counted)  # numbers without a dimension do not widen
