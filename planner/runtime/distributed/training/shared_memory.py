"""Shared buffer: a file in memory in which one process passes tensors to other processes of its host, step after step.

::

    start and length of the head │ tensor │ tensor │ ... │ head: everything but tensors, pickled

Parts begin at multiples of 64 bytes. The file stays, because new pages take longer than to copy tensors into old ones.
"""

import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from planner.runtime.distributed.training.payloads import on_cpu, writing
from planner.runtime.distributed.transport.messages import ALIGN, WORD_BYTES
from planner.runtime.distributed.transport.packing import Packing

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
    """The writing end. Readers must be done with the content before the next one is written."""

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
            self._make_room(end + len(head))
        for slot, tensor in slots:
            slot.packing.put(tensor, self._row[slot.bytes])
        self._row[end : end + len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
        self._row[: N_FIELDS * WORD_BYTES].view(torch.int64).copy_(torch.tensor([end, len(head)]))

    def _make_room(self, n_bytes: int) -> None:
        if n_bytes <= len(self._row):
            return
        with self._path.open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, n_bytes)  # else a full disk would end the process that writes
        self._row = torch.from_file(str(self._path), shared=True, size=n_bytes, dtype=torch.uint8)


def taken(path: Path) -> Any:
    """Read the content of a shared buffer. Its tensors are valid only until the next content is written."""
    row = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
    start, length = row[: N_FIELDS * WORD_BYTES].view(torch.int64).tolist()
    head = pickle.loads(row[start : start + length].numpy().tobytes())  # written by a process of this run
    return pytree.tree_map_only(Slot, lambda slot: slot.packing.take(row[slot.bytes]), head)
