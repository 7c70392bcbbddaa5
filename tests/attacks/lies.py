"""Lies: one rank, of those that a process starts, sends something else than it has, once.

A lie is told in one channel: messages of the planner's own, what a rank says of itself before it begins, and, of those
that train, tensors of torch's pipeline, objects and numbers that all share, answers to commands, and files with
results. A file of the name `TOLD` is there after a lie that the others have to notice.
"""

import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d as c10d

from planner.runtime.distributed.training import worker
from planner.runtime.distributed.transport import connections, rendezvous
from planner.runtime.distributed.transport.checksums import WORD_BYTES, sealed
from planner.runtime.distributed.transport.messages import HEAD_BYTES, Kind, pack
from tests.attacks.strikes import TOLD

LONGEST = 4096  # bytes that a lie adds
MOST = {"message": 30, "greeting": 1, "tensor": 20, "object": 4, "numbers": 4, "answer": 6, "file": 3}
"""The channels, and how many words a rank sends by each at most before it lies."""
OF_ALL = ("message", "greeting")


class Liar:
    """Decides what is damaged, how and when; ranks that are forks of this process have the same one."""

    def __init__(self, seed: str, trains: bool) -> None:
        """Choose a rank, a channel, and the number of the word that is a lie."""
        self.rng = random.Random(seed)
        self._rank = str(self.rng.randint(1, 2))
        self.channel = self.rng.choice([*MOST] if trains else OF_ALL)
        self._left = self.rng.randint(1, MOST[self.channel])

    def lies(self) -> bool:
        """Return whether this word is the lie."""
        if os.environ.get("RANK") != self._rank:
            return False
        self._left -= 1
        return self._left == 0

    def told(self, what: str) -> None:
        """Note that there was a lie that has to be noticed."""
        Path(TOLD).write_text(f"{self.channel}: {what}", encoding="utf-8")

    def damaged_row(self, row: torch.Tensor) -> torch.Tensor:
        """Return [n_bytes] uint8 that is too short, too long, or has other bytes or in another order; it differs."""
        kind = self.rng.choice(("cut", "longer", "noise", "swapped"))
        if kind == "cut" and len(row):
            return row[: self.rng.randrange(len(row))].clone()
        if kind == "longer" or not len(row):
            return torch.cat([row, torch.randint(256, (self.rng.randint(1, LONGEST),), dtype=torch.uint8)])
        row = row.clone()
        words = row[: len(row) // WORD_BYTES * WORD_BYTES].view(-1, WORD_BYTES)
        others = (words != words[:1]).any(1).nonzero().flatten().tolist()
        if kind == "swapped" and others:
            other = self.rng.choice(others)
            words[[0, other]] = words[[other, 0]]
        else:
            row[self.rng.randrange(len(row))] += self.rng.randint(1, 255)
        return row

    def damaged_text(self, text: str) -> str:
        """Return a text that is too short, too long, or has another character."""
        place = self.rng.randrange(len(text))
        return self.rng.choice((text[:place], f"{text}~", f"{text[:place]}~{text[place + 1 :]}"))

    def damaged_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor with other bytes, more or fewer of them, or without a number."""
        if tensor.is_floating_point() and self.rng.random() < 0.25:
            return torch.full_like(tensor, float("nan"))
        return self.damaged_row(tensor.contiguous().reshape(-1).view(torch.uint8))


def lie(seed: str, trains: bool) -> None:
    """Let one of the ranks that this process starts lie; ``trains``: they train."""
    liar = Liar(seed, trains)
    CHANNELS[liar.channel](liar)


def _message(liar: Liar) -> None:
    def damaged(message: Any) -> torch.Tensor:
        row = pack(message)
        if not liar.lies():
            return row
        other = liar.damaged_row(row)
        if liar.rng.random() < 0.5:  # of its head alone
            other = row.clone()
            other[liar.rng.randrange(HEAD_BYTES)] += liar.rng.randint(1, 255)
        if message.kind is Kind.TENSORS and len(other) == len(row):  # else what is missing may be there already
            liar.told(f"{other.tolist()} instead of {row.tolist()}")
        return other

    vars(connections)["pack"] = damaged


def _greeting(liar: Liar) -> None:
    def damaged(content: bytes) -> bytes:
        row = sealed(content)
        return liar.damaged_text(row.decode()).encode() if liar.lies() else row

    vars(rendezvous)["sealed"] = damaged


def _tensor(liar: Liar) -> None:
    send, before, on_way = c10d.isend, list[torch.Tensor](), list[Any]()

    def isend(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        if not liar.lies():
            before[:] = [tensor.clone()]
            return send(tensor, *args, **options)
        kind = liar.rng.choice(("damaged", "damaged", "twice", "again"))
        if kind == "damaged":
            other = liar.damaged_tensor(tensor)
            if other.nbytes >= tensor.nbytes:  # else what is missing may be there already, of the step before
                liar.told(f"{other.tolist()} instead of {tensor.tolist()}")
            return send(other, *args, **options)
        if kind == "twice":
            sent = send(tensor, *args, **options)
            on_way.append(send(tensor.clone(), *args, **options))  # which nobody waits for; else gloo drops it
            return sent
        if before and not (before[0].shape == tensor.shape and torch.equal(before[0], tensor)):
            liar.told(f"{before[0].tolist()} instead of {tensor.tolist()}")
            tensor = before[0]
        return send(tensor, *args, **options)

    for module in (c10d, dist):
        vars(module)["isend"] = isend


def _object(liar: Liar) -> None:
    written = vars(c10d)["_object_to_tensor"]

    def damaged(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
        row, length = written(*args)
        if liar.lies():
            true, row = _read(row), liar.damaged_row(row)
            length = torch.tensor([len(row)])
            if (found := _read(row)) != true:
                liar.told(f"{found!r} instead of {true!r}")
        return row, length

    vars(c10d)["_object_to_tensor"] = damaged


def _read(row: torch.Tensor) -> object:
    """Return the bytes that torch has pickled, or what a reader says of them."""
    try:
        return pickle.loads(row.numpy().tobytes())
    except Exception as error:  # whatever pickle raises
        return repr(error)


def _numbers(liar: Liar) -> None:
    broadcast = c10d.broadcast

    def damaged(tensor: torch.Tensor, src: int, *args: Any, **options: Any) -> Any:
        if liar.lies():
            true, place = tensor.tolist(), liar.rng.randrange(len(tensor))
            tensor[place] = liar.rng.choice((float("nan"), float("inf"), -1.0, 1e300))
            if tensor[place] != true[place] and src == dist.get_rank():  # what others pass does not count
                liar.told(f"{tensor.tolist()} instead of {true}")
        return broadcast(tensor, src, *args, **options)

    vars(dist)["broadcast"] = damaged


def _answer(liar: Liar) -> None:
    written, before = worker.answer_to_text, [""]

    def damaged(number: int, answer: Any) -> str:
        text = written(number, answer)
        if liar.lies():
            others = (liar.damaged_text(text), before[0], written(number + liar.rng.choice((-1, 1)), answer))
            liar.told(lie := liar.rng.choice(others))
            return lie
        before[0] = text
        return text

    vars(worker)["answer_to_text"] = damaged


def _file(liar: Liar) -> None:
    written = worker.write_out

    def damaged(content: Any, path: Path) -> Any:
        said = written(content, path)
        if liar.lies():
            row = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
            path.write_bytes(liar.damaged_row(row).numpy().tobytes())
            liar.told(f"{path} has other bytes")
        return said

    vars(worker)["write_out"] = damaged


CHANNELS: dict[str, Callable[[Liar], None]] = {
    "message": _message,
    "greeting": _greeting,
    "tensor": _tensor,
    "object": _object,
    "numbers": _numbers,
    "answer": _answer,
    "file": _file,
}
