"""torch's engine for a rank of a pipeline, with a plan's own schedule.

torch adds the messages to the schedule and runs it; errors name the stage and the action, as in other runs.
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
from planner.runtime.training.recorder import MessageEnd
from simulator.schedule import Action, Computation, Schedule

Times: TypeAlias = list[tuple[Action, float, float]]
"""Actions with their starts and ends by `time.perf_counter`."""


class EngineStage(GradientStage):
    """A stage that keeps the times of its actions and messages, and names an action that fails."""

    def __init__(self, module: PipelineModule, on: str, *args: Any, **options: Any) -> None:
        super().__init__(module, *args, **options)
        self.module = module
        self.times: Times = []
        self.messages = MessageLog()
        self._on = on

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Note what leaves behind a forward pass."""
        sender = Action(self.stage_index, "F", fwd_chunk_id)
        return self.messages.leaving(sender, super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Note what leaves behind a backward pass."""
        sender = Action(self.stage_index, "B", bwd_chunk_id)
        return self.messages.leaving(sender, super().get_bwd_send_ops(bwd_chunk_id))

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Watch what comes from the stage before."""
        sender = Action(self.stage_index - 1, "F", fwd_chunk_id)
        return self.messages.coming(sender, super().get_fwd_recv_ops(fwd_chunk_id))

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Watch what comes from the stage behind."""
        sender = Action(self.stage_index + 1, "B", bwd_chunk_id)
        return self.messages.coming(sender, super().get_bwd_recv_ops(bwd_chunk_id))

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **options: Any) -> Any:
        """Time the forward pass of a micro-batch."""
        with self._action("F", fwd_chunk_id):
            return super().forward_one_chunk(fwd_chunk_id, *args, **options)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **options: Any) -> Any:
        """Time the backward pass of a micro-batch, or its first part."""
        with self._action("B" if options.get("full_backward", True) else "I", bwd_chunk_id):
            return super().backward_one_chunk(bwd_chunk_id, *args, **options)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **options: Any) -> Any:
        """Time the second part of a backward pass."""
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
    """Runs one rank's row of a schedule."""

    def __init__(
        self, stages: Sequence[EngineStage], schedule: Schedule, loss: Callable[[tuple[torch.Tensor, ...], Any], Any]
    ) -> None:
        """Give the schedule of all ranks to torch; ``loss`` takes the outputs of the network and the target."""
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
        """Run forward and backward of all micro-batches.

        Args:
            inputs: of each micro-batch, for the first stage.
            targets: of each micro-batch, for the loss.
            options: for every stage, see `PipelineModule.forward`.
            first: number of the first micro-batch among those of all replicas.
            timed: whether to keep the times of messages, for `passings`.

        Raises:
            StageError: if a stage of this rank fails, or the loss.
            RuntimeError: if another rank is gone.
        """
        for stage in self._stages:
            stage.times.clear()
            stage.messages.ends.clear()
            stage.messages.on = timed
            stage.has_backward = True
            stage.clear_runtime_states()
        each = [{"micro_batch": first + number, **options} for number in range(len(inputs))]
        with torch.enable_grad(), _quiet_schedules():
            self._runtime._step_microbatches(list(inputs), each, list(targets), return_outputs=False)

    def passings(self) -> list[MessageEnd]:
        """Return when messages left the stages of this rank and came to them in the last run, if it was timed."""
        return [end for stage in self._stages for end in stage.messages.ends]

    def times(self) -> Times:
        """Return the times of the actions of the last run, in order."""
        return sorted((time for stage in self._stages for time in stage.times), key=lambda times: times[1])


@contextmanager
def _quiet_schedules() -> Iterator[None]:
    """Keep torch from logging the whole schedule when an action fails; the exception says what matters."""
    logger = logging.getLogger(schedules.__name__)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
