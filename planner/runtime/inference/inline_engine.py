"""The engine without threads, for a device that the caller can be and that runs all stages; and the choice of it."""

import threading
from collections.abc import Mapping, Sequence

import torch

from costmodels.cluster.cluster import Device
from costmodels.host.affinity import is_here, settle, torch_device_of
from graphs.common.promises import Promise
from planner.runtime.inference.engine import Engine
from planner.runtime.inference.tasks import Tensors
from planner.runtime.stages.compile import CompiledStage


def engine_of(
    devices: Sequence[Device], stages: Mapping[int, CompiledStage], outputs: Sequence[str], n_copies: int
) -> Engine:
    """Return the engine of all stages of some copies of a network; arguments as those of `Engine`."""
    used = {stage.stage.device for stage in stages.values()}
    alone = len(used) == 1 and is_here(devices[min(used)])
    return (InlineEngine if alone else Engine)(devices, stages, outputs, ((),) * n_copies)  # nothing elsewhere


class InlineEngine(Engine):
    """An engine that runs a micro-batch on the thread that submits it; see `costmodels.host.affinity.is_here`.

    If several threads call, one runs at a time. An interrupt leaves the call, as it would leave the model.
    """

    def submit(self, inputs: Mapping[str, torch.Tensor], copy: int | None = None) -> Promise[Tensors]:
        """Run one micro-batch; the result is there, unless the engine is closed meanwhile."""
        done = super().submit(inputs, copy)
        with self._turn, torch.no_grad():  # as on a device's own thread
            while not done.done() and self._step(self._device, torch_device_of(self._devices[self._device]), None):
                pass
        failure = done.exception() if done.done() else None
        if failure is not None and isinstance(failure.__cause__, KeyboardInterrupt):
            raise failure.__cause__
        return done

    def _start(self, used: Sequence[int]) -> None:
        """Prepare to run all stages, which are on one device; start no thread."""
        (self._device,) = used
        self._turn = threading.Lock()
        settle()
