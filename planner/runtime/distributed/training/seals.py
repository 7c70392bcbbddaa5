"""Seals: a short message after the tensors that a stage sends in a step, by which the receiver sees that it has these.

torch's engine sends tensors alone, in an order that both sides know. gloo takes one that is too short for a whole one,
and one that comes twice for the next one, so the receiver would train on with other numbers. ::

    stage 0 ──► x, y after 0F0 ──► x, y after 0F1 ──┐
                [step, stage, computation, micro-batch, checksums of x and y] of 0F0 and of 0F1 ──► stage 1

What came is summed up when it is used, before anything can change it, and judged at the end of the step, before a
weight changes, so that nobody waits for a GPU in between.
"""

from collections import Counter
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from planner.runtime.distributed.transport.checksums import COLUMNS, WORD_BYTES, flat_bytes, row_checksum
from planner.runtime.errors import StageError
from simulator.schedule import Action, Computation

Border = tuple[int, Computation]
"""The stage that sends, and what it does before: micro-batches follow each other over it."""


@dataclass
class Seals:
    """The seals of what one stage sends and receives in a step."""

    step: int = 0  # its number
    micro_batches: int = 0  # in it; 0 if nothing is sealed, as where stages cut what they send
    _sent: dict[Border, dict[int, torch.Tensor]] = field(default_factory=dict)  # rows of a seal, by micro-batch
    _awaited: dict[Action, list[torch.Tensor]] = field(default_factory=dict)  # tensors, by sender
    _came: dict[Action, torch.Tensor] = field(default_factory=dict)  # the row of what came, by sender
    _coming: Counter[Border] = field(default_factory=Counter)  # micro-batches
    _seals: dict[Border, torch.Tensor] = field(default_factory=dict)  # that come, [micro_batches, n_fields] int64

    def begin(self, step: int, micro_batches: int) -> None:
        """Forget the step before."""
        self.step, self.micro_batches = step, micro_batches
        for of_a_step in (self._sent, self._awaited, self._came, self._coming, self._seals):
            of_a_step.clear()

    def leaving(self, sender: Action, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        """Return what torch is about to send after an action, with the seal after the last micro-batch."""
        if not (ops and self.micro_batches):
            return ops
        rows = self._sent.setdefault((sender.stage, sender.computation), {})
        rows[sender.micro_batch] = self._row(sender, [op.tensor for op in ops])
        if len(rows) < self.micro_batches:
            return ops
        seal = torch.stack([rows[number] for number in range(self.micro_batches)])
        return [*ops, dist.P2POp(dist.isend, seal, ops[0].peer, ops[0].group)]

    def coming(self, sender: Action, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        """Return what torch is about to receive from an action of another stage, after the last one with the seal."""
        if not (ops and self.micro_batches):
            return ops
        border = sender.stage, sender.computation
        self._awaited[sender] = tensors = [op.tensor for op in ops]
        self._coming[border] += 1
        if self._coming[border] < self.micro_batches:
            return ops
        seal = torch.zeros(self.micro_batches, _n_fields(tensors), dtype=torch.int64, device=tensors[0].device)
        self._seals[border] = seal
        return [*ops, dist.P2POp(dist.irecv, seal, ops[0].peer, ops[0].group)]

    def sum_up(self, sender: Action) -> None:
        """Keep the checksums of what has come from an action, if it comes from another rank."""
        if sender in self._awaited:
            self._came[sender] = self._row(sender, self._awaited.pop(sender))

    def check(self) -> None:
        """Raise StageError if something that has come in this step was not what had been sent."""
        for border, seal in self._seals.items():
            senders = [Action(*border, number) for number in range(self.micro_batches)]
            wrong = (seal != torch.stack([self._came[sender] for sender in senders])).any(1).tolist()
            if any(wrong):
                sender = senders[wrong.index(True)]
                raise StageError(f"what stage {sender.stage} sent after {sender} in step {self.step} came damaged")

    def _row(self, sender: Action, tensors: list[torch.Tensor]) -> torch.Tensor:
        """Return the row of an action in a seal, [n_fields] int64, on the tensors' device."""
        head = [self.step, sender.stage, ord(sender.computation), sender.micro_batch]
        rows = list(map(flat_bytes, tensors))
        if rows[0].is_cuda:
            return torch.cat([torch.tensor(head).to(rows[0].device), *map(_sums, rows)])
        return torch.tensor([*head, *map(row_checksum, rows)])


def _sums(row: torch.Tensor) -> torch.Tensor:
    """Return what a checksum is made of, [n_sums] int64 on its GPU: sums of columns and rows, and what is left."""
    words = torch.nn.functional.pad(row, (0, -len(row) % WORD_BYTES)).view(torch.int64)
    table = words[: len(words) // COLUMNS * COLUMNS].view(-1, COLUMNS)
    return torch.cat([table.sum(0), table.sum(1), words[table.numel() :]])


def _n_fields(tensors: list[torch.Tensor]) -> int:
    """Return the length of the row of these tensors in a seal."""
    n_words = [-(-tensor.nbytes // WORD_BYTES) for tensor in tensors]
    n_sums = sum(COLUMNS + n // COLUMNS + n % COLUMNS for n in n_words) if tensors[0].is_cuda else len(tensors)
    return len(Action._fields) + 1 + n_sums
