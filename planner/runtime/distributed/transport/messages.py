"""Messages: what one rank sends to another, a payload of tensors or a text, as one flat row of bytes.

::

    checksum and kind, micro-batch, stage, length, checksum of the rest │ strides │ tensor │ ...    each part is aligned

Shapes and dtypes follow from the plan, so only strides are sent. The first checksum is of the head, which is read
before the rest is there: a tensor that came as a heartbeat, or as another micro-batch's, would be awaited forever.
"""

import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import torch

from graphs.ir import Tensor
from planner.runtime.distributed.transport.checksums import WORD_BYTES, DamagedMessage, row_checksum


@dataclass(frozen=True)
class Packing:
    """The place of a tensor's elements in a row of bytes: in the order of its memory, repeated ones (stride 0) once.

    So the row is the memory of a tensor without gaps, and is read in place; a tensor with gaps is copied.
    """

    shape: tuple[int, ...]  # of the tensor
    strides: tuple[int, ...]  # of the tensor, in elements
    dtype: torch.dtype  # of the tensor

    @staticmethod
    def of(tensor: torch.Tensor) -> "Packing":
        """Return the packing of a tensor."""
        return Packing(tuple(tensor.shape), tensor.stride(), tensor.dtype)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The shape, with 1 for dimensions of stride 0."""
        return tuple(1 if stride == 0 and size else size for size, stride in zip(self.shape, self.strides, strict=True))

    @property
    def n_bytes(self) -> int:
        """Length of the row."""
        return math.prod(self.sizes) * self.dtype.itemsize

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Dimensions, the one with the largest stride first."""
        return tuple(sorted(range(len(self.shape)), key=lambda dim: -self.strides[dim]))

    @cached_property
    def dense(self) -> bool:
        """Whether there are no gaps."""
        following = 1
        for dim in reversed(self.order):
            if self.sizes[dim] != 1 and self.strides[dim] != following:
                return False
            following *= self.sizes[dim]
        return True

    def put(self, tensor: torch.Tensor, row: torch.Tensor) -> None:
        """Write a tensor of this packing into a row, [n_bytes] uint8."""
        if row.numel():
            once = tensor.as_strided(self.sizes, self.strides)
            in_order = once.permute(self.order)
            row.view(self.dtype).view(in_order.shape).copy_(in_order)

    def take(self, row: torch.Tensor) -> torch.Tensor:
        """Return the tensor that was put into a row; it keeps the row's memory if it has no gaps."""
        if row.numel() and self.dense:
            return row.view(self.dtype).as_strided(
                self.shape, self.strides, row.storage_offset() // self.dtype.itemsize
            )
        tensor = torch.empty_strided(self.sizes, self.strides, dtype=self.dtype)
        if row.numel():
            sizes = [self.sizes[dim] for dim in self.order]
            tensor.permute(self.order).copy_(row.view(self.dtype).view(sizes))
        return tensor.as_strided(self.shape, self.strides)


N_FIELDS = 5
HEAD_BYTES = N_FIELDS * WORD_BYTES
KIND_BITS = 8  # of the first field; the others are its checksum
ALIGN = 64  # as the allocator aligns


class Kind(IntEnum):
    """The kind of a message."""

    TENSORS = 1  # what a stage wrote, or the inputs of a micro-batch, which begin it
    FAILED = 2  # a micro-batch failed; the text says how
    LOST = 3  # another rank is gone, or has failed in training; the text says which
    RECORD = 4  # keep spans from here on
    SPANS = 5  # asks for the spans, or has them
    PING = 6  # asks for the time, or has it
    PULSE = 7  # a heartbeat
    BYE = 8  # the last message
    FALLBACK = 9  # something gave way in the rank; the text has the reason and what to say


@dataclass(frozen=True)
class Message:
    """A message."""

    kind: Kind  # what it is about
    micro_batch: int = 0  # its micro-batch; 0 if it has none
    stage: int = 0  # the stage that wrote its tensors; 0 if there is none
    tensors: tuple[torch.Tensor, ...] = ()  # of the payload, in its order
    text: str = ""  # for all kinds but tensors


class Head(NamedTuple):
    """The fields before a message."""

    kind: Kind  # of the message
    micro_batch: int  # likewise
    stage: int  # likewise
    n_bytes: int  # length of the whole message
    checksum: int  # of what follows the fields

    @staticmethod
    def of(row: torch.Tensor) -> "Head":
        """Read the fields of the message that begins with a row; raise DamagedMessage if they are not as sent."""
        first, *others = _fields(row, N_FIELDS)
        kind, mark = first & (1 << KIND_BITS) - 1, first >> KIND_BITS
        if mark != _mark(kind, *others) or kind not in list(Kind):
            micro_batch, stage, *_ = others
            raise DamagedMessage(
                f"a message whose head is damaged: kind {kind}, micro-batch {micro_batch}, stage {stage}"
            )
        return Head(Kind(kind), *others)

    def put(self, row: torch.Tensor) -> None:
        """Write the fields into a row, [HEAD_BYTES] uint8."""
        fields = [_mark(*self) << KIND_BITS | self.kind, *self[1:]]
        row.view(torch.int64).copy_(torch.tensor(fields, dtype=torch.int64))


def _mark(*fields: int) -> int:
    return zlib.crc32(struct.pack(f"<{N_FIELDS}q", *fields))


def pack(message: Message) -> torch.Tensor:
    """Return a message as [n_bytes] uint8, a new tensor."""
    text = [_row_of(message.text)] if message.text else []
    tensors = [tensor.detach().resolve_conj().resolve_neg() for tensor in message.tensors or text]
    packings = [Packing.of(tensor) for tensor in tensors]
    strides = [stride for packing in packings for stride in packing.strides] if message.tensors else []
    *starts, end = _starts(len(strides), packings)
    row = torch.empty(end, dtype=torch.uint8)
    row[HEAD_BYTES : HEAD_BYTES + len(strides) * WORD_BYTES].view(torch.int64).copy_(
        torch.tensor(strides, dtype=torch.int64)
    )
    for start, packing, tensor in zip(starts, packings, tensors, strict=True):
        packing.put(tensor, row[start : start + packing.n_bytes])
    Head(message.kind, message.micro_batch, message.stage, end, row_checksum(row[HEAD_BYTES:])).put(row[:HEAD_BYTES])
    return row


def _row_of(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def unpack(head: Head, row: torch.Tensor, expected: Sequence[Tensor]) -> Message:
    """Read a message with a payload of these tensors from a row, [n_bytes] uint8, whose memory the tensors keep.

    ``head`` is that of the row. Raise DamagedMessage if what follows the head is not as sent, or not as long as its
    tensors need.
    """
    kind, micro_batch, stage, n_bytes, mark = head
    if n_bytes != len(row) or mark != row_checksum(row[HEAD_BYTES:]):
        raise DamagedMessage(f"a message that is damaged: {kind.name}, micro-batch {micro_batch}, stage {stage}")
    if kind is not Kind.TENSORS:
        return Message(kind, micro_batch, stage, text=row[_up(HEAD_BYTES) :].numpy().tobytes().decode())
    n_strides = sum(len(tensor.shape) for tensor in expected)
    strides = iter(_fields(row, N_FIELDS + n_strides)[N_FIELDS:])
    packings = [
        Packing(tensor.shape, tuple(next(strides) for _ in tensor.shape), getattr(torch, tensor.dtype))
        for tensor in expected
    ]
    *starts, end = _starts(n_strides, packings)
    if end != len(row):
        raise DamagedMessage(f"a message of {len(row)} bytes after stage {stage}, which should have {end}")
    parts = zip(starts, packings, strict=True)
    tensors = tuple(packing.take(row[start : start + packing.n_bytes]) for start, packing in parts)
    return Message(kind, micro_batch, stage, tensors)


def most_bytes(tensors: Sequence[Tensor]) -> int:
    """Return the length of the longest message with these tensors."""
    n_strides = sum(len(tensor.shape) for tensor in tensors)
    return _up((N_FIELDS + n_strides) * WORD_BYTES) + sum(_up(tensor.n_bytes) for tensor in tensors)


def _starts(n_strides: int, packings: Sequence[Packing]) -> Iterator[int]:
    """Yield the start of each tensor, and the end of the message."""
    start = _up((N_FIELDS + n_strides) * WORD_BYTES)
    end = start
    for packing in packings:
        yield start
        end = start + packing.n_bytes
        start = _up(end)
    yield end


def _up(n_bytes: int) -> int:
    return -(-n_bytes // ALIGN) * ALIGN


def _fields(row: torch.Tensor, count: int) -> list[int]:
    if len(row) < count * WORD_BYTES:
        raise DamagedMessage(f"a message of {len(row)} bytes, which should have at least {count * WORD_BYTES}")
    fields: list[int] = row[: count * WORD_BYTES].view(torch.int64).tolist()
    return fields
