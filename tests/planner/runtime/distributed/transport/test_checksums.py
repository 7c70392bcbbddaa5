"""A checksum changes with any change of what is sent, also of the order."""

import random
import struct
import zlib

import pytest
import torch

from planner.runtime.distributed.transport.checksums import (
    COLUMNS,
    ROWS,
    SHORT_BYTES,
    WORD_BYTES,
    DamagedMessage,
    flat_bytes,
    row_checksum,
    sealed,
    sealed_numbers,
    unsealed,
    unsealed_numbers,
)

PART_BYTES = ROWS * COLUMNS * WORD_BYTES
LENGTHS = (0, 1, 9, 1000, SHORT_BYTES, SHORT_BYTES + 3, 2 * PART_BYTES, 2 * PART_BYTES + 7777)


def row_of(n_bytes: int) -> torch.Tensor:
    return torch.randint(256, (n_bytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(n_bytes))


@pytest.mark.parametrize("n_bytes", LENGTHS)
def test_a_byte_that_is_another_one_changes_it(n_bytes: int) -> None:
    row, rng = row_of(n_bytes), random.Random(n_bytes)
    known = row_checksum(row)
    assert row_checksum(row, start=5) != known
    for _ in range(20 if n_bytes else 0):
        other = row.clone()
        other[rng.randrange(n_bytes)] += rng.randint(1, 255)
        assert row_checksum(other) != known


@pytest.mark.parametrize("sign", [1, -1], ids=["unlike", "in the highest bit"])
@pytest.mark.parametrize("n_words", [40, 20_000, 300_000])
def test_words_that_change_places_change_it(n_words: int, sign: int) -> None:
    words = torch.arange(1.0, n_words + 1, dtype=torch.float64)
    if sign < 0:
        words = torch.where(torch.arange(n_words) % 3 == 0, 1.0, -1.0).to(torch.float64)
    known, rng = row_checksum(flat_bytes(words)), random.Random(n_words)
    pairs = [(0, 1), (0, COLUMNS), *((rng.randrange(n_words), rng.randrange(n_words)) for _ in range(40))]
    for one, two in ((one, two) for one, two in pairs if two < n_words and words[one] != words[two]):
        other = words.clone()
        other[[one, two]] = words[[two, one]]
        assert row_checksum(flat_bytes(other)) != known


def test_the_sums_by_hand() -> None:
    """A table of 9 rows, where the words of row r are 512r, 512r + 1 ... 512r + 511, and three words more."""
    words = torch.arange(9 * COLUMNS + 3)
    columns = [9 * column + COLUMNS * 36 for column in range(COLUMNS)]  # 0 + 1 + ... + 8 is 36
    rows = [COLUMNS * COLUMNS * row + COLUMNS * (COLUMNS - 1) // 2 for row in range(9)]
    expected = struct.pack(f"<{COLUMNS + 9 + 3}q", *columns, *rows, *range(9 * COLUMNS, 9 * COLUMNS + 3))
    assert row_checksum(flat_bytes(words)) == zlib.crc32(expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.int64, torch.complex64])
def test_it_is_of_the_bytes_wherever_they_are(dtype: torch.dtype) -> None:
    tensor = torch.arange(3 * SHORT_BYTES).to(dtype).reshape(3, -1)
    for one, other in ((tensor[1:, 1:], tensor[1:, 1:].clone()), (tensor.T, tensor.T.contiguous())):
        assert row_checksum(flat_bytes(one)) == row_checksum(flat_bytes(other))
    assert flat_bytes(tensor).data_ptr() == tensor.data_ptr()


def test_content_with_its_checksum() -> None:
    for content in (b"", b"{}", bytes(range(256))):
        row = sealed(content)
        assert unsealed(row) == content
        for damaged in (row[:-1], row[1:], row + b"~", b""):
            with pytest.raises(DamagedMessage, match=r"^bytes that are damaged$"):
                unsealed(damaged)


@pytest.mark.attack("process")
def test_numbers_that_are_damaged_or_of_another_turn_are_none() -> None:
    numbers = torch.tensor([0.5, float("nan"), -0.0], dtype=torch.float64)
    row = sealed_numbers(numbers, 3)
    assert torch.equal(unsealed_numbers(row, 3)[[0, 2]], numbers[[0, 2]])
    damaged = [row.index_fill(0, torch.tensor(place), value) for place in range(4) for value in (1e300, torch.nan)]
    damaged = [each for each in damaged if flat_bytes(each).tolist() != flat_bytes(row).tolist()]
    assert len(damaged) == 7  # one number is none already
    for turn, other in [(2, row), (4, row), (3, row[[1, 0, 2, 3]]), *((3, each) for each in damaged)]:
        with pytest.raises(DamagedMessage, match=r"^numbers that are damaged$"):
            unsealed_numbers(other, turn)
