"""Ranks that see that all live: threads of this process, joined by gloo as processes would be."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

from planner.runtime.processes import vigil
from planner.runtime.processes.hosting import HERE
from planner.runtime.processes.layout import Layout
from planner.runtime.processes.life import LOOK_S, Patience, Silent
from planner.runtime.processes.meeting import card_of, join
from planner.runtime.processes.vigil import Vigil
from tests.planner.runtime.processes.ranks import served_store, visit
from tests.planner.runtime.processes.test_hosting import plan_of
from tests.planner.runtime.small import PATIENCE_S, begin

LAYOUT = Layout(((0,), (1,), (2,)), ("a", "b", "c"))
GONE = "rank 2 ('c') is gone: nothing was heard of it for 4 s; start all ranks again"


class Told:
    """What ranks say when they give up."""

    def __init__(self) -> None:
        self.said: dict[int, str] = {}
        self.all = threading.Event()

    def by(self, rank: int, why: str) -> None:
        self.said[rank] = why
        if len(self.said) == len(LAYOUT.devices):
            self.all.set()


@contextmanager
def watching(told: Told, clocks: tuple[str, ...] = ("here",) * 3) -> Iterator[list[Vigil]]:
    """Three ranks, each of which sees the first one, and the first one all."""
    store = served_store()
    cards = tuple(replace(card_of(plan_of()), clock=clock) for clock in clocks)

    def start(rank: int) -> Vigil:
        group = join(visit(store), rank, len(cards), HERE)
        return Vigil(group, LAYOUT, rank, cards, lambda why: told.by(rank, why))

    starting = [begin(lambda rank=rank: start(rank)) for rank in range(len(cards))]  # type: ignore[misc]
    with ExitStack() as ends:
        vigils = [each.result(PATIENCE_S) for each in starting]
        ends.callback(lambda: [done.result(PATIENCE_S) for done in [begin(each.close) for each in vigils]])
        yield vigils


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(("vigil-", "send-", "receive-"))]


def test_ranks_that_live_and_leave_say_nothing() -> None:
    told, before = Told(), threads()
    with watching(told) as vigils:
        assert [sorted(vigil._wires) for vigil in vigils] == [[1, 2], [0], [0]]
        pause = threading.Event()
        pause.wait(2 * LOOK_S)
    for each in vigils:
        each.close()
    assert told.said == {}
    assert sorted(threads()) == sorted(before)


def test_all_are_told_by_the_first_one() -> None:
    told = Told()
    with watching(told) as vigils:
        vigils[0].lose(2, Silent("nothing was heard of it for 4 s"))
        vigils[0].lose(1, RuntimeError("Connection closed by peer"))  # what follows says less
        assert [each.why() for each in vigils] == [GONE] * 3
        assert told.said == {}  # whoever trains may end by itself
        assert told.all.wait(PATIENCE_S)
    assert told.said == dict.fromkeys(range(3), GONE)


def test_whoever_ends_by_itself_gives_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    monkeypatch.setattr(vigil, "GRACE_S", 0.2)
    with watching(told) as vigils:
        assert vigils[1].why() == ""
        begin(vigils[1].close)
        vigils[0].lose(2, RuntimeError("Connection closed by peer"))
        assert vigils[2].why() == "rank 2 ('c') is gone: its connection broke; start all ranks again"
        threading.Event().wait(1.0)
        assert sorted(told.said) == [0, 2]


def test_a_rank_of_this_host_is_looked_at_and_one_of_another_is_not() -> None:
    with watching(Told(), ("here", "here", "there")) as vigils:
        patience = {
            rank: {peer: wire._life._patience for peer, wire in each._wires.items()} for rank, each in enumerate(vigils)
        }
    near = Patience(30.0, card_of(plan_of()).pid)
    assert patience == {0: {1: near, 2: Patience(4.0)}, 1: {0: near}, 2: {0: Patience(4.0)}}
