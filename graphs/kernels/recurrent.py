"""LSTMs and GRUs of one sequence, or two, on one core: a step reads the weights once, as fast as a core can.

Libraries multiply matrices there, of one row, and reach half of that. What a step takes from the inputs is one product
for all steps, by oneDNN; the rows of a unit's gates are multiplied by the state together (`graphs.kernels.rows`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from graphs.common.compiled import compiled_kernel
from graphs.kernels.activations import tanh
from graphs.kernels.multiply import PackedProduct
from graphs.kernels.rows import add_product, add_products


def _add_states(n: int, rows: int, weight: Any, size: int, h: Any, gates: Any) -> None:
    """Add the products of a weight [rows, size] and n states, one or two, to their gates."""
    if n == 1:
        add_product(rows, weight, size, h, gates)
    else:
        add_products(rows, weight, size, h, gates)


def _gate(x: Any) -> Any:
    """Return how far a gate is open, from 0 to 1; NaN if x is."""
    half = np.float32(0.5)
    return half + half * tanh(half * x)


def _lstm_steps(form: Any, x: Any, weight: Any, h: Any, c: Any, y: Any) -> None:
    """Run the steps of a direction of a layer for one or two sequences; h and c [n, size] then are their last states.

    The gates get ``x`` [n, steps, 4 size] from the inputs, and the product of ``weight`` [4 size, size] and the
    state. The states of all steps become ``y``. The form is the number of sequences, of steps, the size, how far
    apart ``y`` has states, and whether the steps run backwards.
    """
    n, n_steps, size, width, backwards = form[0], form[1], form[2], form[3], form[4]
    gates = np.empty(4 * size * n, np.float32)
    for step in range(n_steps):
        at = n_steps - 1 - step if backwards else step
        for sequence in range(n):
            for k in range(4 * size):
                gates[sequence * 4 * size + k] = x[(sequence * n_steps + at) * 4 * size + k]
        _add_states(n, 4 * size, weight, size, h, gates)
        for sequence in range(n):
            own, number = sequence * 4 * size, sequence * n_steps + at
            for unit in range(size):
                enters = _gate(gates[own + unit])
                stays = _gate(gates[own + size + unit])
                leaves = _gate(gates[own + 3 * size + unit])
                state = sequence * size + unit
                c[state] = stays * c[state] + enters * tanh(gates[own + 2 * size + unit])
                h[state] = leaves * tanh(c[state])
                y[number * width + unit] = h[state]


def _gru_steps(form: Any, x: Any, weight: Any, h: Any, bias: Any, y: Any) -> None:
    """Run the steps as those of an LSTM; ``bias`` [size] belongs to what the new state gets from the old one."""
    n, n_steps, size, width, backwards = form[0], form[1], form[2], form[3], form[4]
    gates = np.empty(3 * size * n, np.float32)
    for step in range(n_steps):
        at = n_steps - 1 - step if backwards else step
        for sequence in range(n):
            own, given = sequence * 3 * size, (sequence * n_steps + at) * 3 * size
            for k in range(2 * size):
                gates[own + k] = x[given + k]
            for unit in range(size):
                gates[own + 2 * size + unit] = bias[unit]
        _add_states(n, 3 * size, weight, size, h, gates)
        for sequence in range(n):
            own, number = sequence * 3 * size, sequence * n_steps + at
            for unit in range(size):
                resets = _gate(gates[own + unit])
                stays = _gate(gates[own + size + unit])
                new = tanh(x[(number * 3 + 2) * size + unit] + resets * gates[own + 2 * size + unit])
                state = sequence * size + unit
                h[state] = new + stays * (h[state] - new)
                y[number * width + unit] = h[state]


class SequenceRecurrence(ABC):
    """A recurrent operator of one sequence, layer by layer, with weights for inputs that `products` have packed.

    Attributes:
        products: of the inputs of each layer, for each of its directions.
    """

    n_gates: ClassVar[int]
    steps: ClassVar[Callable[..., None]]  # runs the steps of a direction of a layer

    def __init__(self, steps: int, widths: Sequence[int], size: int) -> None:
        """Prepare for ``steps`` steps and states of ``size``; ``widths`` are those of inputs by layer and direction."""
        self.products = [PackedProduct((steps, width), self.n_gates * size, bias=False) for width in widths]

    def __call__(self, *call: Any) -> tuple[torch.Tensor, ...]:
        """Compute, of the operator's arguments."""
        return self.pair([call])[0]

    def pair(self, calls: Sequence[Sequence[Any]]) -> Sequence[tuple[torch.Tensor, ...]]:
        """The results of two calls, or of one, from the operator's arguments: each step reads the weights once."""
        (_, _, weights, *_, bidirectional, batch_first), n = calls[0], len(calls)
        directions = 2 if bidirectional else 1
        given = ([hx] if isinstance(hx, torch.Tensor) else hx for _, hx, *_ in calls)
        h, *others = (torch.cat(each, 1) for each in zip(*given, strict=True))
        y = torch.stack([x.reshape(-1, x.shape[-1]) for x, *_ in calls])
        steps, size = y.shape[1], h.shape[-1]
        for i, product in enumerate(self.products):
            direction = i % directions
            if direction == 0:
                read, y = y, y.new_empty(n, steps, directions * size)
            inputs, states, first, second = weights[4 * i : 4 * i + 4]
            gates = y.new_empty(n, steps, self.n_gates * size)
            for each, result in zip(read, gates, strict=True):
                product(each, inputs, result=result)
            further = self.add_biases(gates, first, second, *(state[i] for state in others))
            addresses = (each.data_ptr() for each in (gates, states, h[i], further, y[..., direction * size :]))
            form = np.array([n, steps, size, directions * size, direction], np.int64)
            compiled_kernel(type(self).steps, "cppppp")(form.ctypes.data, *addresses)
        shape = (1, steps, -1) if batch_first else (steps, 1, -1)
        ends = ([state[:, number : number + 1].contiguous() for state in (h, *others)] for number in range(n))
        return [(each.view(shape), *last) for each, last in zip(y, ends, strict=True)]

    @abstractmethod
    def add_biases(
        self, gates: torch.Tensor, first: torch.Tensor, second: torch.Tensor, *cells: torch.Tensor
    ) -> torch.Tensor:
        """Add the biases of a layer to what its gates [..., n_gates size] get from the inputs.

        Return the tensor that the steps read besides, or change: of the cells, or of the biases.
        """


class SequenceLstm(SequenceRecurrence):
    """`torch.lstm` of one sequence."""

    __name__ = "sequence_lstm"
    n_gates, steps = 4, staticmethod(_lstm_steps)

    def add_biases(
        self, gates: torch.Tensor, first: torch.Tensor, second: torch.Tensor, *cells: torch.Tensor
    ) -> torch.Tensor:
        """Add both biases; the steps change the cells."""
        gates += first + second
        return cells[0]


class SequenceGru(SequenceRecurrence):
    """`torch.gru` of one sequence."""

    __name__ = "sequence_gru"
    n_gates, steps = 3, staticmethod(_gru_steps)

    def add_biases(
        self, gates: torch.Tensor, first: torch.Tensor, second: torch.Tensor, *_: torch.Tensor
    ) -> torch.Tensor:
        """Add both biases; the steps read the second one of the new state, which the old one may be reset of."""
        size = gates.shape[-1] // 3
        gates += first
        gates[..., : 2 * size] += second[: 2 * size]
        return second[2 * size :]
