"""Training worker: a rank that another process has started, and that trains by its commands.

::

    coordinator   shared buffer: micro-batches     store: "command 4" = step ─────────► "answer 4 of 1", "answer 4 of 2"
    rank 1        waits for "command 4", takes the step with all ranks, answers with its seconds, waits for "command 5"
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]  # it is public
from torch.utils._pytree import tree_map_only

from graphs.errors import InputError
from planner.runtime.distributed.training.payloads import opened, taken
from planner.runtime.distributed.training.trainer import PipelineTrainer
from planner.runtime.distributed.transport.rendezvous import asking
from planner.runtime.errors import RankError, StageError, failure_to_text
from planner.runtime.training.step import MicroBatch

COMMAND_TIMEOUT = timedelta(days=30)  # for the next command; the process ends with the coordinator anyway


BEGIN, STEP, GRADIENTS = "begin", "step", "gradients"
"""Commands that have no content, or micro-batches in the shared buffer; all others are methods of `PipelineTrainer`.

Their arguments, if any, are in a file, and what they return is written to another one.
"""
SHARED_BUFFER = "shared_buffer"  # the name of its file


def key_of(number: int, rank: int | None = None) -> str:
    """Return the key of a command in the store, or of the answer of a rank."""
    return f"command {number}" if rank is None else f"answer {number} of {rank}"


def file_of(folder: Path, number: int, rank: int | None = None) -> Path:
    """Return the file of a command, or of the answer of a rank."""
    return folder / (f"{number}.pt" if rank is None else f"{number}-{rank}.pt")


@dataclass(frozen=True)
class CommandLoop:
    """Where a rank gets its commands."""

    store: Store  # has the commands
    folder: Path  # has their files
    rank: int  # the own number; the coordinator is 0

    def serve(self, make: Callable[[], PipelineTrainer]) -> None:
        """Obey the coordinator with a trainer that ``make`` makes, until a command fails and the coordinator knows.

        This process ends with the coordinator.
        """
        trainer: PipelineTrainer | None = None
        try:
            for number in count():
                with asking():
                    self.store.wait([key_of(number)], COMMAND_TIMEOUT)
                    command = self.store.get(key_of(number)).decode()
                try:
                    trainer = trainer or make()
                    answer = {"value": self._obey(command, number, trainer)}
                except Exception as error:  # whatever a loss or an optimizer raises
                    harmless = isinstance(error, InputError) and trainer is not None and not trainer.broken
                    told = failure_to_text(self._named(error, command))
                    answer = {"kind": _kind(error), "failure": told, "over": not harmless}
                with asking():
                    self.store.set(key_of(number, self.rank), json.dumps(answer))
                if answer.get("over"):
                    return
        finally:
            if trainer is not None:
                trainer.close()

    def _obey(self, command: str, number: int, trainer: PipelineTrainer) -> Any:
        """Return the loss and the seconds of a step, or the name of the file with what the trainer has returned."""
        if command == BEGIN:
            return None
        if command == STEP:
            batches = self._batches()
            with trainer.heeding():
                dist.barrier()
            start_s = time.perf_counter()
            loss = trainer.step_through(batches)
            return [loss.item(), time.perf_counter() - start_s]
        given, found = file_of(self.folder, number), file_of(self.folder, number, self.rank)
        args, options = opened(given, mmap=True) if given.exists() else ((), {})
        result = getattr(trainer, command)(*([self._batches()] if command == GRADIENTS else args), **options)
        if result is None:
            return None
        torch.save(result, found)
        return found.name

    def _named(self, error: Exception, command: str) -> Exception:
        """Return an error that says where it happened."""
        if isinstance(error, InputError | StageError | RankError):
            return error
        named = StageError(f"rank {self.rank} failed at '{command}': {type(error).__name__}: {error}")
        named.__cause__ = error
        return named

    def _batches(self) -> list[MicroBatch]:
        """Return the micro-batches of a step. The loss may keep targets beyond it, the stages keep no inputs."""
        return [
            MicroBatch(inputs, tree_map_only(torch.Tensor, torch.clone, target))
            for inputs, target in taken(self.folder / SHARED_BUFFER)
        ]


def _kind(error: Exception) -> str:
    """Return the kind of an error; those that follow from another rank's end say the least."""
    if isinstance(error, InputError):
        return "input"
    return "rank" if isinstance(error, RankError) else "stage"
