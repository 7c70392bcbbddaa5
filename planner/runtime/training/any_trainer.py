"""The methods of all trainers, wherever their devices are."""

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from graphs.program.program import Program
from planner.plans.plan import Plan
from planner.runtime.closing import Closing
from planner.runtime.training.batches import divide
from planner.runtime.training.options import TrainerOptions
from planner.runtime.training.prepare import replicas_of
from planner.runtime.training.step import MicroBatch
from simulator.timeline import Timeline


class AnyTrainer(Closing):
    """A model that is trained where its plan says: by threads, by processes that they start, or by one rank of many."""

    plan: Plan  # where and in which order
    program: Program  # the model, imported
    trainer_options: TrainerOptions  # how
    pids: tuple[int, ...] = ()  # other processes of this host that devices run in

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
        count = workload.micro_batches * replicas_of(self.plan)
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
        """Run one training step; return its gradients, by the names of the parameters in the program."""

    @abstractmethod
    def change_options(self, **options: Any) -> None:
        """Change options of all optimizers, such as ``lr``; raise InputError and change nothing if one is unknown."""

    @abstractmethod
    def model_state_dict(self) -> dict[str, Any]:
        """Return the model's ``state_dict()`` as it is now, for ``load_state_dict`` of the module, or a rank's part."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to go on, with this plan or another one of the same model, for `torch.save`.

        A rank returns its part, see `planner.runtime.training.states`.

        Raises:
            InputError: if gradients wait for the optimizer.
        """

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, as if there had been no break.

        Args:
            state: of any trainer of this model, on threads or in processes, whole.

        Raises:
            InputError: if it is of another model, optimizer, seed or version, or not whole; nothing is changed then.
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
