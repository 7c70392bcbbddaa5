"""Seals of what stages send, on operations that nobody sends anywhere."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from planner.runtime.distributed.training.seals import Seals, sum_of_words
from planner.runtime.errors import StageError
from simulator.schedule import Action

SENDER = Action(1, "B", 3)


@pytest.fixture(autouse=True)
def _no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(op: Any, tensor: torch.Tensor, peer: int, group: Any) -> Any:
        return SimpleNamespace(op=op, tensor=tensor, peer=peer, group=group)

    monkeypatch.setattr("torch.distributed.P2POp", made)


def ops_of(*tensors: torch.Tensor) -> list[Any]:
    return [SimpleNamespace(tensor=tensor, peer=2, group="pipeline") for tensor in tensors]


def sent() -> tuple[torch.Tensor, ...]:
    return torch.arange(6.0).reshape(2, 3), torch.tensor([True, False, True]), torch.empty(0, 4)


def received(damage: Callable[[list[torch.Tensor]], object] = lambda _: None, step: int = 7) -> Seals:
    """What came of `sent`, in step 7, after some damage; the last tensor is the seal."""
    sender, receiver = Seals(), Seals()
    sender.begin(7)
    receiver.begin(step)
    leaving = [op.tensor.clone() for op in sender.leaving(SENDER, ops_of(*sent()))]
    coming: list[Any] = [*receiver.coming(SENDER, ops_of(*map(torch.empty_like, sent())))]
    assert {(op.peer, op.group) for op in coming} == {(2, "pipeline")}
    damage(leaving)
    for op, tensor in zip(coming, leaving, strict=True):
        op.tensor.copy_(tensor)
    receiver.compare(SENDER)
    return receiver


def test_what_comes_as_it_was_sent_is_no_error() -> None:
    received().check()
    nothing = Seals()
    assert nothing.leaving(SENDER, []) == nothing.coming(SENDER, []) == []
    nothing.compare(SENDER)  # of a stage on the same rank
    nothing.check()


@pytest.mark.parametrize(
    "damage",
    [
        lambda tensors: tensors[0].fill_(float("nan")),
        lambda tensors: tensors[0][1].zero_(),
        lambda tensors: tensors[1].logical_not_(),
        lambda tensors: tensors[-1].zero_(),
    ],
    ids=["no numbers", "the end is missing", "other bytes", "no seal"],
)
def test_what_comes_damaged_is_an_error_until_the_next_step(damage: Callable[[list[torch.Tensor]], object]) -> None:
    seals_of_one = received(damage)
    with pytest.raises(StageError, match=r"^what stage 1 sent after 1B3 in step 7 came damaged$"):
        seals_of_one.check()
    seals_of_one.begin(8)
    seals_of_one.check()


def test_a_message_of_another_step_is_an_error() -> None:
    with pytest.raises(StageError, match="in step 8 came damaged"):
        received(step=8).check()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.int64, torch.complex64])
def test_a_checksum_is_of_the_bytes_wherever_they_are(dtype: torch.dtype) -> None:
    tensor = torch.arange(21).to(dtype).reshape(3, 7)
    assert sum_of_words(tensor).dtype == torch.int64
    assert sum_of_words(tensor[1:]) == sum_of_words(tensor[1:].clone())  # which need not begin at a word
    assert sum_of_words(tensor.T) == sum_of_words(tensor.T.contiguous())
    for place in range(21):
        other = tensor.clone()
        other.view(-1)[place] = 50
        assert sum_of_words(other) != sum_of_words(tensor)
