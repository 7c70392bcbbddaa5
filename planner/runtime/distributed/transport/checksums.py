"""Checksums: by them a rank sees that what it has is what another one sent, whatever it is and however it came.

::

    up to 64 KiB    CRC-32 of the bytes
    more            of each MiB the sums of the rows and columns of a table of words, and CRC-32 of these

A word that is another one changes the sums of its row and its column; two words that change places change some sums
unless they are alike. PyTorch adds up words several times as fast as zlib divides them, and a GPU's without a wait.
"""

import zlib

import torch

WORD_BYTES = 8
COLUMNS = 512  # words
PART_BYTES, SHORT_BYTES = 2**20, 2**16  # of a row that is summed up at once, and of one that is not


class DamagedMessage(RuntimeError):  # noqa: N818  # what the message is
    """A message that does not fit the plan."""


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor's elements in order, [n_bytes] uint8; without a copy if the tensor lies so."""
    return tensor.detach().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)


def checksum(row: torch.Tensor, start: int = 0) -> int:
    """Return a checksum of [n_bytes] uint8 on the CPU, below 2**32; with another ``start`` it is another one."""
    if len(row) <= SHORT_BYTES:
        return zlib.crc32(row.numpy(), start)
    for part in row.split(PART_BYTES):
        start = zlib.crc32(sums(part).numpy(), start)
    return start


def sums(row: torch.Tensor) -> torch.Tensor:
    """Return the sums of a row's words in a table, [`n_sums`] int64, on its device; they may overflow.

    The table has `COLUMNS` columns: first their sums, then those of its rows, then the words after the last whole row.
    """
    if row.storage_offset() % WORD_BYTES or len(row) % WORD_BYTES:
        row = torch.nn.functional.pad(row, (0, -len(row) % WORD_BYTES))
    words = row.view(torch.int64)
    table = words[: len(words) // COLUMNS * COLUMNS].view(-1, COLUMNS)
    return torch.cat([table.sum(0), table.sum(1), words[table.numel() :]])


def n_sums(n_bytes: int) -> int:
    """Return how many sums there are of so many bytes."""
    rows, words = divmod(-(-n_bytes // WORD_BYTES), COLUMNS)
    return COLUMNS + rows + words


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
    return torch.cat([numbers, torch.tensor([checksum(bytes_of(numbers), turn)], dtype=torch.float64)])


def unsealed_numbers(row: torch.Tensor, turn: int) -> torch.Tensor:
    """Return the numbers that `sealed_numbers` took; raise DamagedMessage if others have come, or of another turn."""
    numbers = row[:-1]
    if checksum(bytes_of(numbers), turn) != row[-1].item():
        raise DamagedMessage("numbers that are damaged")
    return numbers
