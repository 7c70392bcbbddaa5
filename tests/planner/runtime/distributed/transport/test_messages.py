"""A message is read as it was written, or refused."""

import pytest
import torch

from graphs.ir import Role, Tensor
from planner.runtime.distributed.transport.messages import (
    DamagedMessage,
    Kind,
    Message,
    address,
    length,
    most_bytes,
    pack,
    unpack,
)
from tests.planner.runtime.bits import differences

SPECS = (
    Tensor("a", (2, 3), "float32", Role.ACTIVATION),
    Tensor("b", (), "bool", Role.ACTIVATION),
    Tensor("c", (5, 4), "int64", Role.ACTIVATION),
)


def tensors() -> tuple[torch.Tensor, ...]:
    return torch.randn(3, 2).T, torch.tensor(True), torch.arange(20).view(5, 4)


def test_tensors_with_their_strides() -> None:
    sent = Message(Kind.TENSORS, 7, 3, tensors())
    row = pack(sent)
    # 4 fields and 2 + 0 + 2 strides are 64 bytes; a has 24, b 1, c 160 bytes, each from a multiple of 64 on
    assert length(row) == len(row) == 64 + 64 + 64 + 160
    assert address(row) == (Kind.TENSORS, 7, 3)
    came = unpack(row, SPECS)
    assert (came.kind, came.micro_batch, came.stage, came.text) == (Kind.TENSORS, 7, 3, "")
    assert differences(sent.tensors, came.tensors) == []
    assert [tensor.stride() for tensor in came.tensors] == [(1, 2), (), (4, 1)]


def test_a_word_alone() -> None:
    row = pack(Message(Kind.TENSORS, 1, 2))
    assert len(row) == 64
    assert unpack(row, ()) == Message(Kind.TENSORS, 1, 2)


@pytest.mark.parametrize("text", ["", "x", '{"größer": "→"}' * 1000])
def test_texts(text: str) -> None:
    sent = Message(Kind.FAILED, 4, text=text)
    assert unpack(pack(sent), ()) == sent


def test_the_longest_that_may_come() -> None:
    assert most_bytes(()) == 64
    assert most_bytes(SPECS) == 64 + 64 + 64 + 192
    assert most_bytes(SPECS) >= len(pack(Message(Kind.TENSORS, 0, 0, tensors())))


def test_a_conjugate_view_travels_as_numbers() -> None:
    values = torch.tensor([1 + 2j, 3 - 4j])
    came = unpack(pack(Message(Kind.TENSORS, tensors=(values.conj(),))), [Tensor("z", (2,), "complex64", Role.INPUT)])
    assert torch.equal(came.tensors[0], values.conj())
    assert not came.tensors[0].is_conj()


def test_what_does_not_fit_the_plan_is_refused() -> None:
    row = pack(Message(Kind.TENSORS, 0, 5, tensors()[:2]))
    with pytest.raises(DamagedMessage, match=r"a message of 129 bytes after stage 5, which should have \d+"):
        unpack(row, SPECS)
    with pytest.raises(DamagedMessage, match="a message of 16 bytes, which should have at least 32"):
        unpack(row[:16], SPECS)


@pytest.mark.parametrize("place", range(32))
def test_a_byte_of_the_head_that_is_another_one_is_seen(place: int) -> None:
    for kind in Kind:
        row = pack(Message(kind, 3, 5))
        row[place] ^= 1 << place % 8
        with pytest.raises(DamagedMessage, match="whose head is damaged"):
            length(row)
