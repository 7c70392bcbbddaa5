"""Checksums: by them a rank sees that what it has is what another one sent, whatever it is and however it came.

::

    up to 32 KiB    CRC-32 of the bytes
    more            CRC-32 of the sums of columns and rows of a table of words, for each MiB, and of what is left

A word that is another one changes the sums of its row and its column; two words that change places change some sums
unless they are alike. NumPy adds up words several times as fast as zlib divides them.
"""

import zlib

import numpy as np
import torch

WORD_BYTES = 8
COLUMNS, ROWS = 512, 256  # of a table of words
SHORT_BYTES = 2**15


class DamagedMessage(RuntimeError):  # noqa: N818  # what the message is
    """A message that does not fit the plan."""


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor's elements in order, [n_bytes] uint8; without a copy if the tensor lies so."""
    return tensor.detach().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)


def row_checksum(row: torch.Tensor, start: int = 0) -> int:
    """Return a checksum of [n_bytes] uint8 on the CPU, below 2**32; with another ``start`` it is another one."""
    data, whole = row.numpy(), 0
    if len(data) > SHORT_BYTES:
        whole = len(data) // (COLUMNS * WORD_BYTES) * COLUMNS * WORD_BYTES
        words = data[:whole].view(np.int64).reshape(-1, COLUMNS)
        for first in range(0, len(words), ROWS):
            table = words[first : first + ROWS]
            start = zlib.crc32(table.sum(1).data, zlib.crc32(table.sum(0).data, start))
    return zlib.crc32(data[whole:].data, start)


def sealed(content: bytes) -> bytes:
    """Return content with its checksum, for `unsealed`."""
    return b"%08x " % zlib.crc32(content) + content


def unsealed(row: bytes) -> bytes:
    """Return what `sealed` took; raise DamagedMessage if something else has come."""
    content = row[len(sealed(b"")) :]
    if row != sealed(content):
        raise DamagedMessage("bytes that are damaged")
    return content


def sealed_numbers(numbers: torch.Tensor, turn: int) -> torch.Tensor:
    """Return [n] float64 on the CPU with a checksum as one number more, for `unsealed_numbers` in the same turn."""
    return torch.cat([numbers, torch.tensor([row_checksum(flat_bytes(numbers), turn)], dtype=torch.float64)])


def unsealed_numbers(row: torch.Tensor, turn: int) -> torch.Tensor:
    """Return the numbers that `sealed_numbers` took; raise DamagedMessage if others have come, or of another turn."""
    numbers = row[:-1]
    if row_checksum(flat_bytes(numbers), turn) != row[-1].item():
        raise DamagedMessage("numbers that are damaged")
    return numbers
