"""What PyTorch's optimizers keep for each parameter, and what a step takes besides.

The figures are those of ``torch.optim`` in its default settings: one parameter after the other on a CPU, all of a
device at once (``foreach``) on a GPU.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

SCALAR_BYTES = 4  # Adam counts its steps in a float32 for each parameter


@dataclass(frozen=True)
class Optimizer:
    """One way to update parameters.

    Attributes:
        moves: how many times a step reads or writes as many bytes as the parameter has, operation by operation.
        copies: states as large as the parameter: a momentum, moments.
        scalars: states of 4 bytes for each parameter.
        denominator: whether a step divides by the root of a state, which takes memory for a moment.
    """

    moves: int
    copies: int
    scalars: int = 0
    denominator: bool = False

    def state_bytes(self, parameters_bytes: Sequence[int]) -> int:
        """Bytes of the states of parameters that take these bytes, one number each."""
        return self.copies * sum(parameters_bytes) + self.scalars * SCALAR_BYTES * len(parameters_bytes)

    def step_bytes(self, parameters_bytes: Sequence[int], foreach: bool = False) -> int:
        """The most that a step takes besides parameters, gradients and states.

        Adam divides by ``sqrt(v) / c + eps``. One parameter after the other, the root and the quotient of one are there
        together, and the quotient of the one before; all at once, there is one such number for each element.

        Args:
            parameters_bytes: [n_parameters] of one device, in the order of the optimizer.
            foreach: whether the optimizer updates all parameters of the device at once, as it does on a GPU.
        """
        if not self.denominator or not parameters_bytes:
            return 0
        if foreach:
            return sum(parameters_bytes)
        before = [0, *parameters_bytes]
        return max(2 * now + last for now, last in zip(parameters_bytes, before, strict=False))


OPTIMIZERS: Mapping[str, Optimizer] = MappingProxyType(
    {
        "sgd": Optimizer(moves=3, copies=0),  # p, g → p
        "momentum": Optimizer(moves=8, copies=1),  # m → m; m, g → m; p, m → p
        "adam": Optimizer(  # m, g → m; v → v; v, g → v; v → root; root → root, twice; p, m, root → p
            moves=3 + 2 + 3 + 2 + 2 * 2 + 4, copies=2, scalars=1, denominator=True
        ),
    }
)
"""The known ones, by name; ``momentum`` is SGD with momentum, and what holds for Adam holds for AdamW."""
