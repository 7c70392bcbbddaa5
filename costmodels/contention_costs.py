"""ContentionCosts: by how much devices of one host slow each other down."""

from dataclasses import dataclass, field

import numpy as np

from graphs.common.arrays import Floats, Ints
from graphs.common.brief import Brief


@dataclass(frozen=True)
class ContentionCosts(Brief):
    """Groups of devices that slow each other down while they compute at once.

    Attributes:
        slowdown: [n_ops, n_devices], by what share both passes take longer while the other devices of the group
            compute, see `costmodels.table.CostTable.with_contention`; above -1 (below 0 by chance of measuring).
        copies_slowdown: [n_ops, n_devices], the same while the devices of the group compute copies of the network; who
            is a little later finds the other one's weights in the cache, and two micro-batches at once read a weight
            once, so that it may be far below 0; ``slowdown`` if left out.
        group: [n_devices], number of the group that a device belongs to; one group of all if left out.
    """

    slowdown: Floats
    copies_slowdown: Floats = field(default_factory=lambda: np.zeros(0))
    group: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __post_init__(self) -> None:
        if not self.copies_slowdown.size:
            object.__setattr__(self, "copies_slowdown", self.slowdown)
        if not self.group.size:
            object.__setattr__(self, "group", np.zeros(self.slowdown.shape[1:], dtype=np.int64))

    @property
    def slows(self) -> bool:
        """Whether any operator takes longer, or shorter, for it."""
        return bool(self.slowdown.any() or self.copies_slowdown.any())
