"""CPU kernels of oneDNN with weights that are packed once and not at every call.

PyTorch's own LSTM packs its weights and calls the same kernel, so that packing in advance does not change any bit. The
others are quick kernels with other rounding: PyTorch computes products and convolutions with the library that it was
built with, and keeps images in channels-first layout. Here oneDNN computes all products of activations and weights, and
images are in channels-last layout from the first convolution on. The order of sums differs, and so do the last digits.
PyTorch's compiler does the same with frozen weights (``torch/_inductor/fx_passes/mkldnn_fusion.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, TypeAlias

import torch

from costmodels.cluster import Kernels
from costmodels.host.multiply import PackedConvolution, PackedProduct
from costmodels.host.rows import row_addmm, row_product
from graphs.errors import InputError
from graphs.ir import STATE, Op
from graphs.program.program import Program


@dataclass(frozen=True)
class Pack:
    """How a packed weight is made of weights of the model.

    It is called on the device's own thread, since the packed form depends on the number of threads; oneDNN packs a
    weight of another form again at every call.
    """

    reads: tuple[str, ...]  # names of the weights
    function: Callable[..., torch.Tensor]  # takes these weights

    def __call__(self, weight: Callable[[str], torch.Tensor]) -> torch.Tensor:
        """The packed weight, from a function that gives a weight by its name."""
        return self.function(*map(weight, self.reads))


Choice: TypeAlias = "tuple[Callable[..., Any], Mapping[str, Pack]] | None"
"""A kernel with the functions that pack its weights, by name; None for PyTorch's own kernel."""

LSTM = 2  # oneDNN's number of this kind of cell


def check_quick() -> None:
    """Check that this PyTorch has oneDNN.

    Raises:
        InputError: if it does not.
    """
    if not onednn():
        raise InputError("this PyTorch has no oneDNN, or it is switched off: ask for exact kernels")


def packed_kernel(program: Program, op: Op, kernels: Kernels) -> Choice:
    """The kernel with packed weights of an operator without gradients.

    Returns:
        None for other operators, dtypes other than float32, weights that the network computes, and a PyTorch without
        oneDNN.
    """
    call = program.calls[op.name]
    choose = (PACKED | QUICK if kernels == "quick" else PACKED).get(call.node.target)
    if choose is None or call.node.kwargs or not onednn():
        return None
    if any(program.graph.tensor[name].dtype != "float32" for name in (*op.inputs, *op.outputs)):
        return None
    return choose(program, torch.fx.map_arg(call.node.args, lambda node: program.tensor_of[node.name]))


def lstm(
    x: torch.Tensor, hx: Sequence[torch.Tensor], packed: Sequence[torch.Tensor], *modes: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`torch.lstm`, layer by layer, as PyTorch itself calls oneDNN; ``modes`` are the operator's other arguments."""
    has_biases, num_layers, _, train, bidirectional, batch_first = modes
    run_layer = torch.ops.aten.mkldnn_rnn_layer.default
    y = (x.transpose(0, 1) if batch_first else x).contiguous()
    size, directions = hx[0].shape[-1], 2 if bidirectional else 1
    ends: list[tuple[torch.Tensor, torch.Tensor]] = []
    for layer in range(num_layers):
        results = []
        for direction in range(directions):
            i = layer * directions + direction
            weights, starts = packed[4 * i : 4 * i + 4], (state[i : i + 1] for state in hx)
            cell: tuple[Any, ...] = (LSTM, size, num_layers, has_biases, bidirectional)
            result, h, c, _ = run_layer(y, *weights, *starts, direction == 1, [], *cell, False, train)
            results.append(result)
            ends.append((h, c))
        y = results[0] if directions == 1 else torch.cat(results, dim=-1)
    h_n, c_n = (torch.cat([state.reshape(1, -1, size) for state in states]) for states in zip(*ends, strict=True))
    return y.transpose(0, 1) if batch_first else y, h_n, c_n


def _conv2d(program: Program, arguments: Sequence[Any]) -> Choice:
    x, weight, *others = arguments
    shape, filters = program.graph.tensor[x].shape, program.graph.tensor[weight].shape
    if len(shape) != 4 or 0 in shape or not held(program, weight):
        return None
    convolution = PackedConvolution(shape, filters, others[1:], bool(others and others[0]))
    return convolution, {weight: Pack((weight,), convolution.pack)}


def _linear(program: Program, arguments: Sequence[Any]) -> Choice:
    x, weight = arguments[:2]
    shape, weights = program.graph.tensor[x].shape, program.graph.tensor[weight].shape
    if 0 in shape or len(weights) != 2 or not held(program, weight):
        return None
    if prod(shape[:-1]) == 1:
        return row_product, as_is(arguments[1:3])
    product = PackedProduct(shape, weights[0], len(arguments) > 2 and bool(arguments[2]))
    return product, {weight: Pack((weight,), product.pack)}


def _addmm(program: Program, arguments: Sequence[Any]) -> Choice:
    bias, x, weight = arguments
    shape = program.graph.tensor[x].shape
    columns = program.graph.tensor[weight].shape[-1:]
    if 0 in shape or program.graph.tensor[bias].shape != columns or not held(program, weight):
        return None
    if shape[0] == 1 and held(program, bias):
        return row_addmm, {weight: Pack((weight,), lambda tensor: tensor.detach().t().contiguous())} | as_is([bias])
    product = PackedProduct(shape, columns[0], bias=True)
    return product.addmm, {weight: Pack((weight,), lambda tensor: product.pack(tensor.t()))}


def _lstm(program: Program, arguments: Sequence[Any]) -> Choice:
    """The kernel of an LSTM without dropout, projections and weights that are used twice."""
    x, hx, names, has_biases, num_layers, _, train, bidirectional, batch_first = arguments
    shape, size = program.graph.tensor[x].shape, program.graph.tensor[hx[0]].shape[-1]
    steps, n = (shape[1], shape[0]) if batch_first else shape[:2]
    weights = [name for i, name in enumerate(names) if i % 4 < 2]
    plain = has_biases and not train and len(names) == 4 * num_layers * (2 if bidirectional else 1)
    if not plain or 0 in shape or len(set(weights)) < len(weights) or not all(held(program, w) for w in weights):
        return None
    packs: dict[str, Pack] = {}
    for i in range(0, len(names), 4):
        backwards = bidirectional and i // 4 % 2 == 1
        width = program.graph.tensor[names[i]].shape[1]
        form = (size, backwards, True, False, [steps, n, width])
        for which in range(2):
            pack = partial(_pack_gates, which=which, widths=(width, size), form=form)
            packs[names[i + which]] = Pack((names[i + which],), pack)
    return lstm, packs


def _pack_gates(weight: torch.Tensor, which: int, widths: tuple[int, int], form: tuple[Any, ...]) -> torch.Tensor:
    """Pack a weight [4 size, width]; oneDNN packs the weights for inputs (0) and for states (1) together."""
    pair = [weight if i == which else weight.new_empty(len(weight), widths[i]) for i in range(2)]
    packed: torch.Tensor = torch.ops.mkldnn._reorder_mkldnn_rnn_layer_weight.default(*pair, *form)[which]
    return packed


def _mm(program: Program, arguments: Sequence[Any]) -> Choice:
    x, weight = arguments
    shape = program.graph.tensor[x].shape
    if 0 in shape or not held(program, weight):
        return None
    if shape[0] == 1:
        return row_product, {weight: Pack((weight,), lambda tensor: tensor.detach().t().contiguous())}
    product = PackedProduct(shape, program.graph.tensor[weight].shape[1], bias=False)
    return product, {weight: Pack((weight,), lambda tensor: product.pack(tensor.t()))}


def as_is(names: Sequence[str | None]) -> dict[str, Pack]:
    """The packs of weights that a kernel reads as the model has them, without their gradients.

    A slice whose rows are apart is copied.
    """
    return {name: Pack((name,), lambda tensor: tensor.detach().contiguous()) for name in names if name}


def held(program: Program, name: str) -> bool:
    """Whether a tensor is a weight that does not change from run to run."""
    return program.graph.tensor[name].role in STATE and name not in program.statistics


def onednn() -> bool:
    """Whether PyTorch has oneDNN and uses it."""
    return torch._C._has_mkldnn and torch._C._get_mkldnn_enabled()


Choose: TypeAlias = Callable[[Program, Sequence[Any]], Choice]

PACKED: dict[Any, Choose] = {torch.ops.aten.lstm.input: _lstm}
"""Exact kernels: a function that chooses the kernel, by operator."""

QUICK: dict[Any, Choose] = {
    torch.ops.aten.conv2d.default: _conv2d,
    torch.ops.aten.linear.default: _linear,
    torch.ops.aten.addmm.default: _addmm,
    torch.ops.aten.mm.default: _mm,
}
"""Kernels with other rounding, likewise."""
