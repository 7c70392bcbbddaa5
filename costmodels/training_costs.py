"""TrainingCosts: what a table knows of training besides, and of what runs again before its backward pass."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from costmodels.step_update import StepUpdate
from costmodels.workload import RecomputeMode
from graphs.common.arrays import Floats, Ints
from graphs.common.brief import Brief


@dataclass(frozen=True)
class TrainingCosts(Brief):
    """Seconds and bytes of the backward passes of a `costmodels.table.CostTable`, and the end of a step.

    Arrays that are left out are zeros.

    Attributes:
        backward_s: [n_ops, n_devices], isolated seconds of the backward pass of one micro-batch.
        gradient: [n_flows], whether a gradient of the same size comes back from each reader in the backward pass.
        saved_bytes: [n_ops], bytes that an operator's device keeps of each micro-batch from its forward to its backward
            pass.
        ends_bytes: [n_ops], what of that are inputs and results of the network: recomputation keeps them all the same.
        runs_once: [n_ops], whether an operator does not run again with selective recomputation.
        once_bytes: [n_ops], results of these, which it keeps besides.
        once_saved_bytes: [n_ops], what of ``saved_bytes`` these are, so that it is not saved again.
        layer: [n_ops], the number of the layer that an operator runs again with, one layer after the other; -1 for one
            that never does. A stage runs again as a whole if left out.
        layer_bytes: [n_flows], what layers that run again keep of a flow from another layer of their device.
        held: of how many micro-batches a device keeps them at once, at most.
        update: what a training step ends with; None if that takes no time.
    """

    backward_s: Floats
    gradient: NDArray[np.bool_]
    saved_bytes: Floats = field(default_factory=lambda: np.zeros(0))
    ends_bytes: Floats = field(default_factory=lambda: np.zeros(0))
    runs_once: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))
    once_bytes: Floats = field(default_factory=lambda: np.zeros(0))
    once_saved_bytes: Floats = field(default_factory=lambda: np.zeros(0))
    layer: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    layer_bytes: Floats = field(default_factory=lambda: np.zeros(0))
    held: float = 1.0
    update: StepUpdate | None = None

    def __post_init__(self) -> None:
        n_ops, n_flows = len(self.backward_s), len(self.gradient)
        by_op = ("saved_bytes", "ends_bytes", "runs_once", "once_bytes", "once_saved_bytes", "layer")
        for name, size in (*((name, n_ops) for name in by_op), ("layer_bytes", n_flows)):
            if not (value := getattr(self, name)).size:
                object.__setattr__(self, name, np.zeros(size, value.dtype))

    @classmethod
    def none(cls, n_ops: int, n_devices: int, n_flows: int) -> "TrainingCosts":
        """Return the costs of training where nothing is trained."""
        return cls(np.zeros((n_ops, n_devices)), np.zeros(n_flows, dtype=bool))

    def runs_again(self, recompute: RecomputeMode) -> NDArray[np.bool_]:
        """[n_ops], whether an operator runs again before its backward pass."""
        may = self.layer >= 0
        return {"none": np.zeros_like(may), "selective": ~self.runs_once & may}.get(recompute, may)

    def waiting_bytes(self, recompute: RecomputeMode) -> Floats:
        """[n_ops], what an operator's device keeps of a micro-batch that waits for its backward pass."""
        if recompute == "none":
            return self.saved_bytes
        kept_bytes = self.ends_bytes + self.once_bytes if recompute == "selective" else self.ends_bytes
        return np.where(self.layer >= 0, kept_bytes, self.saved_bytes)

    def again_bytes(self, recompute: RecomputeMode) -> Floats:
        """[n_ops], what an operator saves for its backward pass when it runs again, besides what waits."""
        if recompute == "none":
            return np.zeros(len(self.layer))
        kept_bytes = self.ends_bytes + self.once_saved_bytes if recompute == "selective" else self.ends_bytes
        return np.where(self.layer >= 0, np.maximum(0.0, self.saved_bytes - kept_bytes), 0.0)

    def kept_once(self, recompute: RecomputeMode) -> NDArray[np.bool_]:
        """[n_ops], whether recomputation keeps an operator's results."""
        return np.asarray(self.runs_once & (self.layer >= 0) & (recompute == "selective"))
