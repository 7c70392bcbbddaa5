"""Shared buffer: what one process hands to others of its host again and again, in a file that all have in memory.

::

    where the head is, and its length │ tensor │ tensor │ ... │ head: all that is no tensor, pickled

Parts begin at 64 bytes. The file stays, so that nobody waits for new pages, which take longer than to copy what lies
in them.
"""

import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from graphs.errors import InputError
from planner.runtime.distributed.training.payloads import here
from planner.runtime.distributed.transport.messages import ALIGN, WORD_BYTES
from planner.runtime.distributed.transport.packing import Packing

N_FIELDS = 2


@dataclass(frozen=True)
class Slot:
    """Where a tensor lies.

    Attributes:
        packing: how.
        start: its first byte.
    """

    packing: Packing
    start: int

    @property
    def bytes(self) -> slice:
        """All of them."""
        return slice(self.start, self.start + self.packing.n_bytes)


class SharedBuffer:
    """The end that gives. Whoever has taken what lay on it before must have done with it."""

    def __init__(self, path: Path) -> None:
        """Begin with an empty one.

        Args:
            path: of the file, which is made when something is put there.
        """
        self._path = path
        self._row = torch.empty(0, dtype=torch.uint8)

    def put(self, content: Any) -> None:
        """Lay something there, for `taken`.

        Raises:
            InputError: if there is no room, or something is neither a tensor nor can be pickled.
        """
        laid: list[tuple[Slot, torch.Tensor]] = []
        end = ALIGN

        def lay(tensor: torch.Tensor) -> Slot:
            nonlocal end
            tensor = here(tensor)
            slot = Slot(Packing.of(tensor), end)
            laid.append((slot, tensor))
            end = -(-slot.bytes.stop // ALIGN) * ALIGN
            return slot

        try:
            head = pickle.dumps(pytree.tree_map_only(torch.Tensor, lay, content))
            self._make_room(end + len(head))
        except (OSError, RuntimeError, pickle.PicklingError, AttributeError, TypeError) as error:
            raise InputError(
                f"what a step takes cannot be handed to another process by '{self._path}' ({type(error).__name__}: "
                f"{error}); make room there, or pass tensors, numbers and text"
            ) from error
        for slot, tensor in laid:
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
    """What lies on a shared buffer. Its tensors are there only until something else is."""
    row = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
    start, length = row[: N_FIELDS * WORD_BYTES].view(torch.int64).tolist()
    head = pickle.loads(row[start : start + length].numpy().tobytes())  # another process of ours has written it
    return pytree.tree_map_only(Slot, lambda slot: slot.packing.take(row[slot.bytes]), head)
