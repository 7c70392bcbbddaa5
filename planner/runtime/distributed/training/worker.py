"""Training worker: a rank that another process has started, and that trains by its commands.

::

    coordinator   shared buffer: micro-batches     store: "command 4" = step ─────────► "answer of 1", "answer of 2"
    rank 1        waits for "command 4", takes the step with all ranks, answers with its seconds, waits for "command 5"

The tools of a training and large results are in files. Functions are stored by their names, as `pickle` does. So a
process that is to call one must be able to import it; a function of the script that was started is imported by running
the script again, without what it does under ``if __name__ == "__main__"``.
"""

import json
import os
import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from multiprocessing import spawn
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]  # it is public
from torch.utils import _pytree as pytree
from torch.utils._pytree import tree_map_only

from graphs.common.errors import InputError, first_line, foreign_code, kind_and_line
from graphs.common.shortages import failures
from planner.runtime.distributed.training.trainer import PipelineTrainer
from planner.runtime.distributed.transport.checksums import WORD_BYTES, DamagedMessage, row_checksum, sealed, unsealed
from planner.runtime.distributed.transport.messages import ALIGN, Packing
from planner.runtime.distributed.transport.rendezvous import asking
from planner.runtime.errors import RankError, StageError, failure_to_text
from planner.runtime.training.optimizers import Factory
from planner.runtime.training.options import TrainerOptions
from planner.runtime.training.step import Loss, MicroBatch

TOOLS = "tools"  # the name of their file
PATHS = ("sys_path", "dir", "orig_dir")  # among the data with which `multiprocessing` prepares a process
MAIN = ("init_main_from_name", "init_main_from_path")


@dataclass(frozen=True)
class RankSetup:
    """Loss, optimizer and options, which ranks train with in addition to a plan and a program."""

    loss: Loss  # as `planner.train` takes it
    optimizer: Factory  # likewise
    trainer_options: TrainerOptions  # likewise


def write_tools(tools: RankSetup, folder: Path) -> None:
    """Write the tools for other processes; raise InputError if they cannot import the loss or the optimizer."""
    _check_name("loss", tools.loss)
    _check_name("optimizer", tools.optimizer)
    pickled = pickle.dumps(tools)
    needed = PATHS + (MAIN if b"__main__" in pickled else ())
    prepared = spawn.get_preparation_data("rank")
    (folder / TOOLS).write_bytes(pickle.dumps(({key: prepared[key] for key in needed if key in prepared}, pickled)))


def read_tools(folder: Path) -> RankSetup:
    """Read what `write_tools` has written; raise InputError if something cannot be imported here."""
    prepared, pickled = pickle.loads((folder / TOOLS).read_bytes())  # written by a process of this run
    with foreign_code(_not_imported):  # whatever a module does while it is imported
        spawn.prepare(prepared)
        tools: RankSetup = pickle.loads(pickled)  # likewise
    return tools


def _not_imported(error: BaseException) -> str:
    return (
        f"the loss or the optimizer cannot be imported ({kind_and_line(error)}); put them into a module that can, and "
        'what a program does under if __name__ == "__main__"'
    )


@contextmanager
def payload_file(content: Any, path: Path) -> Iterator[None]:
    """Write content for other processes into a file for a ``with`` statement; raise InputError if that fails."""
    try:
        with writing(path):
            torch.save(pytree.tree_map_only(torch.Tensor, cpu_copy, content), path)
        yield
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise InputError if the block cannot write content for other processes."""
    try:
        yield
    except (OSError, RuntimeError, pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"what a step takes cannot be handed to another process by '{path}' ({type(error).__name__}: {error}); "
            "make room there, or pass tensors, numbers and text"
        ) from error


def opened(path: Path, mmap: bool = False) -> Any:
    """Read a file of another process of this run; with ``mmap``, tensors stay in the file until they are read."""
    return torch.load(path, weights_only=False, mmap=mmap)


def write_out(content: Any, path: Path) -> list[Any]:
    """Write a file for `read_back`, and return its name and checksum, which torch's reader does not compare."""
    torch.save(content, path)
    return [path.name, _file_checksum(path)]


def read_back(folder: Path, name: str, mark: int) -> Any:
    """Read and remove a file of `write_out` by another process; raise DamagedMessage if it is not as it was."""
    path = folder / name
    if _file_checksum(path) != mark:
        raise DamagedMessage("a file that is damaged")
    with failures() as failed:  # torch and pickle raise many kinds
        content = opened(path)
    if failed:
        raise DamagedMessage(f"a file that cannot be read: {first_line(failed[0])}") from failed[0]
    path.unlink()
    return content


def _file_checksum(path: Path) -> int:
    return row_checksum(torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8))


def cpu_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor to the CPU, with the same strides, into memory that holds nothing else."""
    tensor = on_cpu(tensor)
    packing = Packing.of(tensor)
    row = torch.empty(packing.n_bytes, dtype=torch.uint8)
    packing.put(tensor, row)
    return packing.take(row)


def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the CPU, with its strides, without conjugation or negation that torch has put off."""
    return tensor.detach().cpu().resolve_conj().resolve_neg()


def _check_name(what: str, function: Callable[..., Any]) -> None:
    """Check that other processes can import a function, as far as it can be seen here."""
    try:
        pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        name = getattr(function, "__qualname__", type(function).__name__)
        raise InputError(
            f"the {what} '{name}' cannot be handed to another process; pass a function that stands at the top of a "
            "module, or what functools.partial makes of one, such as partial(torch.optim.Adam, lr=1e-3)"
        ) from error


N_FIELDS = 2


@dataclass(frozen=True)
class Slot:
    """The place of a tensor in the buffer."""

    packing: Packing  # form of the tensor
    start: int  # its first byte

    @property
    def bytes(self) -> slice:
        """All its bytes."""
        return slice(self.start, self.start + self.packing.n_bytes)


class SharedBuffer:
    """The writing end of a file in memory. Readers must be done with the content before the next one is written. ::

        start and length of the head │ tensor │ tensor │ ... │ head: everything but tensors, pickled

    Parts begin at multiples of 64 bytes. The file stays: new pages take longer than to copy tensors into old ones.
    """

    def __init__(self, path: Path) -> None:
        """Prepare an empty buffer; its file is made by the first `put`."""
        self._path = path
        self._row = torch.empty(0, dtype=torch.uint8)

    def put(self, content: Any) -> None:
        """Write content, for `taken`; raise InputError if there is no room, or something cannot be pickled."""
        slots: list[tuple[Slot, torch.Tensor]] = []
        end = ALIGN

        def slot_of(tensor: torch.Tensor) -> Slot:
            nonlocal end
            tensor = on_cpu(tensor)
            slot = Slot(Packing.of(tensor), end)
            slots.append((slot, tensor))
            end = -(-slot.bytes.stop // ALIGN) * ALIGN
            return slot

        with writing(self._path):
            head = pickle.dumps(pytree.tree_map_only(torch.Tensor, slot_of, content))
            if (n_bytes := end + len(head)) > len(self._row):
                with self._path.open("ab") as file:
                    os.posix_fallocate(file.fileno(), 0, n_bytes)  # else a full disk would end the process that writes
                self._row = torch.from_file(str(self._path), shared=True, size=n_bytes, dtype=torch.uint8)
        for slot, tensor in slots:
            slot.packing.put(tensor, self._row[slot.bytes])
        self._row[end : end + len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
        self._row[: N_FIELDS * WORD_BYTES].view(torch.int64).copy_(torch.tensor([end, len(head)]))


def taken(path: Path) -> Any:
    """Read the content of a shared buffer. Its tensors are valid only until the next content is written."""
    row = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
    start, length = row[: N_FIELDS * WORD_BYTES].view(torch.int64).tolist()
    head = pickle.loads(row[start : start + length].numpy().tobytes())  # written by a process of this run
    return pytree.tree_map_only(Slot, lambda slot: slot.packing.take(row[slot.bytes]), head)


COMMAND_TIMEOUT = timedelta(days=30)  # for the next command; the process ends with the coordinator anyway


BEGIN, STEP, GRADIENTS = "begin", "step", "gradients"
"""Commands that have no content, or micro-batches in the shared buffer; all others are methods of `PipelineTrainer`.

Their arguments, if any, are in a file, and what they return is written to another one.
"""
SHARED_BUFFER = "shared_buffer"  # the name of its file


def key_of(number: int) -> str:
    """Return the key of a command in the store."""
    return f"command {number}"


def answer_key(rank: int) -> str:
    """Return the key of what a rank answers, whatever the number of its command: it could be a wrong one."""
    return f"answer of {rank}"


def answer_to_text(number: int, answer: Mapping[str, Any]) -> str:
    """Write the answer to a command, for `answer_from_text`."""
    return sealed(json.dumps({"number": number, **answer}).encode()).decode()


def answer_from_text(number: int, text: bytes) -> dict[str, Any]:
    """Read the answer to a command; raise DamagedMessage if it is damaged, or to another command."""
    answer: dict[str, Any] = json.loads(unsealed(text))
    if answer["number"] != number:
        raise DamagedMessage(f"an answer to command {answer['number']} instead of {number}")
    return answer


def file_at(folder: Path, number: int, rank: int | None = None) -> Path:
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
                    self.store.set(answer_key(self.rank), answer_to_text(number, answer))
                if answer.get("over"):
                    return
        finally:
            if trainer is not None:
                trainer.close()

    def _obey(self, command: str, number: int, trainer: PipelineTrainer) -> Any:
        """Return the loss and the seconds of a step, or what `write_out` says of the file with the trainer's result."""
        if command == BEGIN:
            return None
        if command == STEP:
            batches = self._batches()
            with trainer.heeding():
                dist.barrier()
            start_s = time.perf_counter()
            loss = trainer.step_through(batches)
            return [loss.item(), time.perf_counter() - start_s]
        given, found = file_at(self.folder, number), file_at(self.folder, number, self.rank)
        args, options = opened(given, mmap=True) if given.exists() else ((), {})
        result = getattr(trainer, command)(*([self._batches()] if command == GRADIENTS else args), **options)
        if result is None:
            return None
        return write_out(result, found)

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
