"""torch's engine for a rank of a pipeline, with a plan's own schedule.

torch adds the messages to the schedule and carries it out; what fails is named here as everywhere.
"""

import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.pipelining import schedules

from planner.runtime.distributed.training.gradients import GradientStage
from planner.runtime.distributed.training.stage import PipelineModule
from planner.runtime.distributed.training.transfer_log import MessageLog
from planner.runtime.errors import StageError
from planner.runtime.training.recorder import Passing
from simulator.schedule import Action, Computation, Schedule

Times: TypeAlias = list[tuple[Action, float, float]]
"""Actions with their starts and ends by `time.perf_counter`."""


class EngineStage(GradientStage):
    """Keeps the times of its actions and messages, and names actions where they fail."""

    def __init__(self, module: PipelineModule, on: str, *args: Any, **options: Any) -> None:
        super().__init__(module, *args, **options)
        self.module = module
        self.times: Times = []
        self.watch = MessageLog()
        self._on = on

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """As torch does it."""
        return self.watch.leaving(Action(self.stage_index, "F", fwd_chunk_id), super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """As torch does it."""
        return self.watch.leaving(Action(self.stage_index, "B", bwd_chunk_id), super().get_bwd_send_ops(bwd_chunk_id))

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """As torch does it."""
        sender = Action(self.stage_index - 1, "F", fwd_chunk_id)
        return self.watch.coming(sender, super().get_fwd_recv_ops(fwd_chunk_id))

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """As torch does it."""
        sender = Action(self.stage_index + 1, "B", bwd_chunk_id)
        return self.watch.coming(sender, super().get_bwd_recv_ops(bwd_chunk_id))

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **options: Any) -> Any:
        """As torch does it."""
        with self._action("F", fwd_chunk_id):
            return super().forward_one_chunk(fwd_chunk_id, *args, **options)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **options: Any) -> Any:
        """As torch does it."""
        with self._action("B" if options.get("full_backward", True) else "I", bwd_chunk_id):
            return super().backward_one_chunk(bwd_chunk_id, *args, **options)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **options: Any) -> Any:
        """As torch does it."""
        with self._action("W", bwd_chunk_id):
            return super().backward_weight_one_chunk(bwd_chunk_id, *args, **options)

    @contextmanager
    def _action(self, computation: Computation, micro_batch: int) -> Iterator[None]:
        action, start_s = Action(self.stage_index, computation, micro_batch), time.perf_counter()
        try:
            yield
        except Exception as error:
            cause = error.__cause__ or error
            raise StageError(
                f"stage {self.stage_index} on '{self._on}' failed in {action}: {type(cause).__name__}: {cause}"
            ) from cause
        self.times.append((action, start_s, time.perf_counter()))


class RankEngine:
    """Carries out our row of a schedule."""

    def __init__(
        self, stages: Sequence[EngineStage], schedule: Schedule, loss: Callable[[tuple[torch.Tensor, ...], Any], Any]
    ) -> None:
        """Hand the schedule over.

        Args:
            stages: our own.
            schedule: of all ranks.
            loss: of a micro-batch, from the outputs of the network and the target.
        """
        runtime_class: Any = schedules._PipelineScheduleRuntime  # the one that takes any schedule
        self._stages = stages
        self._runtime = runtime_class(list(stages), schedule.micro_batches, loss_fn=loss, scale_grads=False)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "schedule.csv"
            path.write_text(schedule.to_csv(), encoding="utf-8")
            self._runtime._load_csv(str(path), "compute_only")

    def run(
        self,
        inputs: Sequence[tuple[torch.Tensor, ...]],
        targets: Sequence[Any],
        options: Mapping[str, Any],
        first: int = 0,
        timed: bool = False,
    ) -> None:
        """Forward and backward of all micro-batches.

        Args:
            inputs: of each micro-batch, for the first stage.
            targets: of each micro-batch, for the loss.
            options: for every stage, see `PipelineModule.forward`.
            first: number of the first micro-batch among those of all replicas; random numbers follow from it.
            timed: whether messages are watched, for `passings`.

        Raises:
            StageError: if a stage of ours fails, or the loss.
            RuntimeError: if another rank is gone.
        """
        for stage in self._stages:
            stage.times.clear()
            stage.watch.seen.clear()
            stage.watch.on = timed
            stage.has_backward = True
            stage.clear_runtime_states()
        each = [{"micro_batch": first + number, **options} for number in range(len(inputs))]
        with torch.enable_grad(), _quiet_schedules():
            self._runtime._step_microbatches(list(inputs), each, list(targets), return_outputs=False)

    def passings(self) -> list[Passing]:
        """When messages left our stages and came to them in the last run, if that was watched."""
        return [passing for stage in self._stages for passing in stage.watch.seen]

    def times(self) -> Times:
        """When the actions of the last run were."""
        return sorted((time for stage in self._stages for time in stage.times), key=lambda times: times[1])


@contextmanager
def _quiet_schedules() -> Iterator[None]:
    """Without the whole schedule in the log when an action fails; what matters comes as an exception."""
    logger = logging.getLogger(schedules.__name__)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
