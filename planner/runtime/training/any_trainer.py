"""What all trainers can do, wherever their devices are."""

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
    """A model that is trained where its plan says: by threads, by processes that they start, or by one rank of many.

    Attributes:
        plan: where and in which order.
        program: the model, imported.
        trainer_options: how.
        pids: other processes of this host that devices run in.
    """

    plan: Plan
    program: Program
    trainer_options: TrainerOptions
    pids: tuple[int, ...] = ()

    def step(self, batch: Any, target: Any = None) -> torch.Tensor:
        """One training step: forward and backward of every micro-batch, and the optimizers.

        Ranks take it together, all with the same batch and target: the first stage reads the one, the last the other.

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
        """The same for a batch that is divided already."""

    def step_s(self, batches: Sequence[MicroBatch]) -> float:
        """Seconds of a step."""
        start_s = time.perf_counter()
        self.step_through(batches)
        return time.perf_counter() - start_s

    @abstractmethod
    def gradients(self, batches: Sequence[MicroBatch]) -> dict[str, torch.Tensor | None]:
        """The gradients of a step that is taken, by the names of the parameters in the program."""

    @abstractmethod
    def change_options(self, **options: Any) -> None:
        """Change options of all optimizers from the next step on, such as ``lr``.

        Raises:
            InputError: if they have none of that name; nothing is changed then.
        """

    @abstractmethod
    def model_state_dict(self) -> dict[str, Any]:
        """The model's ``state_dict()`` as it is now, for `torch.nn.Module.load_state_dict`; of a rank, its part."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on, with this plan or another one of the same model, for `torch.save`.

        Of a rank, its part; see `planner.runtime.training.states`.

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
        """What ran on which device since `record`, in the words of the schedule; recording ends."""

    def recorded(self, batches: Sequence[MicroBatch]) -> Timeline:
        """What runs when in one step."""
        self.record()
        self.step_through(batches)
        return self.timeline()
