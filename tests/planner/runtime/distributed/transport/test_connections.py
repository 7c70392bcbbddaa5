"""Wires over a group that is a few queues, so that what is waited for and sent can be counted."""

import threading
import time
from collections import defaultdict
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from graphs.ir import Role, Tensor
from planner.runtime.distributed.transport import connections as connections
from planner.runtime.distributed.transport.checksums import DamagedMessage
from planner.runtime.distributed.transport.connections import (
    LARGEST_BYTES,
    SMALLEST_BYTES,
    Connection,
    piece_bytes,
    why_lost,
)
from planner.runtime.distributed.transport.layout import Payload, Routes
from planner.runtime.distributed.transport.liveness import Heartbeats, SilentPeer
from planner.runtime.distributed.transport.messages import Kind, Message
from tests.planner.runtime.small import PATIENCE_S

BIG = Tensor("big", (3_000_000,), "float32", Role.ACTIVATION)  # 12 MB: three pieces
SMALL = Tensor("small", (3,), "float32", Role.ACTIVATION)
ROUTES = Routes((Payload(0, 0, 1, (BIG,)), Payload(1, 0, 1, (SMALL,))))


class Line:
    """One direction: a piece is there when both ends have come."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pieces: list[torch.Tensor] = []
        self.works: list[Work] = []
        self.lengths: list[int] = []
        self.most_waiting = 0

    def meet(self) -> None:
        while self.pieces and self.works:
            piece, work = self.pieces.pop(0), self.works.pop(0)
            assert len(piece) <= len(work.buffer), "gloo would abort the process"
            work.buffer[: len(piece)] = piece
            work.come.put(None)


class Work:
    def __init__(self, buffer: torch.Tensor) -> None:
        self.buffer = buffer
        self.come: SimpleQueue[Exception | None] = SimpleQueue()

    def wait(self, timeout: timedelta) -> bool:
        error = self.come.get(timeout=min(PATIENCE_S, timeout.total_seconds()))
        if error:
            raise error
        return True


class Pair:
    """The group as one end sees it."""

    def __init__(self, rank: int, lines: dict[tuple[int, int], Line]) -> None:
        self.rank, self.lines = rank, lines

    def send(self, tensors: list[torch.Tensor], peer: int, _tag: int, /) -> Any:
        line = self.lines[self.rank, peer]
        with line.lock:
            line.pieces.append(tensors[0].clone())
            line.lengths.append(len(tensors[0]))
            line.meet()
        done = Work(tensors[0])
        done.come.put(None)
        return done

    def recv(self, tensors: list[torch.Tensor], peer: int, _tag: int, /) -> Any:
        line, work = self.lines[peer, self.rank], Work(tensors[0])
        with line.lock:
            line.works.append(work)
            line.most_waiting = max(line.most_waiting, len(line.works))
            line.meet()
        return work


class Heard:
    def __init__(self) -> None:
        self.messages: SimpleQueue[Message] = SimpleQueue()
        self.lost: SimpleQueue[tuple[int, Exception]] = SimpleQueue()

    def hear(self, _peer: int, message: Message) -> None:
        self.messages.put(message)

    def lose(self, peer: int, error: Exception) -> None:
        self.lost.put((peer, error))

    def next(self) -> Message:
        return self.messages.get(timeout=PATIENCE_S)


class Ends:
    """Two connections that are joined."""

    def __init__(self) -> None:
        self.lines: dict[tuple[int, int], Line] = defaultdict(Line)
        self.heard = Heard(), Heard()
        self.connections = tuple(
            Connection(Pair(r, self.lines), r, 1 - r, ROUTES, self.heard[r], Heartbeats(4.0))  # type: ignore[arg-type]
            for r in (0, 1)
        )
        for connection in self.connections:
            connection.start()

    def part(self) -> None:
        for connection in self.connections:
            connection.send(Message(Kind.BYE))
        for connection in self.connections:
            connection.join(time.monotonic() + PATIENCE_S)
        assert not wire_threads()


def wire_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith(("send-", "receive-"))]


def test_messages_come_in_order_however_long() -> None:
    ends = Ends()
    big = torch.randn(3_000_000)
    for i in range(3):
        ends.connections[0].send(Message(Kind.TENSORS, i, 0, (big + i,)))
        ends.connections[0].send(Message(Kind.TENSORS, i, 1, (torch.full((3,), float(i)),)))
        ends.connections[0].send(Message(Kind.FAILED, i, text="→" * 10_000))
    for i in range(3):
        first, second, third = (ends.heard[1].next() for _ in range(3))
        assert torch.equal(first.tensors[0], big + i)
        assert second.tensors[0].tolist() == [i] * 3
        assert third == Message(Kind.FAILED, i, text="→" * 10_000)
    ends.part()
    assert ends.heard[1].next().kind is ends.heard[0].next().kind is Kind.BYE
    assert max(ends.lines[0, 1].lengths) == LARGEST_BYTES
    assert ends.heard[0].lost.empty()


def test_what_is_short_does_not_keep_a_long_buffer() -> None:
    ends = Ends()
    ends.connections[0].send(Message(Kind.TENSORS, 0, 1, (torch.ones(3),)))
    tensor = ends.heard[1].next().tensors[0]
    assert tensor.untyped_storage().nbytes() == 64 + 3 * 4
    ends.part()


def test_buffers_wait_before_anything_is_sent_and_ever_after() -> None:
    ends = Ends()
    line = ends.lines[0, 1]
    assert len(line.works) == 4  # 16 MiB of 4 MiB each
    assert len(ends.lines[1, 0].works) == connections.MOST_WAITING  # where only words travel
    for i in range(20):
        ends.connections[0].send(Message(Kind.TENSORS, i, 1, (torch.ones(3),)))
    for _ in range(20):
        ends.heard[1].next()
    assert line.most_waiting == 4
    ends.part()


class Losing(Pair):
    """A group that loses what is sent, as gloo does with a piece that is sent while the connection breaks."""

    def send(self, tensors: list[torch.Tensor], _peer: int, _tag: int, /) -> Any:
        return Work(tensors[0])


def test_a_peer_that_takes_no_piece_is_lost_within_the_time_in_which_something_has_to_be_heard_of_it() -> None:
    heard, lines = Heard(), defaultdict[tuple[int, int], Line](Line)
    connection = Connection(Losing(0, lines), 0, 1, ROUTES, heard, Heartbeats(0.1))  # type: ignore[arg-type]
    connection.start()
    connection.send(Message(Kind.FAILED, 0, text="no"))
    assert heard.lost.get(timeout=PATIENCE_S)[0] == 1
    lines[1, 0].works[0].come.put(RuntimeError("Connection closed by peer"))  # which the receiver waits for
    connection.join(time.monotonic() + PATIENCE_S)
    assert not wire_threads()


def test_lengths_of_buffers() -> None:
    assert piece_bytes([]) == SMALLEST_BYTES
    assert piece_bytes(ROUTES.payloads) == LARGEST_BYTES
    middle = Tensor("m", (2000,), "float32", Role.ACTIVATION)
    assert piece_bytes([Payload(0, 0, 1, (middle,))]) == 64 + 8000  # six words before it are 48 bytes, up to 64


def test_a_lost_connection_is_told_once_and_ends_both_threads() -> None:
    ends = Ends()
    ends.lines[0, 1].works[0].come.put(RuntimeError("Connection closed by peer"))
    peer, error = ends.heard[1].lost.get(timeout=PATIENCE_S)
    assert (peer, str(error)) == (0, "Connection closed by peer")
    ends.connections[1].join(time.monotonic() + PATIENCE_S)
    assert {"send-1-0", "receive-1-0"}.isdisjoint(wire_threads())
    ends.connections[1].send(Message(Kind.PING))  # nobody minds
    assert ends.heard[1].lost.empty()
    ends.connections[1].join(time.monotonic() + PATIENCE_S)
    ends.connections[0].send(Message(Kind.BYE))
    with ends.lines[1, 0].lock:
        ends.lines[1, 0].works[0].come.put(RuntimeError("gone"))
    ends.connections[0].join(time.monotonic() + PATIENCE_S)
    assert wire_threads() == []


def test_who_has_nothing_to_say_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LOOK_S", 0.02)
    ends = Ends()
    for looks in range(30):  # more than eight in a row without a sign would end it
        for (_, peer), line in list(ends.lines.items()):
            while len(line.lengths) <= looks and ends.heard[peer].lost.empty():
                time.sleep(0.001)
            ends.connections[peer].check()
    assert all(heard.messages.empty() and heard.lost.empty() for heard in ends.heard)
    ends.part()


def test_a_peer_of_which_nothing_is_heard_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LOOK_S", PATIENCE_S)  # nobody gives a sign
    monkeypatch.setattr(Line, "meet", lambda _: None)  # nor does a goodbye arrive
    ends = Ends()
    for number, heard in enumerate(ends.heard):
        for _ in range(7):
            ends.connections[number].check()
        assert heard.lost.empty()
        ends.connections[number].check()
        ends.connections[number].check()
        peer, error = heard.lost.get(timeout=PATIENCE_S)
        assert (peer, str(error)) == (1 - number, "nothing was heard of it for 4 s")
        assert isinstance(error, SilentPeer)
        assert heard.lost.empty()
    for line in ends.lines.values():
        line.works[0].come.put(RuntimeError("closed at last"))
    for connection in ends.connections:
        connection.join(time.monotonic() + PATIENCE_S)
    assert wire_threads() == []


def test_a_damaged_message_ends_the_connection() -> None:
    ends = Ends()
    ends.connections[0].send(Message(Kind.TENSORS, 0, 1, (torch.ones(3), torch.ones(100))))
    _, error = ends.heard[1].lost.get(timeout=PATIENCE_S)
    assert isinstance(error, DamagedMessage)
    ends.lines[1, 0].works[0].come.put(RuntimeError("gone"))
    for connection in ends.connections:
        connection.send(Message(Kind.BYE))
        connection.join(time.monotonic() + PATIENCE_S)


@pytest.mark.parametrize("kind", [Kind.PING, Kind.SPANS, Kind.RECORD])
def test_words(kind: Kind) -> None:
    ends = Ends()
    ends.connections[1].send(Message(kind, text="1.5"))
    assert ends.heard[0].next() == Message(kind, text="1.5")
    ends.part()


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (SilentPeer("nothing was heard of it for 4 s"), "nothing was heard of it for 4 s"),
        (DamagedMessage("a message of the kind 9, which there is not"), "a message of the kind 9, which there is not"),
        (RuntimeError("[../third_party/gloo] Connection closed by peer [127.0.0.1]:1"), "its connection broke"),
        (RuntimeError("can't start new thread"), "this process has too little: can't start new thread"),
    ],
)
def test_what_a_person_reads(error: Exception, why: str) -> None:
    assert why_lost(error) == why
