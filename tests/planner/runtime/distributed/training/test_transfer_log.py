"""When messages leave and come, on operations that nobody sends anywhere."""

import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from planner.runtime.distributed.training.engine import MessageLog
from simulator.schedule import Action
from tests.planner.runtime.small import PATIENCE_S, begin

SENDER = Action(1, "B", 3)


@dataclass
class Op:
    """What torch makes of a tensor that is to come."""

    op: Any
    tensor: torch.Tensor


class Work:
    """A tensor on its way, which comes or does not."""

    def __init__(self, error: Exception | None = None) -> None:
        self.there = threading.Event()
        self.error = error

    def wait(self) -> bool:
        assert self.there.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        return True


def test_nothing_is_watched_unless_it_is_on() -> None:
    watch, ops = MessageLog(), [Op(Work, torch.ones(1))]
    assert watch.coming(SENDER, ops) is watch.leaving(SENDER, ops) is ops  # type: ignore[arg-type, comparison-overlap]
    assert ops[0].op is Work
    assert watch.ends == []


def test_a_tensor_is_there_when_it_has_come_and_not_when_it_is_asked_for() -> None:
    watch, works = MessageLog(), [Work(), Work()]
    watch.on = True
    ops: Any = [Op(lambda work=work: work, torch.ones(1)) for work in works]
    watch.leaving(SENDER, ops)
    first, second = (op.op() for op in watch.coming(SENDER, ops))
    waiting = begin(second.wait)
    works[0].there.set()
    assert first.wait() is True
    come_s = time.perf_counter()
    assert not waiting.done()
    works[1].there.set()
    assert waiting.result(PATIENCE_S) is True
    assert [(end.sender, end.leaves) for end in watch.ends] == [
        (SENDER, True), (SENDER, False), (SENDER, False),
    ]  # fmt: skip
    left_s, first_s, second_s = (end.at_s for end in watch.ends)
    assert left_s <= first_s <= come_s <= second_s


def test_what_does_not_come_is_an_error_where_torch_waits() -> None:
    watch, work = MessageLog(), Work(RuntimeError("Connection closed by peer"))
    watch.on = True
    ops: Any = [Op(lambda: work, torch.ones(1))]
    (op,) = watch.coming(SENDER, ops)
    work.there.set()
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        op.op().wait()
    assert watch.ends == []


def test_a_message_without_tensors_does_not_leave() -> None:
    watch = MessageLog()
    watch.on = True
    assert watch.leaving(SENDER, []) == watch.coming(SENDER, []) == []
    assert watch.ends == []
