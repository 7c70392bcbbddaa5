"""Quick CPU kernels, of single operators and of fused ones: oneDNN computes a product and what follows in one pass.

Their rounding is another one. PyTorch computes products and convolutions with the library that it was built with, and
keeps images in channels-first layout. Here oneDNN computes all products of activations and weights, with weights that
are packed once, and images are in channels-last layout from the first convolution on. The order of sums differs, and so
do the last digits. PyTorch's compiler does the same with frozen weights (torch/_inductor/fx_passes/mkldnn_fusion.py).

A batch norm is folded into the weights when they are packed; additions and activations are oneDNN's post-operations.
The model keeps its own weights: what is folded is a copy that only the kernel reads.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from graphs.ir import Op, Role
from graphs.kernels import norms
from graphs.kernels.attention import Attention
from graphs.kernels.gelu import is_strided
from graphs.kernels.kernel import Kernel, OutOperator, Pack, Read, Strided, as_it_is, as_they_are, held
from graphs.kernels.multiply import SequenceConvolution, TiledConvolution
from graphs.kernels.onednn import onednn, packs_recurrent
from graphs.kernels.products import (
    PRODUCTS,
    half_product_kernel,
    leading_target,
    multiplication,
    pack_of,
    pack_of_rows,
    product_kernel,
)
from graphs.kernels.recurrent import SequenceGru, SequenceLstm, SequenceRecurrence
from graphs.operator_kinds import plain
from graphs.program.program import Program
from graphs.rewrites.patterns import (
    CONVOLUTIONS,
    MOST_AXES,
    Readers,
    Step,
    adds,
    behind_border,
    border,
    chain,
    find_response_norm,
    find_rms_norm,
    find_scaled_relu,
    find_sum_of_three,
    unchanging,
)


def quick_kernel(program: Program, op: Op) -> Kernel | None:
    """The quick kernel of an operator without gradients.

    Returns:
        None for an operator or a group that no kernel knows, dtypes other than float32 (and bfloat16 for products),
        tensors without elements, weights that the network computes, and a PyTorch without oneDNN.
    """
    inside = program.graph.inside(op)
    if op.members and len(unchanging(inside)) == len(op.members) and held(program, *op.inputs):
        return _constants(program, op)
    if any(0 in tensor.shape for tensor in inside.tensors):
        return None
    if leading_target(program, op) is torch.ops.aten.scaled_dot_product_attention.default:
        return _attention(program, op)
    dtypes = {tensor.dtype for tensor in inside.tensors}
    if not onednn() or dtypes != {"float32"}:
        return half_product_kernel(program, op) if dtypes == {"bfloat16"} and not op.members else None
    if not op.members and (build := SINGLE.get(leading_target(program, op))):
        return build(program, op)
    return _chained(program, op, Readers.in_graph(inside))


def _chained(program: Program, op: Op, readers: Readers) -> Kernel | None:
    """The kernel of a multiplication with what follows it, or of a group that takes one pass."""
    everything = list(range(len(op.members or (op,))))
    for find, build_one in ONE_PASS.items():
        if find(readers, 0) == everything:
            return build_one(program, op)
    build = MULTIPLICATIONS.get(leading_target(program, op))
    args, kwargs = program.arguments(op.leading, str)
    if build is None or kwargs:
        return None
    start = behind_border(readers, 0)
    found, steps = chain(readers, start)
    strided = any(is_strided(program.calls[member.name]) for member in op.members)
    steps = [replace(step, strided=strided and step.function == "gelu") for step in steps]
    return build(program, op, args, steps) if [*range(start), *found] == everything else None


def _constants(program: Program, op: Op) -> Kernel:
    """Compute the results once, when a device gets its weights."""

    def computed(output: int, *buffers: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return program.execute(op, dict(zip(op.inputs, buffers, strict=True)))[output].resolve_neg()

    names = [f"{name}, computed once" for name in op.outputs]
    packs = {name: Pack(op.inputs, partial(computed, number)) for number, name in enumerate(names)}
    return Kernel(op, as_they_are if len(names) > 1 else as_it_is, packs=packs, arguments=tuple(map(Read, names)))


def _scaled_relu(program: Program, op: Op) -> Kernel | None:
    x, gamma, beta, mean, variance = op.members[0].inputs
    eps = _epsilon(program, op.members[0])
    if eps is None:
        return None
    scale, shift = f"{op.name}, scale", f"{op.name}, shift"
    packs = {
        scale: Pack((gamma, variance), partial(_scale, eps=eps)),
        shift: Pack((gamma, beta, mean, variance), partial(_shifted, eps=eps)),
    }
    norm = norms.scaled_relu(program.graph.tensor[x].shape)
    return Kernel(op, norm, packs=packs, arguments=(Read(x), Read(scale), Read(shift)))


def _rms_norm(program: Program, op: Op) -> Kernel | None:
    (weight,) = (name for name in op.members[-1].inputs if program.graph.tensor[name].role is Role.PARAMETER)
    eps = op.members[2].attrs.get("other")
    if not isinstance(eps, float) or not held(program, weight):
        return None
    x = op.members[0].inputs[0]
    norm = norms.rms_norm_kernel(program.graph.tensor[x].shape)
    return Kernel(op, norm, arguments=(Read(x), Read(weight), eps))


def _response_norm(program: Program, op: Op) -> Kernel | None:
    _, _, pad, pool, _, _, scale, shift, power, _ = (member.attrs for member in op.members)
    size, alpha, k = pool.get("kernel_size"), scale.get("other"), shift.get("other")
    n = size[0] if isinstance(size, tuple) else None
    usual = isinstance(n, int) and size == (n, 1, 1) and pad.get("pad") == (0, 0, 0, 0, n // 2, (n - 1) // 2)
    strided = pool.get("stride") not in ((), (1, 1, 1)) or pool.get("divisor_override") is not None
    if not usual or strided or power.get("exponent") != norms.EXPONENT:
        return None
    if not (isinstance(alpha, int | float) and isinstance(k, int | float) and isinstance(n, int)) or k <= 0:
        return None  # of a k of 0, a sum of squares may be 0
    norm = norms.response_norm(program.graph.tensor[op.inputs[0]].shape)
    return Kernel(op, norm, arguments=(Read(op.inputs[0]), n, float(alpha) / n, float(k)))


def _sum_of_three(program: Program, op: Op) -> Kernel:
    (first, second), *_, last = (member.inputs for member in op.members if plain(member.kind) == "aten.add")
    (third,) = (name for name in last if name in op.inputs)
    norm = norms.sum_of_three(program.graph.tensor[op.outputs[0]].shape)
    return Kernel(op, norm, arguments=(Read(first), Read(second), Read(third)))


ONE_PASS = {
    find_response_norm: _response_norm,
    find_scaled_relu: _scaled_relu,
    find_rms_norm: _rms_norm,
    find_sum_of_three: _sum_of_three,
}
"""Builders of the kernel of operators that take one pass, by the function that finds the operators."""


def _convolution(program: Program, op: Op, arguments: Sequence[Any], steps: Sequence[Step]) -> Kernel | None:
    x, weight, *others = arguments
    bias = others[0] if others else None
    pads = next((first for first in op.members[:1] if first is not op.leading), None)
    x = pads.inputs[0] if pads else x
    shape, filters = program.graph.tensor[x].shape, program.graph.tensor[weight].shape
    if len(shape) != len(filters) or not held(program, weight, bias):
        return None
    folds = [step.function for step in steps[:1]] == ["batch_norm"]
    around = border(program.graph, pads) if pads else None
    given = shape, filters, others[1:], folds or bool(bias), steps[1 if folds else 0 :]
    convolution = SequenceConvolution(*given) if len(shape) == 3 else TiledConvolution(*given, around)
    growth = convolution.primitive.growth
    if not folds:
        packs = {weight: Pack((weight,), convolution.pack, growth=growth)}
        return multiplication(op, convolution, packs, (x, weight, bias), steps)
    norm = op.members[2 if pads else 1]
    eps = _epsilon(program, norm)
    if eps is None:
        return None
    _, gamma, beta, mean, variance = norm.inputs
    folded = f"{op.name}, folded"
    packs = {
        weight: Pack((weight, gamma, variance), lambda w, g, v: convolution.pack(_scaled(w, g, v, eps)), growth=growth),
        folded: Pack((gamma, beta, mean, variance, *((bias,) if bias else ())), partial(_shifted, eps=eps)),
    }
    return multiplication(op, convolution, packs, (x, weight, folded), steps)


def _epsilon(program: Program, norm: Op) -> float | None:
    """Return the number that a batch norm adds to variances; None if its weights or statistics change."""
    eps = norm.attrs.get("eps")
    return eps if isinstance(eps, float) and held(program, *norm.inputs[1:]) else None


def _scale(gamma: torch.Tensor, variance: torch.Tensor, eps: float) -> torch.Tensor:
    """Return the factors by which a batch norm multiplies, [channels]."""
    return gamma * torch.rsqrt(variance + eps)


def _scaled(weight: torch.Tensor, gamma: torch.Tensor, variance: torch.Tensor, eps: float) -> torch.Tensor:
    """The weight of a convolution that a batch norm follows."""
    return weight * _scale(gamma, variance, eps).view(-1, *[1] * (weight.dim() - 1))


def _shifted(
    gamma: torch.Tensor,
    beta: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    eps: float,
) -> torch.Tensor:
    """The bias of a convolution that a batch norm follows."""
    return beta + ((0 if bias is None else bias) - mean) * gamma * torch.rsqrt(variance + eps)


def _attention(program: Program, op: Op) -> Kernel | None:
    (*read, mask, dropout, causal), kwargs = _given(program, op, 6)
    tensor = program.graph.tensor
    shapes = [tensor[name].shape for name in read]
    plain = {"float32"} == {tensor[name].dtype for name in op.inputs if tensor[name].dtype != "bool"}
    scale = kwargs.get("scale")
    known = Attention.knows(*shapes) and (scale is None or scale > 0)
    if not plain or dropout or kwargs.keys() - {"scale"} or not known:
        return None
    always = {name for number in unchanging(program.graph) for name in program.graph.ops[number].outputs}
    attention = Attention(shapes, scale, bool(causal), mask in always or held(program, mask))
    return Kernel(op, attention, arguments=tuple(name and Read(name) for name in (*read, mask)))


def _layer_norm(program: Program, op: Op) -> Kernel | None:
    (x, shape, weight, bias, eps), _ = _given(program, op, 5)
    if weight is None or bias is None or len(shape) != 1 or not held(program, weight, bias):
        return None
    norm, both = norms.LayerNorm(program.graph.tensor[x].shape), f"{op.name}, scale and shift"
    packs = {both: Pack((weight, bias), lambda w, b: torch.stack((w, b)))}
    return Kernel(op, norm, packs=packs, arguments=(Read(x), Read(both), 1e-5 if eps is None else eps))


def _softmax(program: Program, op: Op) -> Kernel | None:
    (x, axis, dtype), _ = _given(program, op, 3)
    shape = program.graph.tensor[x].shape
    if dtype is not None or axis not in (-1, len(shape) - 1):
        return None
    return Kernel(op, norms.softmax(shape), arguments=(Read(x),))


def _sum(program: Program, op: Op) -> Kernel | None:
    graph = program.graph
    if not adds(graph, op):
        return None
    writers = (graph.ops[graph.writer[name]].leading for name in op.inputs if name in graph.writer)
    if any(plain(writer.kind) in CONVOLUTIONS for writer in writers):
        return None  # PyTorch keeps the layout of what a convolution has written
    shape = graph.tensor[op.outputs[0]].shape
    return Kernel(op, OutOperator(torch.add, shape), arguments=tuple(map(Read, op.inputs)))


def _concatenation(program: Program, op: Op) -> Kernel | None:
    (tensors, axis), _ = _given(program, op, 2)
    shape = program.graph.tensor[op.outputs[0]].shape
    images = len(shape) == 4 and axis == 1
    known = images or len(shape) <= MOST_AXES
    if not known or any(len(program.graph.tensor[name].shape) != len(shape) for name in op.inputs):
        return None

    def concatenate(*parts: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        return torch.cat(parts, axis or 0, out=out)

    return Kernel(op, OutOperator(concatenate, shape, images), arguments=tuple(map(Read, tensors)))


def _mean(program: Program, op: Op) -> Kernel | None:
    (x, axes), _ = _given(program, op, 2)
    shape, result = (program.graph.tensor[name].shape for name in (x, op.outputs[0]))
    pools = leading_target(program, op) is not torch.ops.aten.mean.dim
    over = list(axes) == [1, 1] if pools else sorted(axis % len(shape) for axis in axes or ()) == [2, 3]
    if len(shape) != 4 or not over:
        return None
    strided = Strided.channels_last(result) if len(result) == 4 else Strided.contiguous(result)
    return Kernel(op, norms.mean_of_pixels(shape, strided), arguments=(Read(x), shape[2] * shape[3]))


def _scaled_channels(program: Program, op: Op) -> Kernel | None:
    args, _ = program.arguments(op, str)
    if len(op.inputs) != 2:
        return None
    x, scale = sorted(args, key=lambda name: -program.graph.tensor[name].n_bytes)
    shape, own = (program.graph.tensor[name].shape for name in (x, scale))
    if len(shape) != 4 or own != (*shape[:2], 1, 1):
        return None
    return Kernel(op, norms.scaled_channels(shape), arguments=(Read(x), Read(scale), shape[2] * shape[3]))


def _recurrent(kind: type[SequenceRecurrence], program: Program, op: Op) -> Kernel | None:
    """Return the kernel of an LSTM or a GRU of one sequence; libraries multiply the rows of several together."""
    if not packs_recurrent(program, op):
        return None
    tensor = program.graph.tensor
    (x, _, names, *_, batch_first), _ = program.arguments(op, str)
    n, steps = tensor[x].shape[:2] if batch_first else tensor[x].shape[1::-1]
    if n != 1:
        return None
    widths, size = [tensor[name].shape[1] for name in names[::4]], tensor[names[1]].shape[1]
    recurrent = kind(steps, widths, size)
    packs: dict[str, Pack] = {}
    for product, inputs, states in zip(recurrent.products, names[::4], names[1::4], strict=True):
        packs |= {inputs: pack_of(product, inputs), states: pack_of_rows(states)}
    return Kernel(op, recurrent, packs=packs, pair=recurrent.pair)


def _given(program: Program, op: Op, count: int) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the first ``count`` positional arguments of an operator, None for those left out, and its keyword ones."""
    args, kwargs = program.arguments(op, str)
    return (*args[:count], *[None] * (count - len(args))), kwargs


MULTIPLICATIONS = {
    torch.ops.aten.conv1d.default: _convolution,
    torch.ops.aten.conv2d.default: _convolution,
    **dict.fromkeys(PRODUCTS, product_kernel),
}
"""Builders of the kernel of a multiplication and the steps that follow it, by its operator."""

SINGLE: Mapping[Any, Callable[[Program, Op], Kernel | None]] = {
    torch.ops.aten.layer_norm.default: _layer_norm,
    torch.ops.aten.softmax.int: _softmax,
    torch.ops.aten.add.Tensor: _sum,
    torch.ops.aten.cat.default: _concatenation,
    torch.ops.aten.mean.dim: _mean,
    torch.ops.aten.adaptive_avg_pool2d.default: _mean,
    torch.ops.aten.mul.Tensor: _scaled_channels,
    torch.ops.aten.lstm.input: partial(_recurrent, SequenceLstm),
    torch.ops.aten.gru.input: partial(_recurrent, SequenceGru),
}
"""Builders of the kernel of an operator that is no multiplication, by the operator."""
