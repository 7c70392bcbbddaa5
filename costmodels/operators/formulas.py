"""Formulas for the FLOP and the bytes read of operators by kind, from the shapes of their operands.

Matrix products, convolutions and attention are counted as in `torch.utils.flop_counter`, without biases. Other kinds
are counted in proportion to these: 1 FLOP for each simple element, `FUNCTION` for an exponential and similar functions.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from graphs.ir import ITEM_BYTES, Attr, Tensor
from graphs.operator_kinds import aten_kind

EXPERTS_PRODUCTS = "_grouped_mm transformers.grouped_mm_fallback placement_planner.experts_mm"
"""Kinds of products of rows that are sorted by expert: [rows, k], a matrix [k, n] for each expert, ends of the rows."""

FUNCTION = 20
"""FLOP of one element of exp, tanh, erf and similar functions: a polynomial of about ten terms of two FLOP."""


@dataclass(frozen=True, slots=True)
class Operands:
    """The arguments of a formula: tensors in the order of the operator's arguments, without absent ones."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    attrs: Mapping[str, Attr]

    @property
    def elements(self) -> int:
        """Number of elements written."""
        return sum(t.n_elements for t in self.outputs)


Formula: TypeAlias = Callable[[Operands], float]


def _each(flop: float) -> Formula:
    """``flop`` for every element written."""
    return lambda operands: flop * operands.elements


def _each_read(flop: float) -> Formula:
    """``flop`` for every element of the first input."""
    return lambda operands: flop * operands.inputs[0].n_elements


def _product(number: int = 0) -> Formula:
    """[.., m, k] by [.., k, n], where the input of this number ends with the summed dimension."""
    return lambda operands: 2.0 * operands.elements * operands.inputs[number].shape[-1]


def _inner(operands: Operands) -> float:
    """[.., m, k] by [.., n, k], or a number by a tensor."""
    return 2.0 * operands.elements * (operands.inputs[0].shape[-1] if all(t.shape for t in operands.inputs) else 1)


def experts_share(inputs: Sequence[Tensor]) -> float:
    """The share of all experts that a product of rows has, if it has a range of them: [rows, k], [own, k, n], [all]."""
    return inputs[1].shape[0] / max(inputs[2].shape[0], 1) if len(inputs) > 2 and len(inputs[1].shape) == 3 else 1.0


def experts_hit(inputs: Sequence[Tensor]) -> float:
    """The share of a product's experts that have rows, if each row's expert is any of all with the same chance."""
    if len(inputs) < 3 or len(inputs[1].shape) < 3:
        return 1.0
    rows, experts = inputs[0].shape[0], max(inputs[2].shape[0], 1)
    return float(1 - (1 - 1 / experts) ** rows)


def _experts(operands: Operands) -> float:
    """The rows of the product's own experts, their share of all rows: tokens choose experts alike."""
    return _product()(operands) * experts_share(operands.inputs)


def _convolution(transposed: bool = False) -> Formula:
    """A weight [out, in / groups, *window] is applied at each position of the output, a transposed one of the input."""

    def flop(operands: Operands) -> float:
        image, weight = operands.inputs[:2]
        turned = transposed or operands.attrs.get("transposed") is True
        positions = image.n_elements if turned else operands.elements
        return 2.0 * positions * weight.n_elements / max(weight.shape[0], 1)

    return flop


def _attention(operands: Operands) -> float:
    """Query [.., n, e] by key [.., m, e], softmax, perhaps dropout, by value [.., m, v]."""
    query, key, value = operands.inputs[:3]
    scores = query.n_elements // max(query.shape[-1], 1) * key.shape[-2]
    dropped = operands.attrs.get("dropout_p", 0) not in (0, None)
    return 2.0 * scores * (query.shape[-1] + value.shape[-1]) + dropped * (FUNCTION + 1.0) * scores


def _recurrent(n_states: int) -> Formula:
    """Every weight matrix of every layer and direction is applied to each element of the sequence.

    ``n_states`` is the number of hidden states between the sequence and the weights in the arguments.
    """

    def flop(operands: Operands) -> float:
        positions = operands.inputs[0].n_elements // max(operands.inputs[0].shape[-1], 1)
        weights = sum(t.n_elements for t in _matrices(operands, n_states))
        return 2.0 * positions * weights + FUNCTION * operands.elements

    return flop


def _matrices(operands: Operands, n_states: int) -> list[Tensor]:
    """The weight matrices, alternately for the input and for the hidden state."""
    return [t for t in operands.inputs[1 + n_states :] if len(t.shape) == 2]


def _bilinear(operands: Operands) -> float:
    """A weight [out, in1, in2] between two vectors."""
    rows = operands.elements / max(operands.inputs[2].shape[0], 1)
    return 2.0 * rows * operands.inputs[2].n_elements


def _einsum(operands: Operands) -> float:
    """A loop over all letters, with one multiplication for each factor beyond the first, and one addition."""
    equation = str(operands.attrs.get("equation", "")).replace(" ", "")
    sizes: dict[str, int] = {}
    for term, tensor in zip(equation.split("->")[0].split(","), operands.inputs, strict=False):
        before, _, after = term.partition("...")
        middle = [f"...{i}" for i in range(len(tensor.shape) - len(before) - len(after), 0, -1)]
        for letter, size in zip([*before, *middle, *after], tensor.shape, strict=False):
            sizes[letter] = max(size, sizes.get(letter, 1))
    return float(len(operands.inputs) * math.prod(sizes.values()))


def _pooling(operands: Operands) -> float:
    """1 FLOP for each element of the window of each element written; a single number stands for a square window."""
    size = operands.attrs.get("kernel_size")
    sides = [side for side in (size if isinstance(size, tuple) else (size,)) if isinstance(side, int)]
    n_dimensions = len(operands.inputs[0].shape) - 2
    window = math.prod(sides) ** (n_dimensions if len(sides) == 1 else 1)
    return float(operands.outputs[0].n_elements * window)


def _sort(operands: Operands) -> float:
    """n log n comparisons, as if the whole tensor were one row: at most twice too many."""
    n = operands.inputs[0].n_elements
    return n * math.log2(max(n, 2))


def _fourier(operands: Operands) -> float:
    """5 n log2 n, the usual count."""
    n = max(operands.inputs[0].n_elements, operands.elements)
    return 5 * n * math.log2(max(n, 2))


def _table(entries: Iterable[tuple[Formula, str]]) -> dict[str, Formula]:
    table: dict[str, Formula] = {}
    for formula, names in entries:
        for name in names.split():
            full = aten_kind(name)
            if full in table:
                raise ValueError(f"two formulas for '{full}'")
            table[full] = formula
    return table


FORMULAS: Mapping[str, Formula] = _table(
    [
        (_convolution(), "conv1d conv2d conv3d convolution _convolution mkldnn_convolution"),
        (_convolution(transposed=True), "conv_transpose1d conv_transpose2d conv_transpose3d"),
        (_product(), "linear mm bmm matmul mv dot vdot"),
        (_inner, "inner"),
        (_experts, EXPERTS_PRODUCTS),
        (_product(), "_weight_int8pack_mm _weight_int4pack_mm _weight_int4pack_mm_for_cpu"),
        (_product(1), "addmm baddbmm addbmm addmv"),
        (
            _attention,
            "scaled_dot_product_attention _scaled_dot_product_flash_attention "
            "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention "
            "_scaled_dot_product_cudnn_attention",
        ),
        (_recurrent(2), "lstm lstm_cell"),
        (_recurrent(1), "gru rnn_tanh rnn_relu gru_cell rnn_tanh_cell rnn_relu_cell"),
        (_bilinear, "bilinear"),
        (_einsum, "einsum"),
        (_each_read(4), "batch_norm _native_batch_norm_legit_no_training _native_batch_norm_legit native_batch_norm"),
        (
            _each_read(8),
            "layer_norm native_layer_norm group_norm native_group_norm instance_norm rms_norm _fused_rms_norm "
            "var std var_mean std_mean cosine_similarity cosine_embedding_loss triplet_margin_loss",
        ),
        (
            _each_read(FUNCTION),
            "softmax _softmax log_softmax _log_softmax logsumexp logcumsumexp cross_entropy_loss kl_div "
            "poisson_nll_loss binary_cross_entropy binary_cross_entropy_with_logits soft_margin_loss",
        ),
        (
            _pooling,
            "max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices "
            "avg_pool1d avg_pool2d avg_pool3d lp_pool2d fractional_max_pool2d fractional_max_pool3d",
        ),
        (
            _each_read(1),
            "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d adaptive_max_pool1d "
            "adaptive_max_pool2d adaptive_max_pool3d sum mean prod amax amin aminmax max min argmax argmin any all "
            "cumsum cumprod "
            "linalg_vector_norm norm count_nonzero histc bincount embedding_bag nll_loss mse_loss l1_loss nansum diff "
            "nll_loss_nd nll_loss2d smooth_l1_loss huber_loss hinge_embedding_loss margin_ranking_loss "
            "multi_margin_loss",
        ),
        (_sort, "sort argsort topk kthvalue median unique_consecutive"),
        (
            _fourier,
            "fft_rfft fft_irfft fft_fft fft_ifft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_fftn fft_ifftn stft istft",
        ),
        (_each_read(3), "_weight_norm linalg_norm linalg_matrix_norm pairwise_distance"),
        (
            _each(3),
            "cdist lerp addcmul addcdiv threshold hardtanh hardshrink softshrink hardswish hardsigmoid clamp "
            "clamp_min clamp_max glu",
        ),
        (
            _each(1),
            "add sub rsub mul div neg abs relu relu6 leaky_relu prelu maximum minimum sign floor ceil round trunc frac "
            "floor_divide remainder fmod reciprocal square eq ne lt le gt ge logical_not logical_and logical_or "
            "logical_xor bitwise_not bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__ isnan isinf isfinite "
            "where outer ger kron dist normalize placement_planner.experts_rows",
        ),
        (
            _each(FUNCTION),
            "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt pow sin cos tan asin acos atan atan2 sinh cosh tanh erf "
            "erfc erfinv sigmoid log_sigmoid gelu silu mish elu selu celu softplus softsign logit polar hann_window "
            "hamming_window",
        ),
        (_each(8), "upsample_bilinear2d upsample_bicubic2d upsample_linear1d upsample_trilinear3d grid_sampler"),
        (
            _each(0),
            "cat stack hstack vstack pad constant_pad_nd reflection_pad1d reflection_pad2d replication_pad2d clone "
            "contiguous reshape reshape_as flatten ravel to _to_copy type_as lift_fresh_copy copy repeat "
            "repeat_interleave tile flip roll rot90 tril triu diag masked_fill gather scatter scatter_add index "
            "index_select index_put index_add index_copy take take_along_dim embedding one_hot slice_scatter "
            "select_scatter pixel_shuffle pixel_unshuffle channel_shuffle im2col col2im upsample_nearest1d "
            "upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d "
            "_upsample_nearest_exact3d max_unpool2d max_unpool3d masked_select nonzero "
            "zeros ones full empty arange linspace eye scalar_tensor zeros_like ones_like full_like empty_like "
            "new_zeros new_ones new_full new_empty tril_indices triu_indices",
        ),
        # A random number and a product for each element; inactive dropout is a view.
        (_each_read(FUNCTION + 1.0), "dropout native_dropout feature_dropout alpha_dropout feature_alpha_dropout"),
        (
            _each(FUNCTION),
            "rand randn randint randperm rand_like randn_like randint_like bernoulli uniform normal normal_functional "
            "exponential multinomial poisson rrelu",
        ),
    ]
)
"""FLOP by kind, without its overload."""


def _rows(operands: Operands) -> float:
    """The rows of the table that are written, and the indices."""
    return sum(t.n_bytes for t in operands.outputs) + sum(t.n_bytes for t in operands.inputs[1:])


def _bags(operands: Operands) -> float:
    """One row of the table [rows, width] for each index."""
    table, indices = operands.inputs[:2]
    return indices.n_elements * table.shape[-1] * ITEM_BYTES[table.dtype] + indices.n_bytes


def _sequence(n_states: int) -> Formula:
    """The weights for the hidden state are read again at each step; ``n_states`` as in `_recurrent`."""

    def n_bytes(operands: Operands) -> float:
        first = operands.inputs[0]
        batched = len(first.shape) == 3
        steps = first.shape[1 if batched and operands.attrs.get("batch_first") is True else 0]
        again = sum(t.n_bytes for t in _matrices(operands, n_states)[1::2])
        return sum(t.n_bytes for t in operands.inputs) + max(0, steps - 1) * again

    return n_bytes


def _hit(operands: Operands) -> float:
    """The own rows, the weights of the experts that have rows, and the ends of all."""
    rows, weight, *others = operands.inputs
    n_bytes = rows.n_bytes * experts_share(operands.inputs) + weight.n_bytes * experts_hit(operands.inputs)
    return n_bytes + sum(each.n_bytes for each in others)


READS: Mapping[str, Formula] = _table(
    [
        (_hit, EXPERTS_PRODUCTS),
        (_rows, "embedding index index_select gather take take_along_dim"),
        (_bags, "embedding_bag"),
        (_sequence(2), "lstm"),
        (_sequence(1), "gru rnn_tanh rnn_relu"),
        (
            _each(0),
            "zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty rand_like "
            "randn_like randint_like uniform exponential normal_functional",
        ),
    ]
)
"""Bytes read, for kinds that do not read each input once."""


UNKNOWN: Formula = _each(1)
"""The formula of kinds without a formula of their own."""
