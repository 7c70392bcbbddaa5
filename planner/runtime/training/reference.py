"""Reference training: the model as its user has it, trained on one device with the same micro-batches."""

import copy
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from costmodels.cluster import Device
from costmodels.host.affinity import run_on, torch_device_of
from graphs.importers.caches import configs_with_cache
from graphs.program.program import Program
from planner.runtime.training.optimizers import Factory
from planner.runtime.training.step import Loss, MicroBatch

T = TypeVar("T")


class ReferenceTraining:
    """A copy of the model itself, in the mode in which it was imported."""

    def __init__(self, program: Program, device: Device, loss: Loss, optimizer: Factory) -> None:
        """Copy the model to the device; raise InputError if this host does not have it."""
        torch_device = torch_device_of(device)
        self._device = device
        self._program = program
        self._loss = loss
        self._model = copy.deepcopy(program.module).to(torch_device)
        if self._model.training != program.training:
            for part in self._model.modules():
                part.training = program.training  # an exported module has no train()
        for config in configs_with_cache(self._model):
            config.use_cache = False
        self._trained = {name: p for name, p in self._model.named_parameters() if p.requires_grad}
        self._optimizer = optimizer(list(self._trained.values()))

    def gradients(self, batches: Sequence[MicroBatch]) -> dict[str, torch.Tensor | None]:
        """Return the gradient of the mean loss for each parameter, by the model's names, and change no parameter."""

        def work() -> dict[str, torch.Tensor | None]:
            self._pass(batches)
            gradients = {name: parameter.grad for name, parameter in self._trained.items()}
            self._optimizer.zero_grad()
            return gradients

        return self._turn(work)

    def step(self, batches: Sequence[MicroBatch]) -> float:
        """Run forward, backward and the optimizer; return how many seconds that took."""

        def work() -> float:
            start_s = time.perf_counter()
            self._pass(batches)
            self._optimizer.step()
            self._optimizer.zero_grad()
            if self._device.cuda is not None:
                torch.cuda.synchronize(self._device.cuda)
            return time.perf_counter() - start_s

        return self._turn(work)

    def _turn(self, work: Callable[[], T]) -> T:
        """Run on the device, with gradients."""
        return run_on(self._device, torch.enable_grad()(work))

    def _pass(self, batches: Sequence[MicroBatch]) -> None:
        torch_device = torch_device_of(self._device)
        for batch in batches:
            args, kwargs = self._program.arguments_of([tensor.to(torch_device) for tensor in batch.inputs.values()])
            loss = self._loss(self._model(*args, **kwargs), batch.target)
            (loss / len(batches)).backward()  # type: ignore[no-untyped-call]  # torch has no types here
