"""LSTMs of one sequence on one core: the product of each step reads the weights once, as fast as a core can.

Libraries multiply matrices there, of one row, and reach half of that. What a step takes from the inputs is one product
for all steps, by oneDNN; the rows of a unit's four gates are multiplied by the state together (`costmodels.host.rows`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from costmodels.host.activations import tanh
from costmodels.host.multiply import PackedProduct
from costmodels.host.native import compiled


class SequenceLstm:
    """`torch.lstm` of one sequence, layer by layer, with weights for inputs that `products` have packed.

    Attributes:
        products: of the inputs of each layer, for each of its directions.
    """

    __name__ = "sequence_lstm"

    def __init__(self, steps: int, widths: Sequence[int], size: int) -> None:
        """The LSTM of so many steps and states of a size; ``widths`` of inputs are one for each layer and direction."""
        self.products = [PackedProduct((steps, width), 4 * size, bias=False) for width in widths]

    def __call__(
        self, x: torch.Tensor, hx: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], *modes: Any
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Compute; ``modes`` are the operator's other arguments."""
        *_, bidirectional, batch_first = modes
        directions = 2 if bidirectional else 1
        h, c = (state.clone(memory_format=torch.contiguous_format) for state in hx)
        y = x.reshape(-1, x.shape[-1]).contiguous()
        steps, size = len(y), h.shape[-1]
        for i, product in enumerate(self.products):
            direction = i % directions
            if direction == 0:
                read, y = y, y.new_empty(steps, directions * size)
            inputs, states, first, second = weights[4 * i : 4 * i + 4]
            gates = product(read, inputs).add_(first + second)
            addresses = (each.data_ptr() for each in (gates, states, h[i], c[i], y[:, direction * size :]))
            form = np.array([steps, size, directions * size, direction], np.int64)
            compiled(_steps, "cppppp")(form.ctypes.data, *addresses)
        return y.view(1, steps, -1) if batch_first else y.view(steps, 1, -1), h, c


def _steps(form: Any, x: Any, weight: Any, h: Any, c: Any, y: Any) -> None:
    """Run the steps of a direction of a layer, and leave its last states in h and c [size].

    The gates get ``x`` [steps, 4 size] from the inputs, and the product of ``weight`` [4 size, size] and the state. The
    states of all steps become ``y``. The form is the number of steps, the size, how far apart ``y`` has them, and
    whether the steps run backwards.
    """
    n_steps, size, width, backwards = form[0], form[1], form[2], form[3]
    gates, half, part = np.empty(4 * size, np.float32), np.float32(0.5), size * size
    for step in range(n_steps):
        at = n_steps - 1 - step if backwards else step
        for unit in range(size):
            begin = unit * size
            enters = stays = changes = leaves = np.float32(0)
            for j in range(size):
                enters += weight[begin + j] * h[j]
                stays += weight[part + begin + j] * h[j]
                changes += weight[2 * part + begin + j] * h[j]
                leaves += weight[3 * part + begin + j] * h[j]
            gates[unit], gates[size + unit] = enters, stays
            gates[2 * size + unit], gates[3 * size + unit] = changes, leaves
        for k in range(4 * size):
            gates[k] += x[at * 4 * size + k]
        for unit in range(size):
            enters = half + half * tanh(half * gates[unit])
            stays = half + half * tanh(half * gates[size + unit])
            leaves = half + half * tanh(half * gates[3 * size + unit])
            c[unit] = stays * c[unit] + enters * tanh(gates[2 * size + unit])
            h[unit] = leaves * tanh(c[unit])
            y[at * width + unit] = h[unit]
