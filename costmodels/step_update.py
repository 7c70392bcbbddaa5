"""StepUpdate: what each training step ends with."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from graphs.common.arrays import Floats, Ints
from graphs.common.brief import Brief


@dataclass(frozen=True)
class StepUpdate(Brief):
    """At the end of each training step, gradients are added up with other replicas, the optimizer runs."""

    gradient_bytes: Floats  # [n_ops], of the trained parameters that live with an operator; gradients are as large
    optimizer_s_per_byte: Floats  # [n_devices], seconds of the optimizer's step for each of these bytes
    sync_s_per_byte: Floats  # [n_devices], seconds to add up each of them with the device's replicas; 0 without any
    sync_latency_s: Floats  # [n_devices], what each sum takes besides, however small
    # [n_devices], number of the uplink of a device's ring, which sums that run at once share; one each if left out
    uplink: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __post_init__(self) -> None:
        if not self.uplink.size:
            object.__setattr__(self, "uplink", np.arange(len(self.sync_s_per_byte)))

    @property
    def sharing(self) -> Ints:
        """[n_devices], how many devices have their rings on a device's uplink."""
        _, number, rings = np.unique(self.uplink, return_inverse=True, return_counts=True)
        return np.asarray(rings[number])

    def optimizer_s(self, ops: Sequence[int], device: int) -> float:
        """Return the seconds of the optimizer for these operators there."""
        return float(self.gradient_bytes[list(ops)].sum() * self.optimizer_s_per_byte[device])

    def sync_s(self, ops: Sequence[int], device: int) -> float:
        """Return the seconds to add up the gradients of these operators there; nothing if there are none."""
        n_bytes = float(self.gradient_bytes[list(ops)].sum())
        return float(self.sync_latency_s[device] + n_bytes * self.sync_s_per_byte[device]) if n_bytes else 0.0
