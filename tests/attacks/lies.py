"""Lies: one rank, of those that a process starts, sends something else than it has, once.

A lie is told in one channel: messages of the planner's own, what a rank says of itself before it begins, and, of those
that train, tensors of torch's pipeline, objects and numbers that all share, answers to commands, and files with
results. A file of the name `TOLD` is there after a lie that the others have to notice.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d as c10d

from planner.runtime.distributed.training import worker
from planner.runtime.distributed.transport import connections, rendezvous
from planner.runtime.distributed.transport.messages import N_FIELDS, WORD_BYTES, pack, sealed
from tests.attacks.strikes import TOLD

LONGEST = 4096  # bytes that a lie adds
HEAD = N_FIELDS * WORD_BYTES  # of a message
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
        """Return [n_bytes] uint8 that is too short, too long, or has other bytes; it differs."""
        kind = self.rng.choice(("cut", "longer", "noise"))
        if kind == "cut" and len(row):
            return row[: self.rng.randrange(len(row))].clone()
        if kind == "longer" or not len(row):
            return torch.cat([row, torch.randint(256, (self.rng.randint(1, LONGEST),), dtype=torch.uint8)])
        row = row.clone()
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
        return _other_head(liar, row) if liar.rng.random() < 0.5 else liar.damaged_row(row)

    vars(connections)["pack"] = damaged


def _other_head(liar: Liar, row: torch.Tensor) -> torch.Tensor:
    place = liar.rng.randrange(HEAD)
    row[place] += liar.rng.randint(1, 255)
    return row


def _greeting(liar: Liar) -> None:
    vars(rendezvous)["sealed"] = lambda text: liar.damaged_text(sealed(text)) if liar.lies() else sealed(text)


def _tensor(liar: Liar) -> None:
    send, before = c10d.isend, list[torch.Tensor]()

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
            send(tensor, *args, **options)
        elif before and not (before[0].shape == tensor.shape and torch.equal(before[0], tensor)):
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
            row = liar.damaged_row(row)
            length = torch.tensor([len(row)])
        return row, length

    vars(c10d)["_object_to_tensor"] = damaged


def _numbers(liar: Liar) -> None:
    broadcast = c10d.broadcast

    def damaged(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        if liar.lies():
            tensor[liar.rng.randrange(len(tensor))] = liar.rng.choice((float("nan"), float("inf"), -1.0, 1e300))
        return broadcast(tensor, *args, **options)

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
    save = torch.save

    def damaged(content: Any, path: Any, *args: Any) -> None:
        save(content, path, *args)
        if liar.lies():
            content = bytearray(path.read_bytes())
            path.write_bytes(bytes(liar.damaged_row(torch.frombuffer(content, dtype=torch.uint8)).tolist()))

    vars(torch)["save"] = damaged


CHANNELS: dict[str, Callable[[Liar], None]] = {
    "message": _message,
    "greeting": _greeting,
    "tensor": _tensor,
    "object": _object,
    "numbers": _numbers,
    "answer": _answer,
    "file": _file,
}
