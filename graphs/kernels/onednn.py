"""LSTMs with weights that are packed once and not at every call, and whether PyTorch has oneDNN.

PyTorch's own LSTM packs its weights and calls the same kernel, so that packing in advance does not change any bit.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from graphs.common.errors import InputError
from graphs.ir import Op
from graphs.kernels.kernel import Kernel, Pack, held
from graphs.program.program import Program

LSTM = 2  # oneDNN's number of this kind of cell


def check_quick() -> None:
    """Check that this PyTorch has oneDNN.

    Raises:
        InputError: if it does not.
    """
    if not onednn():
        raise InputError("this PyTorch has no oneDNN, or it is switched off: ask for exact kernels")


def onednn_lstm(
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


def lstm_kernel(program: Program, op: Op) -> Kernel | None:
    """The kernel of an LSTM with packed weights, without gradients.

    Returns:
        None for other operators, and for an LSTM with dropout, with projections, of another dtype than float32, or with
        weights that the network computes or reads twice; None if PyTorch has no oneDNN.
    """
    target = program.calls[op.name].node.target
    if target is not torch.ops.aten.lstm.input or not packs_recurrent(program, op):
        return None
    tensor = program.graph.tensor
    (x, hx, names, *_, bidirectional, batch_first), _ = program.arguments(op, str)
    shape, size = tensor[x].shape, tensor[hx[0]].shape[-1]
    steps, n = (shape[1], shape[0]) if batch_first else shape[:2]
    packs: dict[str, Pack] = {}
    for i in range(0, len(names), 4):
        backwards = bidirectional and i // 4 % 2 == 1
        width = program.graph.tensor[names[i]].shape[1]
        form = (size, backwards, True, False, [steps, n, width])
        for which in range(2):
            pack = partial(_pack_gates, which=which, widths=(width, size), form=form)
            packs[names[i + which]] = Pack((names[i + which],), pack)
    return Kernel(op, onednn_lstm, packs=packs)


def packs_recurrent(program: Program, op: Op) -> bool:
    """Whether the weights of an LSTM or a GRU can be packed."""
    tensor = program.graph.tensor
    if program.calls[op.name].node.kwargs or not onednn():
        return False
    (x, _, names, has_biases, num_layers, _, train, bidirectional, _), _ = program.arguments(op, str)
    weights = [name for i, name in enumerate(names) if i % 4 < 2]
    plain = has_biases and not train and len(names) == 4 * num_layers * (2 if bidirectional else 1)
    single = all(tensor[name].dtype == "float32" for name in (*op.inputs, *op.outputs))
    return (
        plain and single and 0 not in tensor[x].shape and len(set(weights)) == len(weights) and held(program, *weights)
    )


def _pack_gates(weight: torch.Tensor, which: int, widths: tuple[int, int], form: tuple[Any, ...]) -> torch.Tensor:
    """Pack a weight [4 size, width]; oneDNN packs the weights for inputs (0) and for states (1) together."""
    pair = [weight if i == which else weight.new_empty(len(weight), widths[i]) for i in range(2)]
    packed: torch.Tensor = torch.ops.mkldnn._reorder_mkldnn_rnn_layer_weight.default(*pair, *form)[which]
    return packed


def onednn() -> bool:
    """Whether PyTorch has oneDNN and uses it."""
    return torch._C._has_mkldnn and torch._C._get_mkldnn_enabled()
