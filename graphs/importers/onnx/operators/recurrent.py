"""LSTM, GRU and RNN: through PyTorch's own functions, or step by step where those lack a variant.

ONNX and PyTorch store the same weights in different orders::

              ONNX             PyTorch
    LSTM      i  o  f  c       i  f  c  o
    GRU       z  r  h          r  z  h
    RNN       h                h

The importer brings the weights into PyTorch's order once, when it reads the file.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graphs.importers.onnx.control_flow import MOST_ROUNDS
from graphs.importers.onnx.operators.registry import Node, Prepare, operator

_PARTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
_DEFAULT_ACTIVATIONS = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}


def _weights(order: Sequence[int]) -> Prepare:
    """Weights of each direction in PyTorch's form: input, hidden, and the two biases.

    ``order`` has for each of PyTorch's gates its index among ONNX's gates.
    """

    def prepare(node: Node, operands: Sequence[Tensor | None]) -> dict[str, Tensor]:
        # [directions, gates·h, in], [directions, gates·h, h], [directions, 2·gates·h]
        inputs, hidden, biases = operands
        assert inputs is not None
        assert hidden is not None
        n_directions = {"forward": 1, "reverse": 1, "bidirectional": 2}.get(node.text("direction", "forward"))
        width = node.integer("hidden_size", hidden.shape[2])
        if (n_directions, width) != (inputs.shape[0], hidden.shape[2]):
            raise node.unsupported(
                f"direction={node.text('direction', 'forward')} and hidden_size={width} with weights {[*hidden.shape]}"
            )
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


def _of_torch(node: Node, lengths: list[int] | Tensor | None, n_steps: int) -> Callable[..., Any] | None:
    """PyTorch's function that computes a variant, or None: for gates as they are, and sequences of one length."""
    names = [name.lower() for name in node.attributes.get("activations", [])]
    default = _DEFAULT_ACTIVATIONS[node.kind]
    relu = node.kind == "RNN" and set(names) == {"relu"}
    alike = relu or names == default * (len(names) // len(default))
    whole = lengths is None or (isinstance(lengths, list) and min(lengths) == n_steps)
    if not alike or not whole or any(node.attributes.get(key) for key in ("clip", "input_forget")):
        return None
    if node.kind == "GRU":
        return torch.gru if node.flag("linear_before_reset") else None
    return torch.lstm if node.kind == "LSTM" else torch.rnn_relu if relu else torch.rnn_tanh


Activation = Callable[[Tensor], Tensor]

_ACTIVATIONS: dict[str, tuple[Callable[..., Tensor], tuple[float, ...]]] = {  # function, and default alpha and beta
    "affine": (lambda x, a, b: a * x + b, (1.0, 0.0)),
    "elu": (functional.elu, (1.0,)),
    "hardsigmoid": (lambda x, a, b: torch.clamp(a * x + b, 0.0, 1.0), (0.2, 0.5)),
    "leakyrelu": (functional.leaky_relu, (0.01,)),
    "relu": (torch.relu, ()),
    "scaledtanh": (lambda x, a, b: a * torch.tanh(b * x), (1.0, 1.0)),
    "sigmoid": (torch.sigmoid, ()),
    "softplus": (functional.softplus, ()),
    "softsign": (functional.softsign, ()),
    "tanh": (torch.tanh, ()),
    "thresholdedrelu": (lambda x, a: torch.where(x > a, x, 0.0), (1.0,)),
}


def _activations(node: Node, n_directions: int) -> list[list[Activation]]:
    """The functions of each direction, of operands that are clipped if the node says so."""
    default = _DEFAULT_ACTIVATIONS[node.kind]
    names = [name.lower() for name in node.attributes.get("activations", [])] or default * n_directions
    if len(names) != len(default) * n_directions or not _ACTIVATIONS.keys() >= set(names):
        raise node.unsupported(f"activations={names}")
    queues = [iter(node.attributes.get(key, [])) for key in ("activation_alpha", "activation_beta")]
    clip = node.number("clip", 0.0)

    def made(name: str, limit: float) -> Activation:
        function, defaults = _ACTIVATIONS[name]
        given = [float(next(queue, value)) for queue, value in zip(queues, defaults, strict=False)]
        return lambda x: function(torch.clamp(x, -limit, limit) if limit else x, *given)

    # An LSTM's third function gets its cell, which onnxruntime does not clip.
    functions = [made(name, clip if i % len(default) < 2 else 0.0) for i, name in enumerate(names)]
    return [functions[i : i + len(default)] for i in range(0, len(functions), len(default))]


Cell = Callable[..., tuple[Tensor, ...]]  # (node, functions, [R, b], peephole, x·W + b, states) -> the new states


def _lstm_cell(
    node: Node,
    functions: Sequence[Activation],
    recurrent: Sequence[Tensor],
    peephole: Tensor | None,
    given: Tensor,
    states: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """One step (Hochreiter & Schmidhuber 1997; Gers et al. 2000); gates in PyTorch's order."""
    (f, g, h), (hidden, cell) = functions, states
    inner, forget, new, outer = (given + functional.linear(hidden, *recurrent)).chunk(4, -1)
    p_inner, p_outer, p_forget = (None, None, None) if peephole is None else peephole.chunk(3)
    inner = f(inner if p_inner is None else inner + p_inner * cell)
    forget = forget if p_forget is None else forget + p_forget * cell
    cell = (1 - inner if node.flag("input_forget") else f(forget)) * cell + inner * g(new)
    return f(outer if p_outer is None else outer + p_outer * cell) * h(cell), cell


def _gru_cell(
    node: Node,
    functions: Sequence[Activation],
    recurrent: Sequence[Tensor],
    _peephole: Tensor | None,
    given: Tensor,
    states: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """One step (Cho et al. 2014), whose reset gate is before or after the linear layer; gates in PyTorch's order.

    R and its bias are divided into those of the two gates and those of the new state.
    """
    (f, g), (hidden,) = functions, states
    gates, new = torch.split(given, [2 * hidden.shape[-1], hidden.shape[-1]], -1)
    reset, update = map(f, (gates + functional.linear(hidden, recurrent[0], recurrent[2])).chunk(2, -1))
    if node.flag("linear_before_reset"):
        new = new + reset * functional.linear(hidden, recurrent[1], recurrent[3])
    else:
        new = new + functional.linear(reset * hidden, recurrent[1], recurrent[3])
    return ((1 - update) * g(new) + update * hidden,)


def _rnn_cell(
    _node: Node,
    functions: Sequence[Activation],
    recurrent: Sequence[Tensor],
    _peephole: Tensor | None,
    given: Tensor,
    states: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """One step (Elman 1990)."""
    return (functions[0](given + functional.linear(states[0], *recurrent)),)


_CELLS: dict[str, Cell] = {"LSTM": _lstm_cell, "GRU": _gru_cell, "RNN": _rnn_cell}


def _step_by_step(
    node: Node,
    x: Tensor,
    lengths: list[int] | Tensor | None,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    peephole: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Return (Y [steps, batch, directions, width], final states) of x [steps, batch, inputs]."""
    n_steps, reverse = x.shape[0], node.text("direction", "forward") == "reverse"
    if n_steps > MOST_ROUNDS:
        raise node.unsupported(f"a sequence of more than {MOST_ROUNDS} steps that PyTorch's function can't compute")
    results, finals = [], []
    for number, functions in enumerate(_activations(node, states[0].shape[0])):
        w_ih, w_hh, b_ih, b_hh = weights[4 * number : 4 * number + 4]
        sizes = [2 * w_hh.shape[1], w_hh.shape[1]]  # of a GRU's gates and its new state
        recurrent = [*torch.split(w_hh, sizes), *torch.split(b_hh, sizes)] if node.kind == "GRU" else [w_hh, b_hh]
        own = None if peephole is None else peephole[number]
        cell = partial(_CELLS[node.kind], node, functions, recurrent, own)
        given = functional.linear(x, w_ih, b_ih)
        y, final = _direction(cell, given, lengths, [state[number] for state in states], reverse or number == 1)
        results.append(y)
        finals.append(final)
    return torch.stack(results, 2), *(torch.stack(final) for final in zip(*finals, strict=True))


def _direction(
    cell: Cell, given: Tensor, lengths: list[int] | Tensor | None, states: Sequence[Tensor], backward: bool
) -> tuple[Tensor, Sequence[Tensor]]:
    """Return (Y [steps, batch, width], final states) of one direction from [steps, batch, gates·width].

    Shorter sequences end before the others: their state stays, and Y is 0.
    """
    shortest = min(lengths) if isinstance(lengths, list) else 0
    ends = None if lengths is None else torch.as_tensor(lengths, device=given.device).reshape(-1, 1)
    order, rows = range(given.shape[0])[:: -1 if backward else 1], []
    for step in order:
        new: Sequence[Tensor] = cell(given[step], states)
        row = new[0]
        if ends is not None and step >= shortest:
            row = torch.where(step < ends, row, 0.0)
            new = [torch.where(step < ends, after, before) for after, before in zip(new, states, strict=True)]
        rows.append(row)
        states = new
    return torch.stack(rows[::-1] if backward else rows), states


def _run(
    node: Node,
    x: Tensor,
    lengths: list[int] | Tensor | None,
    states: list[Tensor | None],
    weights: Sequence[Tensor],
    peephole: Tensor | None = None,
) -> Any:
    """Return (Y, final states) in ONNX's layout, by PyTorch's function if that computes this variant."""
    direction, batch_first = node.text("direction", "forward"), node.flag("layout")
    n_directions = 2 if direction == "bidirectional" else 1
    if batch_first:
        x = x.transpose(0, 1)
        states = [None if state is None else state.transpose(0, 1) for state in states]
    n_steps, batch, _ = x.shape
    width = weights[1].shape[1]
    given = [x.new_zeros(n_directions, batch, width) if state is None else state for state in states]
    function = _of_torch(node, lengths, n_steps) if peephole is None else None
    if function is None:
        y, *final = _step_by_step(node, x, lengths, given, weights, peephole)
    else:
        x = x.flip(0) if direction == "reverse" else x  # a forward run over the flipped sequence
        start, both = given[0] if len(given) == 1 else given, n_directions == 2
        y, *final = function(x, start, list(weights), True, 1, 0.0, False, both, False)
        y = (y.flip(0) if direction == "reverse" else y).reshape(n_steps, batch, n_directions, width)
    if batch_first:
        return y.transpose(0, 1), *[state.transpose(0, 1) for state in final]
    return y.transpose(1, 2), *final


@operator(
    "LSTM",
    state=(2, 3),
    lists=(1,),
    ignores=("hidden_size",),
    arity=8,
    weights=(1, 2, 3),
    prepare=_weights([0, 2, 3, 1]),
)
def lstm(
    node: Node,
    x: Tensor,
    lengths: list[int] | Tensor | None,
    hidden: Tensor | None,
    cell: Tensor | None,
    peephole: Tensor | None,
    *weights: Tensor,
) -> Any:
    """Long short-term memory, one layer, in one direction or both."""
    return _run(node, x, lengths, [hidden, cell], weights, peephole)


@operator(
    "GRU", state=(2,), lists=(1,), ignores=("hidden_size",), arity=6, weights=(1, 2, 3), prepare=_weights([1, 0, 2])
)
def gru(node: Node, x: Tensor, lengths: list[int] | Tensor | None, hidden: Tensor | None, *weights: Tensor) -> Any:
    """Gated recurrent unit, one layer, in one direction or both."""
    return _run(node, x, lengths, [hidden], weights)


@operator("RNN", state=(2,), lists=(1,), ignores=("hidden_size",), arity=6, weights=(1, 2, 3), prepare=_weights([0]))
def rnn(node: Node, x: Tensor, lengths: list[int] | Tensor | None, hidden: Tensor | None, *weights: Tensor) -> Any:
    """Elman network, one layer, in one direction or both."""
    return _run(node, x, lengths, [hidden], weights)
