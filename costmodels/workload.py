"""What the network is used for: how many samples at once, forward only or training."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from graphs.errors import InputError

Mode: TypeAlias = Literal["inference"]


@dataclass(frozen=True, slots=True)
class Workload:
    """One use of a network.

    Attributes:
        mode: forward only, for now.
        batch: samples in one micro-batch; the shapes in the graph are those of one micro-batch.
        in_flight: micro-batches that may be on their way at the same time; each holds its own activations.
    """

    mode: Mode = "inference"
    batch: int = 1
    in_flight: int = 4

    def __post_init__(self) -> None:
        if self.mode != "inference":
            raise InputError(f"the mode is '{self.mode}'; this version knows 'inference'")
        if self.batch < 1:
            raise InputError(f"the batch is {self.batch}; it must be 1 or more")
        if self.in_flight < 1:
            raise InputError(f"{self.in_flight} micro-batches in flight; it must be 1 or more")
