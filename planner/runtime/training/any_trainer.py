"""The methods of all trainers, wherever their devices are."""

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from graphs.common import checks
from graphs.common.errors import InputError
from graphs.program.arguments import arguments_of
from graphs.program.program import Program
from planner.plans.plan import Plan
from planner.runtime.closing import Closing
from planner.runtime.training.options import TrainerOptions
from planner.runtime.training.prepare import replica_count
from planner.runtime.training.step import MicroBatch
from simulator.timeline import Timeline

DROP_LAST = "leave a last batch that is short out, by DataLoader(..., drop_last=True)"


class AnyTrainer(Closing):
    """A model that is trained where its plan says: by threads, by processes that they start, or by one rank of many."""

    plan: Plan  # where and in which order
    program: Program  # the model, imported
    trainer_options: TrainerOptions  # how
    pids: tuple[int, ...] = ()  # other processes of this host that devices run in
    optimizers: tuple[torch.optim.Optimizer, ...] = ()  # of devices of this process that train something

    def step(self, batch: Any, target: Any = None) -> torch.Tensor:
        """Run one training step: forward and backward of every micro-batch, and the optimizers.

        Ranks take it together with the same batch and target: the first stage reads the batch, the last one the target.

        Args:
            batch: as many samples as the micro-batches of the plan, and of all its replicas, have together, in any
                form that `planner.plan` takes example inputs in.
            target: for the loss; its tensors have as many samples.

        Returns:
            The mean loss, without a gradient.

        Raises:
            InputError: if the batch does not fit the plan, or the loss is none.
            StageError: if a stage fails; its cause is the original exception, or has the traceback of its process.
            RankError: if another process has failed, has ended or is stopped.
            RuntimeError: if the trainer is closed, before or meanwhile.
        """
        workload = self.plan.workload
        count = workload.micro_batches * replica_count(self.plan)
        return self.step_through(divide(self.program, workload.batch, count, batch, target))

    @abstractmethod
    def step_through(self, batches: Sequence[MicroBatch]) -> torch.Tensor:
        """Run one training step on a batch that is divided already."""

    def step_s(self, batches: Sequence[MicroBatch]) -> float:
        """Run one training step; return its seconds."""
        start_s = time.perf_counter()
        self.step_through(batches)
        return time.perf_counter() - start_s

    @abstractmethod
    def gradients(self, batches: Sequence[MicroBatch]) -> dict[str, torch.Tensor | None]:
        """Run one training step; return its gradients, by the names of the parameters in the network."""

    @abstractmethod
    def change_options(self, **options: Any) -> None:
        """Change options of all optimizers, such as ``lr``; raise InputError and change nothing if one is unknown."""

    @abstractmethod
    def model_state_dict(self) -> dict[str, Any]:
        """Return the model's ``state_dict()`` as it is now, for ``load_state_dict`` of the module, or a rank's part."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to go on, with this plan or another one of the same model, for `torch.save`.

        A rank returns its part. Raise InputError if gradients wait for the optimizer.
        """

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, as if there had been no break; it is whole, of any trainer of this model.

        Raise InputError if it is of another model, optimizer, seed or version, or not whole; nothing is changed then.
        """

    @abstractmethod
    def record(self) -> None:
        """Measure the steps that begin from here on; `timeline` returns what was seen."""

    @abstractmethod
    def timeline(self) -> Timeline:
        """Return what ran on which device since `record`, with the labels of the schedule, and stop recording."""

    def recorded(self, batches: Sequence[MicroBatch]) -> Timeline:
        """Run one training step; return its timeline."""
        self.record()
        self.step_through(batches)
        return self.timeline()


def divide(program: Program, batch: int, count: int, arguments: Any, target: Any) -> list[MicroBatch]:
    """Divide a batch into ``count`` micro-batches of ``batch`` samples each; raise InputError if that is impossible.

    Inputs that the model was imported with as many samples as a micro-batch has are cut; others, such as a mask with
    another first dimension, go whole to every micro-batch. Each tensor of the target is cut in equal parts.
    The arguments have any form that `planner.plan` takes example inputs in.
    """
    leaves = program.leaves_of(*arguments_of(arguments, "the inputs of a step"))
    is_cut = [isinstance(name, str) and program.graph.tensor[name].shape[:1] == (batch,) for name in program.in_leaves]
    if count > 1 and not any(is_cut):
        raise InputError(
            f"no input of '{program.graph.name}' has the plan's batch {batch} as its first dimension, so nothing can "
            f"be divided into {count} micro-batches; plan with the batch that the inputs have"
        )
    for name, leaf, cut in zip(program.in_leaves, leaves, is_cut, strict=True):
        if cut:
            checks.instance(leaf, torch.Tensor, f"input '{name}'", "a tensor")
            if leaf.shape[:1] != (batch * count,):
                raise InputError(_other_batch(f"input '{name}'", leaf, batch, count))
    for tensor in pytree.tree_leaves(target):
        if isinstance(tensor, torch.Tensor) and sum(tensor.shape[:1]) % count:
            raise InputError(
                f"a target is {list(tensor.shape)}; its first dimension does not go into {count} micro-batches: "
                f"{DROP_LAST}, or pass a target for each sample"
            )

    def part(i: int) -> MicroBatch:
        own = [leaf[i * batch : (i + 1) * batch] if cut else leaf for leaf, cut in zip(leaves, is_cut, strict=True)]
        inputs = program.flatten(*pytree.tree_unflatten(own, program.in_spec))
        own_target = pytree.tree_map_only(
            torch.Tensor, lambda tensor: tensor.tensor_split(count)[i] if tensor.ndim else tensor, target
        )
        return MicroBatch(program.inputs(inputs), own_target)

    return [part(i) for i in range(count)]


def _other_batch(what: str, tensor: torch.Tensor, batch: int, count: int) -> str:
    """Say that a tensor has another number of samples than a step takes."""
    way_out = DROP_LAST if 0 < sum(tensor.shape[:1]) < batch * count else "pass as many"
    return (
        f"{what} is {list(tensor.shape)}; a step of this plan takes {count} micro-batches of {batch}, so "
        f"{batch * count} samples in the first dimension: {way_out}, or plan for another batch"
    )


def check_batches(batches: Any, count: int) -> None:
    """Raise InputError if a divided batch has another number of micro-batches, or is something else."""
    checks.instance(batches, Sequence, "the divided batch", f"a list of {count} MicroBatch")
    for batch in batches:
        checks.instance(batch, MicroBatch, "a micro-batch", "a MicroBatch")
    if len(batches) != count:
        raise InputError(f"the divided batch has {len(batches)} micro-batches; a step of this plan takes {count}")
