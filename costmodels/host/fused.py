"""CPU kernels of fused operators: oneDNN computes a convolution or a product and what follows in one pass.

A batch norm is folded into the weights when they are packed; additions and activations are oneDNN's post-operations.
The model keeps its own weights: what is folded is a copy that only the kernel reads.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, TypeAlias

import torch

from costmodels.host.multiply import PackedConvolution, PackedProduct
from costmodels.host.norms import EXPONENT
from costmodels.host.norms import response_norm as response_norm_kernel
from costmodels.host.norms import rms_norm as rms_norm_kernel
from costmodels.host.norms import scaled_relu as scaled_relu_kernel
from costmodels.host.onednn import Pack, held, onednn
from graphs.ir import Op, Role
from graphs.program.program import Program
from graphs.rewrites.patterns import (
    CONVOLUTIONS,
    Readers,
    Step,
    chain,
    plain,
    response_norm,
    rms_norm,
    scaled_relu,
    unchanging,
)


@dataclass(frozen=True)
class Read:
    """An argument that is a tensor, or a packed weight."""

    name: str


FusedKernel: TypeAlias = "tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Pack]] | None"
"""A function with its arguments, and the weights that are packed for it by name; None if there is none."""


def fused_kernel(program: Program, op: Op) -> FusedKernel:
    """The kernel of a fused operator without gradients.

    Returns:
        None for a group that no kernel knows, dtypes other than float32, weights that the network computes, and a
        PyTorch without oneDNN.
    """
    inside = program.graph.inside(op)
    everything = list(range(len(op.members)))
    if unchanging(inside) == everything and _all_held(program, *op.inputs):
        return _constants(program, op)
    if not onednn() or any(tensor.dtype != "float32" for tensor in inside.tensors):
        return None
    readers = Readers.in_graph(inside)
    for find, build_norm in NORM_KERNELS.items():
        if find(readers, 0) == everything:
            return build_norm(program, op)
    members, steps = chain(readers, 0)
    call = program.calls[op.members[0].name]
    if members != everything or call.node.kwargs:
        return None
    arguments = torch.fx.map_arg(call.node.args, lambda node: program.tensor_of[node.name])
    build = _convolution if plain(op.members[0].kind) in CONVOLUTIONS else _product
    return build(program, op, arguments, steps)


def _constants(program: Program, op: Op) -> FusedKernel:
    """Compute the results once, when a device gets its weights."""

    def computed(output: int, *buffers: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return program.execute(op, dict(zip(op.inputs, buffers, strict=True)))[output]

    names = [f"{name}, computed once" for name in op.outputs]
    packs = {name: Pack(op.inputs, partial(computed, number)) for number, name in enumerate(names)}
    return _as_they_are if len(names) > 1 else _as_it_is, tuple(map(Read, names)), packs


def _as_they_are(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tensors


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _scaled_relu(program: Program, op: Op) -> FusedKernel:
    x, gamma, beta, mean, variance = op.members[0].inputs
    eps = _epsilon(program, op.members[0])
    if eps is None:
        return None
    scale, shift = f"{op.name}, scale", f"{op.name}, shift"
    packs = {
        scale: Pack((gamma, variance), partial(_scale, eps=eps)),
        shift: Pack((gamma, beta, mean, variance), partial(_shifted, eps=eps)),
    }
    return scaled_relu_kernel, (Read(x), Read(scale), Read(shift)), packs


def _rms_norm(program: Program, op: Op) -> FusedKernel:
    (weight,) = (name for name in op.members[-1].inputs if program.graph.tensor[name].role is Role.PARAMETER)
    eps = op.members[2].attrs.get("other")
    if not isinstance(eps, float) or not held(program, weight):
        return None
    return rms_norm_kernel, (Read(op.members[0].inputs[0]), Read(weight), eps), {}


def _response_norm(_program: Program, op: Op) -> FusedKernel:
    _, _, pad, pool, _, _, scale, shift, power, _ = (member.attrs for member in op.members)
    size, alpha, k = pool.get("kernel_size"), scale.get("other"), shift.get("other")
    n = size[0] if isinstance(size, tuple) else None
    usual = isinstance(n, int) and size == (n, 1, 1) and pad.get("pad") == (0, 0, 0, 0, n // 2, (n - 1) // 2)
    strided = pool.get("stride") not in ((), (1, 1, 1)) or pool.get("divisor_override") is not None
    if not usual or strided or power.get("exponent") != EXPONENT:
        return None
    if not (isinstance(alpha, int | float) and isinstance(k, int | float) and isinstance(n, int)):
        return None
    return response_norm_kernel, (Read(op.inputs[0]), n, float(alpha) / n, float(k)), {}


NORM_KERNELS = {response_norm: _response_norm, scaled_relu: _scaled_relu, rms_norm: _rms_norm}
"""What builds the kernel of a norm, by what finds the norm's operators."""


def _convolution(program: Program, op: Op, arguments: Sequence[Any], steps: Sequence[Step]) -> FusedKernel:
    x, weight, *others = arguments
    bias = others[0] if others else None
    shape, filters = program.graph.tensor[x].shape, program.graph.tensor[weight].shape
    if len(shape) != 4 or 0 in shape or not _all_held(program, weight, bias):
        return None
    folds = steps[0].function == "batch_norm"
    convolution = PackedConvolution(shape, filters, others[1:], folds or bool(bias), steps[1 if folds else 0 :])
    packs = {weight: Pack((weight,), convolution.pack)}
    if folds:
        norm = op.members[1]
        _, gamma, beta, mean, variance = norm.inputs
        eps = _epsilon(program, norm)
        if eps is None:
            return None
        own = (bias,) if bias else ()
        packs[weight] = Pack((weight, gamma, variance), lambda w, g, v: convolution.pack(_scaled(w, g, v, eps)))
        bias = f"{op.name}, folded"
        packs[bias] = Pack((gamma, beta, mean, variance, *own), partial(_shifted, eps=eps))
    others = [Read(step.other) for step in steps if step.other]
    return convolution, (Read(x), Read(weight), Read(bias) if bias else None, *others), packs


def _all_held(program: Program, *names: str | None) -> bool:
    """Whether the network holds tensors, of those that there are."""
    return all(held(program, name) for name in names if name)


def _epsilon(program: Program, norm: Op) -> float | None:
    """What a batch norm adds to variances; None if its numbers change."""
    eps = norm.attrs.get("eps")
    return eps if isinstance(eps, float) and _all_held(program, *norm.inputs[1:]) else None


def _scale(gamma: torch.Tensor, variance: torch.Tensor, eps: float) -> torch.Tensor:
    """What a batch norm multiplies by."""
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


def _product(program: Program, op: Op, arguments: Sequence[Any], steps: Sequence[Step]) -> FusedKernel:
    tensor = program.graph.tensor
    transposed = plain(op.members[0].kind) == "aten.addmm"
    if transposed:
        bias, x, weight = arguments
    else:
        x, weight, bias = (*arguments, None)[:3]
    if not _all_held(program, weight, bias):
        return None
    shape, n = tensor[x].shape, tensor[weight].shape[1 if transposed else 0]
    if 0 in shape or len(tensor[weight].shape) != 2 or (bias and tensor[bias].shape != (n,)):
        return None
    if prod(shape[:-1]) == 1:
        return None  # bound by memory: `costmodels.host.rows` computes it, and what follows takes no time
    product = PackedProduct(shape, n, bool(bias), steps, tensor[op.outputs[0]].shape)
    packs = {weight: Pack((weight,), lambda w: product.pack(w.t() if transposed else w))}
    others = [Read(step.other) for step in steps if step.other]
    return product, (Read(x), Read(weight), Read(bias) if bias else None, *others), packs
