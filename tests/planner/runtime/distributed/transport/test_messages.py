"""A message is read as it was written, or refused."""

from collections.abc import Sequence

import pytest
import torch

from graphs.ir import Role, Tensor
from planner.runtime.distributed.transport import messages
from planner.runtime.distributed.transport.checksums import SHORT_BYTES, DamagedMessage
from planner.runtime.distributed.transport.messages import HEAD_BYTES, Head, Kind, Message, most_bytes, pack
from tests.planner.runtime.bits import differences

SPECS = (
    Tensor("a", (2, 3), "float32", Role.ACTIVATION),
    Tensor("b", (), "bool", Role.ACTIVATION),
    Tensor("c", (5, 4), "int64", Role.ACTIVATION),
)


def unpack(row: torch.Tensor, expected: Sequence[Tensor]) -> Message:
    return messages.unpack(Head.of(row), row, expected)


def tensors() -> tuple[torch.Tensor, ...]:
    return torch.randn(3, 2).T, torch.tensor(True), torch.arange(20).view(5, 4)


def test_tensors_with_their_strides() -> None:
    sent = Message(Kind.TENSORS, 7, 3, tensors())
    row = pack(sent)
    # 5 fields and 2 + 0 + 2 strides are 72 bytes; a has 24, b 1, c 160 bytes, each from a multiple of 64 on
    assert Head.of(row)[:4] == (Kind.TENSORS, 7, 3, len(row))
    assert len(row) == 128 + 64 + 64 + 160
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
    assert most_bytes(SPECS) == 128 + 64 + 64 + 192
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
    with pytest.raises(DamagedMessage, match="a message of 16 bytes, which should have at least 40"):
        unpack(row[:16], SPECS)


def test_a_head_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    row, read = pack(Message(Kind.PING, text="1.5")), list[int]()
    fields = messages._fields

    def counted(row: torch.Tensor, count: int) -> list[int]:
        read.append(count)
        return fields(row, count)

    monkeypatch.setattr(messages, "_fields", counted)
    assert unpack(row, ()).text == "1.5"
    assert read == [messages.N_FIELDS]


@pytest.mark.attack("process")
@pytest.mark.parametrize("n_numbers", [6, SHORT_BYTES])
def test_a_payload_that_is_another_one_is_seen(n_numbers: int) -> None:
    spec = Tensor("x", (n_numbers,), "float64", Role.ACTIVATION)
    numbers = torch.arange(1.0, n_numbers + 1, dtype=torch.float64)
    row = pack(Message(Kind.TENSORS, 3, 5, (numbers,)))
    payload = row[-8 * n_numbers :].view(torch.float64)
    assert torch.equal(payload, numbers)

    def lie(value: torch.Tensor, place: slice) -> torch.Tensor:
        other = row.clone()
        other[-8 * n_numbers :].view(torch.float64)[place] = value
        return other

    stride = row.clone()
    stride[HEAD_BYTES] = 0  # all numbers would be the first one
    rest = row.clone()
    rest[-8:] = 0  # as where a message came too short into an empty buffer
    lies = [stride, rest, lie(payload[[1, 0]], slice(2)), lie(payload[[-1, 0]], slice(None, None, n_numbers - 1))]
    lies.append(lie(torch.tensor([torch.nan], dtype=torch.float64), slice(1)))
    assert torch.equal(unpack(row, [spec]).tensors[0], numbers)
    for other in lies:
        with pytest.raises(DamagedMessage, match=r"^a message that is damaged: TENSORS, micro-batch 3, stage 5$"):
            unpack(other, [spec])


@pytest.mark.parametrize("place", range(HEAD_BYTES))
def test_a_byte_of_the_head_that_is_another_one_is_seen(place: int) -> None:
    for kind in Kind:
        row = pack(Message(kind, 3, 5))
        row[place] ^= 1 << place % 8
        with pytest.raises(DamagedMessage, match="whose head is damaged"):
            Head.of(row)
