"""A plan for one device that the calling thread is bound to already: the calling thread runs the stages itself."""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import torch

from costmodels.cluster import Device
from costmodels.host.affinity import settle, torch_device_of
from planner.runtime.inference.engine import Engine, Tensors
from planner.runtime.stages.compile import CompiledStage


class InlineEngine(Engine):
    """An engine that runs a micro-batch on the thread that submits it; see `costmodels.host.affinity.is_here`.

    If several threads call, one runs at a time. An interrupt leaves the call, as it would leave the model.
    """

    def __init__(
        self, devices: Sequence[Device], stages: Mapping[int, CompiledStage], outputs: Sequence[str], device: int
    ) -> None:
        """Prepare to run all stages on one device, whose number is the last argument; start no thread."""
        self._device, self._torch_device = device, torch_device_of(devices[device])
        self._turn = threading.Lock()
        settle()
        super().__init__(devices, stages, outputs)

    def submit(self, inputs: Mapping[str, torch.Tensor]) -> "Future[Tensors]":
        """Run one micro-batch; the future is done, unless the engine is closed meanwhile."""
        done = super().submit(inputs)
        with self._turn, torch.no_grad():  # as on a device's own thread
            while not done.done() and self._step(self._device, self._torch_device, None):
                pass
        failure = done.exception() if done.done() else None
        if failure is not None and isinstance(failure.__cause__, KeyboardInterrupt):
            raise failure.__cause__
        return done

    def _start(self, used: Sequence[int]) -> list[threading.Thread]:  # noqa: ARG002  # the calling thread is used
        return []
