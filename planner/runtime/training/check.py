"""Compare the gradients of a plan's stages with those of the reference model."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, prod
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from costmodels.cluster.cluster import Device
from costmodels.host.affinity import run_on, torch_device_of
from graphs.importers.tracing_guards import configs_with_cache
from graphs.program.pieces import Pieces
from graphs.program.program import Program
from graphs.program.strides import comparable
from planner.runtime.checkpoint.names import names_in_model
from planner.runtime.stages.random_generators import randomized
from planner.runtime.training.any_trainer import AnyTrainer
from planner.runtime.training.optimizers import Factory
from planner.runtime.training.options import TrainerOptions
from planner.runtime.training.prepare import StageLayout, prepare, stage_layout
from planner.runtime.training.step import Loss, MicroBatch
from planner.runtime.training.trainer import Loop
from simulator.schedule import Schedule

T = TypeVar("T")


class ReferenceTraining:
    """A copy of the model itself, in the mode in which it was imported."""

    def __init__(
        self, program: Program, device: Device, loss: Loss, optimizer: Factory, products: torch.dtype = torch.float32
    ) -> None:
        """Copy the model to the device; raise InputError if this host does not have it.

        Its products are in float32, or in bfloat16 by autocast; what it returns is as wide as the import says.
        """
        torch_device = torch_device_of(device)
        self._device, self._products = device, products
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
            with torch.autocast(torch_device.type, self._products, enabled=self._products != torch.float32):
                result = self._model(*args, **kwargs)
            if self._products != torch.float32:
                result = pytree.tree_map_only(
                    torch.Tensor, lambda t: t.float() if t.dtype == self._products else t, result
                )
            target = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(torch_device), batch.target)
            loss = self._loss(result, target)
            (loss / len(batches)).backward()  # type: ignore[no-untyped-call]  # torch has no types here


ALLOWED = {torch.float64: 1e-6, torch.float32: 1e-4}
"""By how much two gradients may differ, as a share of their norm: sums in another order differ in their last digits."""

TINY_STEPS: Mapping[str, Factory] = {
    "sgd": partial(torch.optim.SGD, lr=1e-9),
    "momentum": partial(torch.optim.SGD, lr=1e-9, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=1e-9),
}
"""An optimizer for each name in `costmodels.memory.optimizers` that hardly changes weights, to measure steps with."""


@dataclass(frozen=True)
class GradientDifference:
    """A gradient that differs in some bit."""

    name: str  # name of the parameter
    share: float  # the norm of the difference over that of the gradient
    allowed: float  # the largest share that counts as rounding

    def __str__(self) -> str:
        return f"the gradient of '{self.name}' differs by {self.share:.2g} of its norm, {self.allowed:.2g} is allowed"


def mean_square(result: Any, target: Any) -> torch.Tensor:  # noqa: ARG001 (there is none)
    """Return a loss for any network: the mean of the squares of all its outputs."""
    outputs = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor) and x.is_floating_point()]
    first, *others = [x.square().sum().to(outputs[0].device) for x in outputs]
    return sum(others, first) / sum(prod(x.shape) for x in outputs)


def example_batches(program: Program, count: int) -> list[MicroBatch]:
    """Return the example inputs as every micro-batch."""
    inputs = dict(zip(program.graph.inputs, program.example_inputs, strict=True))
    return [MicroBatch(inputs, None) for _ in range(count)]


def differing_gradients(trainer: AnyTrainer, loss: Loss, batches: Sequence[MicroBatch]) -> list[GradientDifference]:
    """Take the first step of a trainer; return the gradients that differ from `reference_gradients`, worst first."""
    got = trainer.gradients(batches)
    return differing(reference_gradients(trainer.program, stage_layout(trainer.plan), loss, batches), got)


def reference_gradients(
    program: Program, layout: StageLayout, loss: Loss, batches: Sequence[MicroBatch]
) -> dict[str, torch.Tensor | None]:
    """Return the gradient of each parameter in the reference model, on the first device of a layout.

    Where the model draws random numbers, which only seeds make the same, that is the program as one stage.
    """
    if randomized(program):
        actions = " ".join(f"0F{i} 0B{i}" for i in range(layout.schedule.micro_batches))
        whole = StageLayout((tuple(range(len(program.graph.ops))),), layout.devices[:1], Schedule.parse([actions]))
        loop = Loop(prepare(program, whole, loss, TrainerOptions()), TINY_STEPS["sgd"])
        try:
            loop.run(batches, 0, len(batches))
            return Pieces.of(program).whole(loop.gradients())
        finally:
            loop.close()
    own = ReferenceTraining(program, layout.devices[0], loss, TINY_STEPS["sgd"]).gradients(batches)
    names = names_in_model(program)
    return {names[name]: gradient for name, gradient in own.items() if name in names}


def differing(
    expected: Mapping[str, torch.Tensor | None], got: Mapping[str, torch.Tensor | None]
) -> list[GradientDifference]:
    """Return the gradients that differ in any bit, the worst first."""
    differences = (_difference(name, expected[name], gradient) for name, gradient in got.items())
    return sorted(filter(None, differences), key=lambda difference: -difference.share)


def _difference(name: str, expected: torch.Tensor | None, got: torch.Tensor | None) -> GradientDifference | None:
    """Compare two gradients; return None if they are the same in every bit."""
    if expected is None or got is None:
        return None if expected is got else GradientDifference(name, inf, 0.0)
    expected, got = (x.to_dense() if x.is_sparse else x for x in (expected, got.to(expected.device)))
    one, other = comparable(expected), comparable(got)
    if torch.equal(one, other):
        return None
    norm, apart = torch.linalg.vector_norm(one), torch.linalg.vector_norm(one - other)
    share = (apart / norm).item() if norm > 0 and apart.isfinite() else inf
    return GradientDifference(name, share, ALLOWED.get(expected.dtype.to_real(), 1e-2))
