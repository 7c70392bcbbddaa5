"""Seals: a short message after the tensors that a stage sends, by which their receiver sees that it has these.

torch's engine sends tensors alone, in an order that both sides know. gloo takes one that is too short for a whole one,
and one that comes twice for the next one, so the receiver would train on with other numbers. ::

    stage 0 ──► x, y, [step, stage, computation, micro-batch, checksum of x, checksum of y] ──► stage 1

What came is compared when it is used, before anything can change it, and judged at the end of the step, before a weight
changes, so that nobody waits for a GPU in between.
"""

from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from planner.runtime.errors import StageError
from simulator.schedule import Action

WORD_BYTES = 8


@dataclass
class Seals:
    """The seals of what one stage sends and receives."""

    step: int = 0  # the number of the step that runs
    _awaited: dict[Action, tuple[list[torch.Tensor], torch.Tensor]] = field(default_factory=dict)  # by sender
    _wrong: dict[Action, torch.Tensor] = field(default_factory=dict)  # [] bool, by sender

    def begin(self, step: int) -> None:
        """Forget the step before."""
        self.step = step
        self._awaited.clear()
        self._wrong.clear()

    def leaving(self, sender: Action, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        """Return what torch is about to send after an action, with its seal."""
        if not ops:
            return ops
        seal = self._seal(sender, [op.tensor for op in ops])
        return [*ops, dist.P2POp(dist.isend, seal, ops[0].peer, ops[0].group)]

    def coming(self, sender: Action, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        """Return what torch is about to receive from an action of another stage, with room for its seal."""
        if not ops:
            return ops
        tensors = [op.tensor for op in ops]
        seal = torch.zeros(len(_head(self.step, sender)) + len(tensors), dtype=torch.int64, device=tensors[0].device)
        self._awaited[sender] = tensors, seal
        return [*ops, dist.P2POp(dist.irecv, seal, ops[0].peer, ops[0].group)]

    def compare(self, sender: Action) -> None:
        """Compare what has come from an action with its seal, if it comes from another rank."""
        if sender in self._awaited:
            tensors, seal = self._awaited.pop(sender)
            self._wrong[sender] = (seal != self._seal(sender, tensors)).any()

    def check(self) -> None:
        """Raise StageError if something that has come in this step was not what had been sent."""
        if self._wrong and torch.stack([*self._wrong.values()]).any():
            sender = next(sender for sender, wrong in self._wrong.items() if wrong)
            raise StageError(f"what stage {sender.stage} sent after {sender} in step {self.step} came damaged")

    def _seal(self, sender: Action, tensors: list[torch.Tensor]) -> torch.Tensor:
        """Return the seal of what an action sends, [n_fields + n_tensors] int64."""
        head = torch.tensor(_head(self.step, sender), device=tensors[0].device)
        return torch.cat([head, torch.stack([sum_of_words(tensor) for tensor in tensors])])


def sum_of_words(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of a tensor's bytes in words of eight, [] int64; it may overflow."""
    row = tensor.detach().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)
    if row.storage_offset() % WORD_BYTES:
        row = row.clone()
    words = len(row) // WORD_BYTES * WORD_BYTES
    found = row[:words].view(torch.int64).sum()
    return found if words == len(row) else found + row[words:].sum()


def _head(step: int, sender: Action) -> list[int]:
    return [step, sender.stage, ord(sender.computation), sender.micro_batch]
