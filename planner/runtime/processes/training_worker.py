"""Training worker: a rank that another process has started to measure steps, and that does what it is told.

::

    front     store: "word 2" = STEP ──────────────────────────────────► "answer 2 of 1", "answer 2 of 2"
    rank 1    waits for "word 2", takes the step with all ranks, answers with its seconds, waits for "word 3"
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple
from datetime import timedelta
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]  # it is public

from graphs.errors import InputError
from planner.runtime.engine import StageError
from planner.runtime.processes.failures import RankError, failure_to_text
from planner.runtime.processes.meeting import asking
from planner.runtime.processes.pipelining import PipelineTrainer
from planner.runtime.training.step import MicroBatch

PATIENCE = timedelta(days=30)  # for the next word; who ends with the front does not wait longer than it


class Word(StrEnum):
    """What a rank is told."""

    BEGIN = "begin"
    GRADIENTS = "gradients"  # write those of a step to a file
    STEP = "step"
    RECORD = "record"
    END = "end"


def key_of(number: int, rank: int | None = None) -> str:
    """Where a word stands in the store, or the answer of a rank."""
    return f"word {number}" if rank is None else f"answer {number} of {rank}"


def gradients_of(folder: Path, rank: int) -> Path:
    """The file of a rank."""
    return folder / f"gradients{rank}.pt"


def serve(
    make: Callable[[], PipelineTrainer], batches: Sequence[MicroBatch], store: Store, rank: int, at: Path
) -> bool:
    """Do what the front says until the end.

    Args:
        make: the trainer.
        batches: of every step.
        store: where the words stand.
        rank: our number; the front is 0.
        at: folder for files.

    Returns:
        Whether all went well; if not, the front knows why.
    """
    trainer: PipelineTrainer | None = None
    try:
        for number in count():
            with asking():
                store.wait([key_of(number)], PATIENCE)
                word = Word(store.get(key_of(number)).decode())
            if word is Word.END:
                return True
            try:
                trainer = trainer or make()
                answer = {"value": _obey(word, trainer, batches, gradients_of(at, rank))}
            except (InputError, StageError, RankError, RuntimeError) as error:
                answer = {"kind": _kind(error), "failure": failure_to_text(error)}
            with asking():
                store.set(key_of(number, rank), json.dumps(answer))
            if "failure" in answer:
                return False
    finally:
        if trainer is not None:
            trainer.close()
    raise AssertionError("there is always another word")


def _obey(word: Word, trainer: PipelineTrainer, batches: Sequence[MicroBatch], file: Path) -> Any:
    """What the front wants to know."""
    match word:
        case Word.GRADIENTS:
            trainer.go_through(batches)
            torch.save(trainer.gradients(), file)
            trainer.update()
        case Word.STEP:
            dist.barrier()
            start_s = time.perf_counter()
            trainer.step_through(batches)
            return time.perf_counter() - start_s
        case Word.RECORD:
            trainer.record()
            trainer.step_through(batches)
            return [astuple(span) for span in trainer.timeline().spans]
    return None


def _kind(error: Exception) -> str:
    """How much it says: what came from another rank's end says the least."""
    if isinstance(error, InputError):
        return "input"
    return "stage" if isinstance(error, StageError) else "rank"
