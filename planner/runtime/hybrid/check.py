"""Compare some steps of a hybrid training with the same steps of the model itself, on one device."""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

import torch
import torch.distributed as dist

from costmodels.cluster.cluster import Device
from costmodels.host.affinity import usable_cores
from graphs.program.program import Program
from planner.parallelism.closed_form.config import ParallelConfig
from planner.runtime.checkpoint.names import names_in_model
from planner.runtime.hybrid.trainer import HybridTrainer
from planner.runtime.stages.random_generators import randomized
from planner.runtime.training.check import GradientDifference, ReferenceTraining, mean_square
from planner.runtime.training.step import MicroBatch

ALLOWED = {"float32": 1e-5, "bfloat16": 0.03}
"""By how much losses and gradients may differ, relative, by the precision of products, from the model's under the same
precision. bfloat16 has eight bits: with terms of a sum on two devices, gradients of `examples.networks:cifar10` differ
by 0.01 of their norm."""

NOISE = 1e-2
FIRST = 0  # the rank that has the reference model
OPTIMIZER = partial(torch.optim.AdamW, lr=1e-3, eps=1e-3)  # gradients that are zero but for rounding make no whole step


@dataclass(frozen=True)
class HybridRun:
    """Some steps, compared with those of the reference model.

    Attributes:
        losses: of each step.
        reference: the reference model's.
        differences: gradients of the first step that differ in some bit, the worst first.
        step_s: median of the measured steps.
        reference_s: of the reference model, on all cores of this host.
        random: an operator that draws random numbers, so that nothing can be compared; empty if there is none.
        allowed: by how much they may differ.
    """

    losses: tuple[float, ...]
    reference: tuple[float, ...]
    differences: tuple[GradientDifference, ...]
    step_s: float
    reference_s: float
    random: str = ""
    allowed: float = ALLOWED["float32"]

    @property
    def loss_difference(self) -> float:
        """The largest relative difference of two losses."""
        pairs = zip(self.losses, self.reference, strict=True)
        return max(abs(own - other) / max(abs(other), 1e-30) for own, other in pairs)

    @property
    def equal(self) -> bool:
        """Whether losses and gradients are those of the reference model, as far as they can be compared."""
        if self.random:
            return True
        return self.loss_difference <= self.allowed and all(each.share <= self.allowed for each in self.differences)


def compare_steps(config: ParallelConfig, program: Program, rounds: int) -> HybridRun | None:
    """Train some steps with the mean square as the loss; the comparison, on rank 0. All ranks do so together."""
    torch.backends.cudnn.allow_tf32 = False  # convolutions of a GPU have as many digits as the reference model's
    shape = config.shape
    batches = random_micro_batches(program, shape.data * shape.micro_batches)
    trainer = HybridTrainer(config, program, loss=mean_square, optimizer=OPTIMIZER)
    gradients = trainer.gradients_through(batches)
    losses, steps_s = [], []
    for _ in range(rounds):
        dist.barrier()
        start_s = time.perf_counter()
        losses.append(float(trainer.step_through(batches)))
        steps_s.append(time.perf_counter() - start_s)
    if dist.get_rank() != FIRST:
        return None
    products = getattr(torch, config.precision)
    expected, reference, reference_s = _reference(program, batches, rounds, products)
    random = min(randomized(program), default="")
    step_s, own_s = statistics.median(steps_s), statistics.median(reference_s)
    allowed = ALLOWED[config.precision]
    apart = tuple(differences(expected, gradients, allowed))
    return HybridRun(tuple(losses), tuple(reference), apart, step_s, own_s, random, allowed)


def differences(
    expected: Mapping[str, torch.Tensor | None],
    got: Mapping[str, torch.Tensor | None],
    allowed: float = ALLOWED["float32"],
) -> list[GradientDifference]:
    """Return the gradients that differ in some bit, the worst first, as shares of their norm.

    Some gradients are zero but for rounding, as those of a bias in front of a batch norm, or of attention's keys. So
    the norm counts as no less than a hundredth of that of all gradients together.
    """
    norms = {name: torch.linalg.vector_norm(grad) for name, grad in expected.items() if grad is not None}
    least = NOISE * torch.linalg.vector_norm(torch.stack([*norms.values()]))
    found = []
    for name, grad in expected.items():
        own = got.get(name)
        if grad is None or own is None:
            share = 0.0 if grad is None and own is None else inf
        else:
            share = float(torch.linalg.vector_norm(own - grad) / torch.maximum(norms[name], least))
        if share:
            found.append(GradientDifference(name, share, allowed))
    return sorted(found, key=lambda one: -one.share)


def random_micro_batches(program: Program, count: int) -> list[MicroBatch]:
    """Micro-batches like the example inputs, each another one."""
    generator = torch.Generator().manual_seed(0)

    graph = program.graph
    words = {op.inputs[1]: graph.tensor[op.inputs[0]].shape[0] for op in graph.ops if "aten.embedding" in op.kind}

    def other(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_floating_point():
            return torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
        return torch.randint(words[name], tensor.shape, generator=generator) if name in words else tensor

    named = dict(zip(graph.inputs, program.example_inputs, strict=True))
    return [MicroBatch(program.inputs(other(*each) for each in named.items()), None) for _ in range(count)]


def _reference(
    program: Program, batches: Sequence[MicroBatch], rounds: int, products: torch.dtype
) -> tuple[dict[str, torch.Tensor | None], list[float], list[float]]:
    """Gradients, losses and seconds of the model itself, on all cores of this host."""
    values: list[float] = []

    def loss(result: object, target: object) -> torch.Tensor:
        value = mean_square(result, target)
        values.append(float(value.detach()))
        return value

    device = Device("reference", "cpu", 1.0, {"float32": 1.0}, 1.0, cores=tuple(sorted(usable_cores())))
    model = ReferenceTraining(program, device, loss, OPTIMIZER, products)
    names = names_in_model(program)
    gradients = {names[name]: grad for name, grad in model.gradients(batches).items() if name in names}
    losses, steps_s = [], []
    for _ in range(rounds):
        values.clear()
        steps_s.append(model.step(batches))
        losses.append(statistics.fmean(values))
    return gradients, losses, steps_s
