"""Ranks that see that all live: threads of this process, joined by gloo as processes would be."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

from costmodels.host.stores import HERE, served_store, visited_store
from graphs.common.errors import InputError
from planner.runtime.distributed.transport import failure_detector as detector
from planner.runtime.distributed.transport.failure_detector import FailureDetector
from planner.runtime.distributed.transport.layout import RankLayout
from planner.runtime.distributed.transport.liveness import LOOK_S, Heartbeats, SilentPeer
from planner.runtime.distributed.transport.messages import Kind, Message
from planner.runtime.distributed.transport.rendezvous import join, peer_info_of
from planner.runtime.errors import RankError, RemoteError, StageError
from tests.planner.runtime.distributed.inference.test_launcher import plan_of
from tests.planner.runtime.small import PATIENCE_S, begin, eventually

LAYOUT = RankLayout(((0,), (1,), (2,)), ("a", "b", "c"))
GONE = "rank 2 ('c') is gone: nothing was heard of it for 4 s; start all ranks again"


class Torch:
    """What a rank waits in, until it is broken off."""

    def __init__(self) -> None:
        self.waits, self.broken = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.waits.set()
        assert self.broken.wait(PATIENCE_S)
        raise RuntimeError("Application timeout caused pair closure\nand much more")


@contextmanager
def watching(
    torches: tuple[Torch, ...] = (), clocks: tuple[str, ...] = ("here",) * 3
) -> Iterator[list[FailureDetector]]:
    """Three ranks, each of which sees the first one, and the first one all."""
    store = served_store()
    peer_infos = tuple(replace(peer_info_of(plan_of()), clock=clock) for clock in clocks)
    torches = torches or (Torch(), Torch(), Torch())

    def start(rank: int) -> FailureDetector:
        group = join(visited_store(store.port), rank, len(peer_infos), HERE)
        return FailureDetector(group, LAYOUT, rank, peer_infos, torches[rank].broken.set)

    starting = [begin(lambda rank=rank: start(rank)) for rank in range(len(peer_infos))]  # type: ignore[misc]
    with ExitStack() as ends:
        detectors = [each.result(PATIENCE_S) for each in starting]
        ends.callback(lambda: [done.result(PATIENCE_S) for done in [begin(each.close) for each in detectors]])
        yield detectors


def failure_in(each: FailureDetector, work: Callable[[], object]) -> RankError:
    """What comes out of a rank that waits."""

    def heed() -> None:
        with each.heeding():
            work()

    error = begin(heed).exception(PATIENCE_S)
    assert isinstance(error, RankError)
    return error


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith(("heartbeats-", "send-", "receive-"))}


def test_ranks_that_live_and_leave_say_nothing() -> None:
    torches, before = (Torch(), Torch(), Torch()), threads()
    with watching(torches) as detectors:
        assert [sorted(detector._peers.connections) for detector in detectors] == [[1, 2], [0], [0]]
        threading.Event().wait(2 * LOOK_S)
        for each in detectors:
            with each.heeding():
                pass
    for each in detectors:
        each.close()
    assert not any(torch.broken.is_set() for torch in torches)
    eventually(lambda: threads() <= before)


def test_all_are_told_by_the_first_one_and_wait_no_longer() -> None:
    torches = (Torch(), Torch(), Torch())
    with watching(torches) as detectors:
        waiting = [begin(lambda i=i: failure_in(detectors[i], torches[i].wait)) for i in range(2)]  # type: ignore[misc]
        assert all(torch.waits.wait(PATIENCE_S) for torch in torches[:2])
        detectors[0].lose(2, SilentPeer("nothing was heard of it for 4 s"))
        detectors[0].lose(1, RuntimeError("Connection closed by peer"))  # what follows says less
        failures = [each.result(PATIENCE_S) for each in waiting]
        assert [str(each) for each in failures] == [GONE] * 2
        assert [str(each.__cause__).splitlines()[0] for each in failures] == [
            "Application timeout caused pair closure"
        ] * 2
        afterwards = failure_in(detectors[1], lambda: pytest.fail("it need not begin"))
        assert str(afterwards) == GONE
        assert afterwards.__cause__ is None


def test_what_fails_in_one_rank_is_told_to_all_with_its_traceback() -> None:
    torches = (Torch(), Torch(), Torch())

    def fail() -> None:
        with detectors[2].heeding():
            raise StageError("stage 2 on 'c' failed in 2F0: KeyError: 'x'") from KeyError("x")

    with watching(torches) as detectors:
        waiting = [begin(lambda i=i: failure_in(detectors[i], torches[i].wait)) for i in range(2)]  # type: ignore[misc]
        with pytest.raises(StageError):
            fail()
        told = "rank 2 ('c') failed: stage 2 on 'c' failed in 2F0: KeyError: 'x'; start all ranks again"
        for failure in [each.result(PATIENCE_S) for each in waiting]:
            assert str(failure) == told
            assert isinstance(failure.__cause__, RemoteError)
            assert str(failure.__cause__).endswith("KeyError: 'x'\n")
        assert (
            str(failure_in(detectors[2], lambda: pytest.fail("it need not begin"))) == told
        )  # nor does it go on itself
        assert not torches[2].broken.is_set()  # nothing waits there


def test_the_first_rank_tells_what_fails_there() -> None:
    torches = (Torch(), Torch(), Torch())
    with watching(torches) as detectors:
        waiting = begin(lambda: failure_in(detectors[1], torches[1].wait))
        detectors[0].tell(ValueError("two\nlines."))
        assert str(waiting.result(PATIENCE_S)) == "rank 0 ('a') failed: ValueError: two; start all ranks again"


def test_torch_may_notice_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the reason follows, or does not."""

    def notice() -> None:
        begin(lambda: detectors[0].lose(2, RuntimeError("Connection closed by peer")))
        raise RuntimeError("Connection reset by peer")

    with watching() as detectors:
        failure = failure_in(detectors[1], notice)
        assert str(failure) == "rank 2 ('c') is gone: its connection broke; start all ranks again"
        assert str(failure.__cause__) == "Connection reset by peer"
    monkeypatch.setattr(detector, "TOLD_S", 0.1)
    torches = (Torch(), Torch(), Torch())
    with watching(torches) as detectors:
        torches[1].broken.set()
        assert str(failure_in(detectors[1], torches[1].wait)) == (
            "a step was broken off: Application timeout caused pair closure; see what the other ranks say"
        )


def test_leaving_by_an_error_tells_the_others() -> None:
    """And by one of torch's names the rank behind it; what says so already stays as it is."""
    torches = (Torch(), Torch(), Torch())
    with watching(torches) as detectors:

        def leave(rank: int, error: BaseException) -> BaseException | None:
            def within() -> None:
                with detectors[rank]:
                    raise error

            return begin(within).exception(PATIENCE_S)

        mine = InputError("the batch has 3 samples; pass 4")
        leaving = begin(lambda: leave(1, mine))
        told = "rank 1 ('b') failed: the batch has 3 samples; pass 4; start all ranks again"
        assert str(failure_in(detectors[0], torches[0].wait)) == told
        assert torches[2].broken.wait(PATIENCE_S)
        theirs = leave(2, RuntimeError("from some function of torch's"))
        assert isinstance(theirs, RankError)
        assert str(theirs) == told
        already = RankError("known")
        assert leave(0, already) is already
        assert leaving.result(PATIENCE_S) is mine


def test_whoever_has_closed_breaks_off_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torches = (Torch(), Torch(), Torch())
    monkeypatch.setattr(detector, "GRACE_S", 0.5)
    with watching(torches) as detectors:
        closing = begin(detectors[1].close)
        detectors[0].lose(2, RuntimeError("Connection closed by peer"))
        assert torches[2].broken.wait(PATIENCE_S)
        assert torches[0].broken.wait(PATIENCE_S)
        detectors[1].hear(0, Message(Kind.LOST, text=json.dumps(["late", ""])))
        closing.result(PATIENCE_S)
        assert not torches[1].broken.is_set()


def test_a_rank_of_this_host_is_looked_at_and_one_of_another_is_not() -> None:
    with watching(clocks=("here", "here", "there")) as detectors:
        heartbeats = {
            rank: {peer: connection._heartbeats for peer, connection in each._peers.connections.items()}
            for rank, each in enumerate(detectors)
        }
    near = Heartbeats(30.0, peer_info_of(plan_of()).pid)
    assert heartbeats == {0: {1: near, 2: Heartbeats(4.0)}, 1: {0: near}, 2: {0: Heartbeats(4.0)}}
