"""Seals of what stages send, on operations that nobody sends anywhere."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from planner.runtime.distributed.training.seals import Seals
from planner.runtime.errors import StageError
from simulator.schedule import Action
from tests.pretended_gpu import pretend_gpus

SENDER = Action(1, "B", 1)  # the last one


@pytest.fixture(autouse=True)
def _no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(op: Any, tensor: torch.Tensor, peer: int, group: Any) -> Any:
        return SimpleNamespace(op=op, tensor=tensor, peer=peer, group=group)

    monkeypatch.setattr("torch.distributed.P2POp", made)


def ops_of(*tensors: torch.Tensor) -> list[Any]:
    return [SimpleNamespace(tensor=tensor, peer=2, group="pipeline") for tensor in tensors]


def sent() -> tuple[torch.Tensor, ...]:
    return torch.arange(6000.0).reshape(2, 3000), torch.tensor([True, False, True]), torch.empty(0, 4)


def received(
    damage: Callable[[list[torch.Tensor]], object] = lambda _: None,
    step: int = 7,
    place: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
) -> Seals:
    """What came of `sent` in two micro-batches of step 7, the first after some damage; the last tensor is the seal."""
    sender, receiver = Seals(), Seals()
    sender.begin(7, 2)
    receiver.begin(step, 2)
    leaving, coming = list[torch.Tensor](), list[torch.Tensor]()
    for action in (Action(1, "B", 0), SENDER):
        ops = sender.leaving(action, ops_of(*map(place, sent())))
        room: list[Any] = receiver.coming(action, ops_of(*map(place, map(torch.zeros_like, sent()))))
        assert {(op.peer, op.group) for op in room} == {(2, "pipeline")}
        leaving += [op.tensor.clone() for op in ops]
        coming += [op.tensor for op in room]
    damage(leaving)
    for mine, tensor in zip(coming, leaving, strict=True):
        mine.copy_(tensor)
    for action in (SENDER, Action(1, "B", 0)):  # used in another order
        receiver.sum_up(action)
    return receiver


def test_what_comes_as_it_was_sent_is_no_error() -> None:
    received().check()
    nothing = Seals()
    nothing.begin(7, 2)
    assert nothing.leaving(SENDER, []) == nothing.coming(SENDER, []) == []
    nothing.sum_up(SENDER)  # of a stage on the same rank
    nothing.check()


LIES: Mapping[str, Callable[[list[torch.Tensor]], object]] = {
    "no numbers": lambda tensors: tensors[0].fill_(float("nan")),
    "the end is missing": lambda tensors: tensors[0][1].zero_(),
    "other places": lambda tensors: tensors[0].copy_(tensors[0].flip(0)),
    "other bytes": lambda tensors: tensors[1].logical_not_(),
    "no seal": lambda tensors: tensors[-1].zero_(),
}


@pytest.mark.attack("process")
@pytest.mark.parametrize("lie", LIES)
def test_what_comes_damaged_is_an_error_until_the_next_step(lie: str) -> None:
    seals_of_one = received(LIES[lie])
    with pytest.raises(StageError, match=r"^what stage 1 sent after 1B0 in step 7 came damaged$"):
        seals_of_one.check()
    seals_of_one.begin(8, 2)
    seals_of_one.check()


@pytest.mark.attack("process")
def test_the_micro_batch_that_comes_damaged_is_named() -> None:
    other = received(lambda tensors: tensors[3].copy_(tensors[3] + 1))  # of the second one
    with pytest.raises(StageError, match="after 1B1 in step 7 came damaged"):
        other.check()


def test_on_a_gpu_the_sums_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch)
    received(place=lambda tensor: tensor.to("cuda:0")).check()
    for lie in LIES:
        with pytest.raises(StageError, match=r"^what stage 1 sent after 1B0 in step 7 came damaged$"):
            received(LIES[lie], place=lambda tensor: tensor.to("cuda:0")).check()


def test_a_message_of_another_step_is_an_error() -> None:
    with pytest.raises(StageError, match="in step 8 came damaged"):
        received(step=8).check()
