"""A stage of a training plan as torch.distributed.pipelining takes it.

torch's stages are a chain: each gets tensors from the one before it and passes tensors to the one behind it. So a
tensor that is read further on goes through the stages in between, and so does its gradient in the backward pass::

    stage 0 ──x, y──► stage 1 ──x, z──► stage 2        x is read by 1 and 2, y by 1, z by 2
            ◄─ x's gradient from 2, and 1's on top ─
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from graphs.errors import InputError
from graphs.ir import Role
from graphs.program.program import Program
from planner.runtime.checkpoint.names import hold
from planner.runtime.training.means import Counting, Mean
from planner.runtime.training.stages import TrainingStage
from planner.runtime.training.step import mixed_precision
from planner.runtime.training.wiring import OUTSIDE, Wiring


def borders_of(wiring: Wiring) -> tuple[tuple[str, ...], ...]:
    """Return [n_stages], the tensors that come to each stage: written before it, and read in it or behind it.

    Inputs of the network come to the first stage, if they are read. The result is the same on all ranks.
    """
    state = {tensor.name for tensor in wiring.graph.tensors if tensor.role in (Role.PARAMETER, Role.BUFFER)}
    kept = {copy for name in state for copy in wiring.forks.get(name, (name,))}  # these stay with their device
    moving = sorted(name for name in wiring.home if name in wiring.readers and name not in kept)
    return tuple(
        tuple(
            name for name in moving if wiring.home[name] < max(stage, OUTSIDE + 1) and wiring.readers[name][-1] >= stage
        )
        for stage in range(len(wiring.members))
    )


def hollow(wiring: Wiring, names: Sequence[str], types: Mapping[str, torch.dtype]) -> tuple[torch.Tensor, ...]:
    """Return tensors or copies without values, contiguous, as torch is told what crosses a border."""
    graph = wiring.graph
    tensors = (graph.tensor[wiring.tensor_of.get(name, name)] for name in names)
    return tuple(
        torch.empty(tensor.shape, dtype=types[tensor.name], device="meta").requires_grad_(
            tensor.name in wiring.learned and tensor.name not in graph.inputs
        )
        for tensor in tensors
    )


def in_two_parts(wiring: Wiring, number: int) -> bool:
    """Return whether torch finds all gradients of a stage when it runs the backward pass in two parts.

    It begins the second part where the backward pass from a parameter meets that from an input. So it misses gradients
    that reach an output of the stage from parameters alone.
    """
    stage, of = wiring.stages[number], wiring.tensor_of
    parameters = {tensor.name for tensor in wiring.graph.tensors if tensor.role is Role.PARAMETER}
    from_inputs = {of.get(name, name) for name in stage.returns} - parameters
    from_parameters = parameters & wiring.learned  # alone
    for op in (wiring.graph.ops[i] for i in stage.ops):
        if not from_inputs.isdisjoint(op.inputs):
            from_inputs |= wiring.learned.intersection(op.outputs)
        elif not from_parameters.isdisjoint(op.inputs):
            from_parameters |= wiring.learned.intersection(op.outputs)
    is_last = number == len(wiring.members) - 1
    leaving = wiring.graph.outputs if is_last else [of.get(name, name) for name in stage.sends]
    return from_parameters.isdisjoint(leaving)


def held_state(
    program: Program, wiring: Wiring, own: Sequence[int], torch_device: torch.device
) -> dict[str, torch.Tensor]:
    """Copy parameters and buffers of some stages to a torch device; raise InputError if one has no values."""
    held: dict[str, torch.Tensor] = {}
    for name in dict.fromkeys(name for number in own for name in wiring.stages[number].state):
        tensor = program.state[name].detach()
        if tensor.is_meta:
            raise InputError(
                f"'{name}' has a shape but no values; give a model with weights, or the shard of this rank"
            )
        tensor = tensor.to(torch_device, copy=True)
        is_parameter = program.graph.tensor[name].role is Role.PARAMETER
        held[name] = nn.Parameter(tensor, requires_grad=name in wiring.learned) if is_parameter else tensor
    return held


class PipelineModule(nn.Module):
    """The generated function of a stage, with its parameters and buffers under the model's own names."""

    def __init__(
        self,
        stage: TrainingStage,
        arrives: tuple[str, ...],
        leaves: tuple[str, ...] | None,
        beside: Mapping[str, torch.Tensor],
        copies: bool,
    ) -> None:
        """Register the parameters and buffers.

        Args:
            stage: its parameters are `torch.nn.Parameter`.
            arrives: tensors from the stage before.
            leaves: tensors for the stage behind; None for the last stage, which returns the network's outputs.
            beside: parameters that another stage of this rank holds and this one reads too, by tensor or copy.
            copies: pass copies on, for a backward pass in two parts: after the first part torch detaches in place what
                was passed on, although an operator may have kept it for the second part.
        """
        super().__init__()
        self._stage = stage
        self._arrives, self._leaves, self._beside, self._copies = arrives, leaves, beside, copies
        self.means: list[Sequence[Mean]] = []  # of each micro-batch, in their order
        for name, tensor in zip(stage.wired.state, stage.state, strict=True):
            hold(self, name, tensor)

    def forward(
        self,
        *args: torch.Tensor,
        step: int = 0,
        micro_batch: int = 0,
        recompute: bool | None = False,
        autocast: torch.dtype | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Run the stage; return the tensors for the stage behind, or the outputs of the network.

        Args:
            args: tensors from the stage before.
            step: random numbers follow from it and ``micro_batch``.
            micro_batch: number of the micro-batch.
            recompute: keep only ``args`` for the backward pass, and run again then.
            autocast: the dtype of mixed precision, if any.
        """
        wired = self._stage.wired
        tensors = dict(zip(self._arrives, args, strict=True))
        received = tuple(tensors[name] if name in tensors else self._beside[name] for name in wired.receives)
        counting = Counting()
        with mixed(received, autocast), counting if self._stage.averages else nullcontext():
            results = (
                self._again(received, step, micro_batch) if recompute else self._stage(received, step, micro_batch)
            )
        self.means.append(counting.means)
        if self._leaves is None:
            return tuple(result.view_as(result) for result in results)  # torch detaches what is no view, weights too
        tensors |= zip(wired.sends, (result.contiguous() for result in results), strict=True)
        return tuple(tensors[name].clone() if self._copies else tensors[name] for name in self._leaves)

    def _again(self, received: tuple[torch.Tensor, ...], step: int, micro_batch: int) -> tuple[torch.Tensor, ...]:
        """Run the stage now, and once more in the backward pass."""
        runs = 0

        def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            nonlocal runs
            runs += 1
            return self._stage(tensors, step, micro_batch, again=runs > 1)

        results: tuple[torch.Tensor, ...] = checkpoint(run, *received, use_reentrant=False, preserve_rng_state=False)
        return results


def mixed(tensors: Sequence[torch.Tensor], dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    """Return mixed precision on the tensors' device, if a dtype is given."""
    return mixed_precision(tensors[0].device if tensors else torch.device("cpu"), dtype)
