"""Kernels: figures of a network's operators that decide how near to its peaks a device computes them.

::

    product       rows [m, k] by columns [k, n], ``count`` times       linear, matmul, attention's two in one
    convolution   m = positions of the output, n = channels out, k = channels in * window, count = groups
    others        the bytes that they read and write
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from costmodels.estimates.autocast import NARROWING, Autocast, runs_in_autocast, under_autocast
from costmodels.operators.flops import Work, work_of
from costmodels.operators.formulas import EXPERTS_PRODUCTS, experts_hit, experts_share
from costmodels.operators.views import STRIDING_KINDS, bases, operation
from graphs.common.arrays import Floats
from graphs.ir import ITEM_BYTES, Graph, Op, Tensor
from graphs.operator_kinds import aten_kinds

KernelKind: TypeAlias = Literal[
    "product",
    "small product",
    "convolution",
    "grouped convolution",
    "depthwise convolution",
    "large depthwise convolution",
    "attention",
    "recurrence",
    "normalization",
    "batch normalization",
    "softmax",
    "element-wise",
    "copy",
    "reduction",
    "irregular",
    "view",
]
"""Kinds of kernels, each with shares of peaks of its own."""

KERNEL_KINDS: tuple[KernelKind, ...] = get_args(KernelKind)
COMPUTING = KERNEL_KINDS[: KERNEL_KINDS.index("normalization")]
"""Kinds whose arithmetic counts besides their bytes."""

DTYPES = tuple(ITEM_BYTES)
STEP_LAUNCHES = 3.0  # kernels of each step of a recurrence
LARGE_WINDOW = 5  # side of a depthwise window, above which libraries have no kernel of its own for it
ALIGNED = 8  # channels, or terms of a sum, that a tensor core takes at once
SMALL_SIDE = 64  # rows or columns of a product, below which tiles are mostly empty

_CONVOLUTIONS = aten_kinds(
    "conv1d conv2d conv3d convolution _convolution conv_transpose1d conv_transpose2d conv_transpose3d"
)
_SLICES = aten_kinds("slice narrow split split_with_sizes chunk tensor_split")
_CONTIGUOUS = aten_kinds("linear layer_norm native_layer_norm rms_norm")
_EXPERTS = aten_kinds(EXPERTS_PRODUCTS)
_KINDS: dict[KernelKind, frozenset[str]] = {
    "product": aten_kinds("linear mm bmm matmul mv dot addmm baddbmm addbmm addmv einsum bilinear inner") | _EXPERTS,
    "attention": aten_kinds(
        "scaled_dot_product_attention _scaled_dot_product_flash_attention "
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention "
        "_scaled_dot_product_cudnn_attention"
    ),
    "recurrence": aten_kinds("lstm gru rnn_tanh rnn_relu"),
    "normalization": aten_kinds(
        "layer_norm native_layer_norm group_norm native_group_norm instance_norm rms_norm _fused_rms_norm var std "
        "var_mean std_mean linalg_vector_norm norm"
    ),
    "batch normalization": aten_kinds(
        "batch_norm _native_batch_norm_legit_no_training _native_batch_norm_legit native_batch_norm"
    ),
    "softmax": aten_kinds("softmax _softmax log_softmax _log_softmax"),
    "copy": aten_kinds(
        "cat stack clone contiguous reshape reshape_as flatten ravel pad constant_pad_nd reflection_pad2d roll to "
        "_to_copy type_as copy repeat repeat_interleave tile flip pixel_shuffle pixel_unshuffle channel_shuffle im2col "
        "col2im unfold slice_scatter rot90 expand hstack vstack"
    ),
    "reduction": aten_kinds(
        "mean sum amax amin max min prod any all argmax adaptive_avg_pool1d adaptive_avg_pool2d _adaptive_avg_pool2d "
        "adaptive_max_pool2d max_pool2d max_pool2d_with_indices max_pool1d avg_pool1d avg_pool2d avg_pool3d max_pool3d "
        "cumsum cumprod logsumexp cross_entropy_loss"
    ),
    "irregular": aten_kinds(
        "sort argsort topk kthvalue median unique_consecutive embedding embedding_bag index index_select index_put "
        "gather scatter scatter_add index_add take take_along_dim fft_rfft2 fft_irfft2 fft_rfft fft_irfft fft_fft2 "
        "fft_ifft2 "
        "grid_sampler upsample_bilinear2d upsample_bicubic2d upsample_nearest2d upsample_linear1d upsample_trilinear3d "
        "max_unpool2d nonzero masked_select"
    ),
}
_KIND_OF: dict[str, KernelKind] = {name: kind for kind, names in _KINDS.items() for name in names}


@dataclass(frozen=True)
class Kernels:
    """The figures of each operator, [n_ops] each.

    Operators that are no products have ``m``, ``n``, ``k`` and ``count`` of 1.
    """

    kind: NDArray[np.int64]  # index in `KERNEL_KINDS`
    flop: Floats  # one multiply-add is 2
    n_bytes: Floats  # read and written
    cast_bytes: Floats  # read and written besides, to convert inputs or to make them contiguous
    padded_bytes: Floats  # read and written to give images as many channels as tensor cores take
    n_launches: Floats  # kernels that are started
    m: Floats  # rows of the result
    n: Floats  # columns of the result
    k: Floats  # length of a sum
    count: Floats  # products of this size
    dtype: NDArray[np.int64]  # of the arithmetic, index in `DTYPES`


def network_kernels(graph: Graph, autocast: bool | None = None) -> Kernels:
    """Return the kernels of a network's operators.

    Args:
        graph: with the shapes of one micro-batch.
        autocast: whether it runs under autocast; as `runs_in_autocast` says if left out.

    Raises:
        InputError: for an operator whose inputs or shapes do not fit its kind, in a graph made by hand.
    """
    work = work_of(graph)
    mixed = under_autocast(graph) if (runs_in_autocast(graph) if autocast is None else autocast) else None
    n_bytes = _bytes_moved(graph, work, mixed)
    base, n_ops = bases(graph), len(graph.ops)
    kind = np.full(n_ops, KERNEL_KINDS.index("view"))
    sizes, launches, padded_bytes = np.ones((n_ops, 4)), np.zeros(n_ops), np.zeros(n_ops)
    for i, op in enumerate(graph.ops):
        if op.outputs and all(name in base for name in op.outputs) and not op.members:
            continue
        lead, (inputs, outputs) = op.leading, _operands(graph, op)
        found, sizes[i] = _kind_and_sizes(lead, inputs, outputs)
        kind[i], launches[i] = KERNEL_KINDS.index(found), STEP_LAUNCHES if found == "recurrence" else 1.0
        padded_bytes[i] = _padded_bytes(lead, inputs, outputs)
    cast_bytes, casts = (mixed.cast_bytes, mixed.n_casts) if mixed else (np.zeros(n_ops), np.zeros(n_ops))
    copied_bytes = _copied_bytes(graph)
    return Kernels(
        kind,
        work.flop,
        n_bytes,
        cast_bytes + copied_bytes,
        padded_bytes,
        np.where(launches > 0, launches + casts + (copied_bytes > 0), 0.0),
        *(sizes[:, 0], sizes[:, 1], sizes[:, 2], sizes[:, 3]),
        np.array([DTYPES.index(name) for name in work.dtype], dtype=np.int64),
    )


def _operands(graph: Graph, op: Op) -> tuple[list[Tensor], list[Tensor]]:
    """Return inputs and outputs of an operator, of the leading member of a fused one."""
    known, lead = (graph.inside(op) if op.members else graph).tensor, op.leading
    return [known[name] for name in lead.inputs], [known[name] for name in lead.outputs]


def _copied_bytes(graph: Graph) -> Floats:
    """Return [n_ops], bytes read and written by the copy of an input that is a view whose elements do not lie together.

    A linear layer and a layer norm work on rows that lie one after the other, so that dimensions must not have been
    exchanged; a convolution works on whole images, and not on some channels of them.
    """
    moved: set[str] = set()
    sliced: set[str] = set()
    n_bytes = np.zeros(len(graph.ops))
    base = bases(graph)
    for i, op in enumerate(graph.ops):
        name = operation(op.kind)
        first = op.inputs[0] if op.inputs else ""
        if name in STRIDING_KINDS or first in moved:
            moved.update(output for output in op.outputs if output in base)
        if name in _SLICES:
            whole = graph.tensor[first]
            sliced.update(output for output in op.outputs if _has_fewer_channels(graph.tensor[output], whole))
        if (name in _CONTIGUOUS and first in moved) or (name in _CONVOLUTIONS and first in sliced):
            n_bytes[i] = 2.0 * graph.tensor[first].n_bytes
    return n_bytes


def _has_fewer_channels(part: Tensor, whole: Tensor) -> bool:
    """Return whether a part of several images lies apart: the channels of one image lie together."""
    return len(part.shape) == len(whole.shape) > 2 and part.shape[0] > 1 and part.shape[1] < whole.shape[1]


def _padded_bytes(op: Op, inputs: list[Tensor], outputs: list[Tensor]) -> float:
    """Bytes read and written by copies of a convolution's images in 16 bits whose channels are no multiple of eight.

    Tensor cores take eight channels at once (cuDNN pads others,
    https://docs.nvidia.com/deeplearning/performance/dl-performance-convolutional/index.html#channels). The few channels
    of a network's input are not counted.
    """
    if operation(op.kind) not in _CONVOLUTIONS or len(inputs) < 2 or ITEM_BYTES[inputs[1].dtype] != 2:
        return 0.0
    images = [t for t in (inputs[0], outputs[0]) if len(t.shape) == len(inputs[1].shape)]
    return float(sum(2 * t.n_bytes for t in images if t.shape[1] > ALIGNED and t.shape[1] % ALIGNED))


def _bytes_moved(graph: Graph, work: Work, mixed: Autocast | None) -> Floats:
    """Return [n_ops], bytes read and written; under autocast those of the dtypes that tensors have then."""
    if mixed is None:
        return work.n_bytes
    narrow = np.array([operation(op.leading.kind) in NARROWING for op in graph.ops], dtype=bool)
    widened = np.where(narrow, 0.0, mixed.cast_bytes / 3)  # an input that was converted is read in 32 bits, not 16
    return np.where(narrow, work.n_bytes, work_of(mixed.graph).n_bytes + widened)


Sizes: TypeAlias = tuple[float, float, float, float]
_NONE: Sizes = (1.0, 1.0, 1.0, 1.0)


def _kind_and_sizes(op: Op, inputs: list[Tensor], outputs: list[Tensor]) -> tuple[KernelKind, Sizes]:
    name = operation(op.kind)
    if name in _CONVOLUTIONS and len(inputs) > 1:
        return _convolution(op, inputs, outputs)
    found = _KIND_OF.get(name, "element-wise")
    if found == "product":
        sizes = _PRODUCT_SIZES.get(name, _matrices)(op, inputs, outputs)
        return ("small product" if min(sizes[0], sizes[1]) < SMALL_SIDE else "product"), sizes
    if found == "attention":
        query, key = inputs[0].shape, inputs[1].shape
        return found, (float(query[-2]), float(key[-2]), float(query[-1]), float(prod(query[:-2])))
    if found == "recurrence":
        steps = inputs[0].shape[1 if op.attrs.get("batch_first") is True else 0] if len(inputs[0].shape) == 3 else 1
        return found, (1.0, 1.0, 1.0, float(steps))
    return found, _NONE


def _linear(_: Op, inputs: list[Tensor], outputs: list[Tensor]) -> Sizes:
    rows, inner = outputs[0].n_elements / max(outputs[0].shape[-1], 1), inputs[0].shape[-1]
    return float(rows), float(outputs[0].shape[-1]), float(inner), 1.0


def _matrices(op: Op, inputs: list[Tensor], outputs: list[Tensor]) -> Sizes:
    """[.., m, k] by [.., k, n]; an added matrix comes first in the ``add`` kinds."""
    left = next((t.shape for t in inputs if len(t.shape) >= 1), (1,))
    shape = outputs[0].shape if len(outputs[0].shape) > 1 else (1, outputs[0].n_elements)
    number = 1 if "add" in op.kind and len(inputs) > 2 else 0
    inner = (inputs[number].shape or left)[-1]
    return float(shape[-2]), float(shape[-1]), float(inner), float(prod(shape[:-2]))


def _contraction(op: Op, inputs: list[Tensor], outputs: list[Tensor]) -> Sizes:
    m, n, _, count = _matrices(op, inputs, outputs)
    letters: dict[str, int] = {}
    for term, t in zip(str(op.attrs.get("equation", "")).split("->")[0].split(","), inputs, strict=False):
        letters |= dict(zip(term.replace(" ", "").replace("...", ""), t.shape, strict=False))
    return m, n, max(1.0, prod(letters.values()) / max(1, outputs[0].n_elements)), count


def _experts(_: Op, inputs: list[Tensor], outputs: list[Tensor]) -> Sizes:
    """The products of the experts that have rows, each with as many."""
    rows, n = (float(size) for size in outputs[0].shape[-2:])
    count = max(1.0, inputs[1].shape[0] * experts_hit(inputs))
    return rows * experts_share(inputs) / count, n, float(inputs[0].shape[-1]), count


_PRODUCT_SIZES: dict[str, Callable[[Op, list[Tensor], list[Tensor]], Sizes]] = {
    "aten.linear": _linear,
    "aten.einsum": _contraction,
    **dict.fromkeys(_EXPERTS, _experts),
}


def _convolution(op: Op, inputs: list[Tensor], outputs: list[Tensor]) -> tuple[KernelKind, Sizes]:
    image, weight = inputs[0].shape, inputs[1].shape
    given = op.attrs.get("groups", 1)
    groups = given if isinstance(given, int) and given > 0 else 1
    channels = image[1] if len(image) == len(weight) else image[0]
    n_out = outputs[0].shape[1] if len(outputs[0].shape) == len(weight) else outputs[0].shape[0]
    positions = outputs[0].n_elements / max(n_out, 1)
    window = prod(weight[2:])
    sizes = (float(positions), n_out / groups, channels / groups * window, float(groups))
    if groups == 1:
        return "convolution", sizes
    if channels > groups:
        return "grouped convolution", sizes
    return "large depthwise convolution" if max(
        weight[2:], default=1
    ) > LARGE_WINDOW else "depthwise convolution", sizes
