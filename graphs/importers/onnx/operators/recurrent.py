"""LSTM, GRU and RNN, through PyTorch's own functions.

ONNX and PyTorch store the same weights in different orders::

              ONNX             PyTorch
    LSTM      i  o  f  c       i  f  c  o
    GRU       z  r  h          r  z  h
    RNN       h                h

The importer brings the weights into PyTorch's order once, when it reads the file.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from graphs.importers.onnx.operators.registry import Node, Prepare, operator

_PARTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
_DEFAULT_ACTIVATIONS = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}


def _weights(order: Sequence[int]) -> Prepare:
    """Weights of each direction in PyTorch's form: input, hidden, and the two biases.

    ``order`` has for each of PyTorch's gates its index among ONNX's gates.
    """

    def prepare(operands: Sequence[Tensor | None]) -> dict[str, Tensor]:
        # [directions, gates·h, in], [directions, gates·h, h], [directions, 2·gates·h]
        inputs, hidden, biases = operands
        assert inputs is not None
        assert hidden is not None
        if biases is None:
            biases = inputs.new_zeros(inputs.shape[0], 2 * inputs.shape[1])
        prepared = {}
        for direction in range(inputs.shape[0]):
            stored = [inputs[direction], hidden[direction], *biases[direction].chunk(2)]
            for name, part in zip(_PARTS, stored, strict=True):
                gates = part.chunk(len(order))
                prepared[name + "_reverse" * direction] = torch.cat([gates[gate] for gate in order])
        return prepared

    return prepare


def _check(node: Node, x: Tensor, lengths: list[int] | None) -> None:
    """Refuse the variants that PyTorch's functions do not support."""
    activations = [name.lower() for name in node.attributes.get("activations", [])]
    default = _DEFAULT_ACTIVATIONS[node.kind]
    if activations and activations != default * (len(activations) // len(default)) and node.kind != "RNN":
        raise node.unsupported(f"activations={activations}")
    if "clip" in node.attributes:
        raise node.unsupported("clip")
    if node.flag("input_forget"):
        raise node.unsupported("input_forget=1")
    n_steps = x.shape[1 if node.flag("layout") else 0]
    if lengths is not None and any(length != n_steps for length in lengths):
        raise node.unsupported(f"sequence_lens={lengths} other than the whole sequence of {n_steps} steps")


def _run(
    node: Node, function: Callable[..., Any], x: Tensor, states: list[Tensor | None], weights: Sequence[Tensor]
) -> Any:
    """Call PyTorch's function and return (Y, final states) in ONNX's layout."""
    direction, batch_first = node.text("direction", "forward"), node.flag("layout")
    n_directions = 2 if direction == "bidirectional" else 1
    if batch_first:
        x = x.transpose(0, 1)
        states = [None if state is None else state.transpose(0, 1) for state in states]
    if direction == "reverse":  # a forward run over the flipped sequence
        x = x.flip(0)
    n_steps, batch, _ = x.shape
    width = weights[1].shape[1]
    given = [x.new_zeros(n_directions, batch, width) if state is None else state for state in states]
    both = n_directions == 2
    y, *final = function(x, given[0] if len(given) == 1 else given, list(weights), True, 1, 0.0, False, both, False)
    if direction == "reverse":
        y = y.flip(0)
    y = y.reshape(n_steps, batch, n_directions, width)
    if batch_first:
        return y.transpose(0, 1), *[state.transpose(0, 1) for state in final]
    return y.transpose(1, 2), *final


@operator(
    "LSTM",
    state=(2, 3),
    known=(1,),
    ignores=("hidden_size",),
    arity=8,
    weights=(1, 2, 3),
    prepare=_weights([0, 2, 3, 1]),
)
def lstm(
    node: Node,
    x: Tensor,
    lengths: list[int] | None,
    hidden: Tensor | None,
    cell: Tensor | None,
    peephole: Tensor | None,
    *weights: Tensor,
) -> Any:
    """Long short-term memory, one layer, in one direction or both."""
    _check(node, x, lengths)
    if peephole is not None:
        raise node.unsupported("a peephole (operand P)")
    return _run(node, torch.lstm, x, [hidden, cell], weights)


@operator(
    "GRU", state=(2,), known=(1,), ignores=("hidden_size",), arity=6, weights=(1, 2, 3), prepare=_weights([1, 0, 2])
)
def gru(node: Node, x: Tensor, lengths: list[int] | None, hidden: Tensor | None, *weights: Tensor) -> Any:
    """Gated recurrent unit, one layer, with the reset gate after the linear layer as in PyTorch."""
    _check(node, x, lengths)
    if not node.flag("linear_before_reset"):
        raise node.unsupported("linear_before_reset=0, which PyTorch's GRU can't compute,")
    return _run(node, torch.gru, x, [hidden], weights)


@operator("RNN", state=(2,), known=(1,), ignores=("hidden_size",), arity=6, weights=(1, 2, 3), prepare=_weights([0]))
def rnn(node: Node, x: Tensor, lengths: list[int] | None, hidden: Tensor | None, *weights: Tensor) -> Any:
    """Elman network, one layer, with tanh or relu."""
    _check(node, x, lengths)
    activations = {name.lower() for name in node.attributes.get("activations", ["tanh"])}
    functions = {"tanh": torch.rnn_tanh, "relu": torch.rnn_relu}
    if len(activations) != 1 or not activations <= functions.keys():
        raise node.unsupported(f"activations={sorted(activations)}")
    return _run(node, functions[activations.pop()], x, [hidden], weights)
