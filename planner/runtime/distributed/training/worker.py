"""Training worker: a rank that another process has started, and that trains by its commands.

::

    coordinator   shared buffer: micro-batches     store: "command 4" = STEP ─────────► "answer 4 of 1", "answer 4 of 2"
    rank 1        waits for "command 4", takes the step with all ranks, answers with its seconds, waits for "command 5"
"""

import json
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from datetime import timedelta
from enum import StrEnum
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


class Command(StrEnum):
    """A command of the coordinator."""

    BEGIN = "begin"
    STEP = "step"  # with the micro-batches in the shared buffer
    GRADIENTS = "gradients"  # likewise, and write the gradients to a file
    MODEL = "model_state_dict"  # write the part of this rank to a file
    STATE = "state_dict"  # likewise
    LOAD = "load_state_dict"  # from a file
    OPTIONS = "change_options"  # of the optimizers, to those of a file
    RECORD = "record"
    SPANS = "spans"


STEPS = (Command.STEP, Command.GRADIENTS)
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
                    command = Command(self.store.get(key_of(number)).decode())
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

    def _obey(self, command: Command, number: int, trainer: PipelineTrainer) -> Any:
        """Return what the coordinator wants to know, or the name of the file that has it."""
        given, found = file_of(self.folder, number), file_of(self.folder, number, self.rank)
        match command:
            case Command.STEP:
                batches = self._batches()
                with trainer.heeding():
                    dist.barrier()
                start_s = time.perf_counter()
                loss = trainer.step_through(batches)
                return [loss.item(), time.perf_counter() - start_s]
            case Command.GRADIENTS:
                torch.save(trainer.gradients(self._batches()), found)
                return found.name
            case Command.MODEL:
                torch.save(trainer.model_state_dict(), found)
                return found.name
            case Command.STATE:
                torch.save(trainer.state_dict(), found)
                return found.name
            case Command.LOAD:
                trainer.load_state_dict(opened(given, mmap=True))
            case Command.OPTIONS:
                trainer.change_options(**opened(given))
            case Command.RECORD:
                trainer.record()
            case Command.SPANS:
                return [astuple(span) for span in trainer.timeline().spans]
        return None

    def _named(self, error: Exception, command: Command) -> Exception:
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
