"""The states of PyTorch's optimizers, and the memory and traffic of their steps.

The figures are those of ``torch.optim`` in its default settings on a CPU: one parameter after the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

SCALAR_BYTES = 4  # Adam counts its steps in a float32 for each parameter


@dataclass(frozen=True)
class Optimizer:
    """An optimizer."""

    moves: int  # bytes that a step reads or writes, as a multiple of the parameter's bytes
    copies: int  # number of states as large as the parameter: a momentum, moments
    scalars: int = 0  # number of states of 4 bytes for each parameter
    denominator: bool = False  # whether a step divides by the root of a state, which needs temporary memory

    def state_bytes(self, parameters_bytes: Sequence[int]) -> int:
        """Return the bytes of the states of parameters with these numbers of bytes."""
        return self.copies * sum(parameters_bytes) + self.scalars * SCALAR_BYTES * len(parameters_bytes)

    def step_bytes(self, parameters_bytes: Sequence[int]) -> int:
        """Peak bytes of a step besides parameters, gradients and states.

        Adam divides by ``sqrt(v) / c + eps``: the root and the quotient of one parameter and the quotient of the
        previous one are alive at once. The parameters are those of one device, in the order of the optimizer.
        """
        if not self.denominator or not parameters_bytes:
            return 0
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
"""The optimizers by name; ``momentum`` is SGD with momentum, and ``adam`` is also valid for AdamW."""
