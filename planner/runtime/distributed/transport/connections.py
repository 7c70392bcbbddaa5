"""Connections: the connection of a rank to a peer, with a thread that sends and one that receives.

gloo delivers a message quickly only if the receiver waits for it with a buffer that is large enough. So each end
always has a few buffers waiting, of a length that both know from the plan; a longer message comes in several pieces.
The micro-batches in flight bound the messages in the queues.

A rank that has nothing to send sends a heartbeat now and then, so that a host whose cable is cut is noticed (see
`liveness`). A process that ends closes its connections.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from math import inf
from queue import Empty, SimpleQueue
from typing import Protocol

import torch
from torch.distributed import ProcessGroup as ProcessGroup
from torch.distributed import Work

from costmodels.host.affinity import use_threads
from graphs.common.shortages import shortage
from planner.runtime.distributed.transport.checksums import DamagedMessage
from planner.runtime.distributed.transport.layout import Payload, Routes
from planner.runtime.distributed.transport.liveness import LOOK_S, Heartbeats, SilentPeer
from planner.runtime.distributed.transport.messages import Head, Kind, Message, most_bytes, pack, unpack

FOREVER = timedelta(
    days=365
)  # for a message to come; when a wait in gloo times out, all connections of the group break
SMALLEST_BYTES, LARGEST_BYTES = 2**12, 2**22  # of a piece
ALL_BYTES = 2**24  # of all buffers that wait for one peer; two may take more
MOST_WAITING = 8
TAG = 0


class Listener(Protocol):
    """Hears what a connection brings, on the connection's thread."""

    def hear(self, peer: int, message: Message) -> None:
        """Handle a message."""
        ...

    def lose(self, peer: int, error: Exception) -> None:
        """Handle the end of the connection: it broke, or a message was damaged; nothing more comes."""
        ...


class Connection:
    """The connection of a rank to one peer."""

    def __init__(
        self, group: ProcessGroup, rank: int, peer: int, routes: Routes, ears: Listener, heartbeats: Heartbeats
    ) -> None:
        self._group = group
        self._peer = peer
        self._ears = ears
        self._arriving = {payload.stage: payload.tensors for payload in routes.between(peer, rank)}
        self._out_bytes = piece_bytes(routes.between(rank, peer))
        self._in_bytes = piece_bytes(routes.between(peer, rank))
        self._queue: SimpleQueue[Message] = SimpleQueue()
        self._waiting: deque[tuple[torch.Tensor, Work]] = deque()
        self._lost = threading.Event()
        self._heartbeats = heartbeats
        self._offered_s = inf  # by time.monotonic, the piece that the peer is to take
        self._ended = False  # the peer has said goodbye
        self.given_up = False  # the peer is silent, though the connection is there
        for _ in range(max(2, min(MOST_WAITING, ALL_BYTES // self._in_bytes))):
            self._wait_for_more()
        self._threads = [
            threading.Thread(target=self._repeat, args=(work,), name=f"{what}-{rank}-{peer}", daemon=True)
            for what, work in (("send", self._send_next), ("receive", self._receive_next))
        ]

    def start(self) -> None:
        """Begin to send and to receive."""
        for thread in self._threads:
            thread.start()

    def send(self, message: Message) -> None:
        """Queue a message."""
        self._queue.put(message)

    def check(self) -> None:
        """Give the peer up if nothing was heard of it for too long; to be called every `LOOK_S`."""
        if not self._ended and (why := self._heartbeats.look()):
            self.given_up = True
            self._lose(SilentPeer(why))

    def join(self, end_s: float) -> None:
        """Wait until both sides have said goodbye, or the connection is lost, or ``time.monotonic`` is ``end_s``."""
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))

    def _repeat(self, work: Callable[[], bool]) -> None:
        try:
            use_threads(1)  # copies are made on this thread alone
            while work():
                pass
        except Exception as error:  # torch raises RuntimeError for a peer that ended; a damaged message is as bad
            self._lose(self._explained(error))

    def _lose(self, error: Exception) -> None:
        if not self._lost.is_set():
            self._lost.set()
            self.send(Message(Kind.BYE))  # the sender need not wait for more
            self._ears.lose(self._peer, error)

    def _send_next(self) -> bool:
        """Send one message; return False for the last one. Nothing of it is held while the next one is awaited.

        gloo loses a piece that is sent at the moment at which the connection breaks, and would wait for it forever. A
        peer that takes no piece within the time in which something has to be heard of it is gone as well.
        """
        try:
            message = self._queue.get(timeout=LOOK_S)
        except Empty:
            message = Message(Kind.PULSE)
        for piece in torch.split(pack(message), self._out_bytes):
            self._take(self._group.send([piece], self._peer, TAG))
        return message.kind is not Kind.BYE and not self._lost.is_set()

    def _take(self, sent: Work) -> None:
        """Wait until the peer has taken a piece."""
        self._offered_s = time.monotonic()
        sent.wait(timedelta(seconds=self._heartbeats.limit_s))
        self._offered_s = inf

    def _explained(self, error: Exception) -> Exception:
        """Return that the peer is silent, if it has not taken a piece in time, instead of an error that comes of it.

        gloo closes the connection then, so the thread that receives may have an error first.
        """
        limit_s = self._heartbeats.limit_s
        if isinstance(error, DamagedMessage) or time.monotonic() - self._offered_s < limit_s - LOOK_S:
            return error
        return SilentPeer(f"nothing was heard of it for {limit_s:.3g} s")

    def _receive_next(self) -> bool:
        """Receive one message; return False for the last one. Nothing of it is held while the next one is awaited."""
        first = self._next_piece()
        head = Head.of(first)
        row = self._whole(first, head.n_bytes)
        if head.kind is not Kind.PULSE:
            expected = self._arriving[head.stage] if head.kind is Kind.TENSORS else ()
            self._ears.hear(self._peer, unpack(head, row, expected))
        self._ended = head.kind is Kind.BYE
        return not self._ended

    def _whole(self, first: torch.Tensor, n_bytes: int) -> torch.Tensor:
        """Return the message whose first piece has come, copied if it is much shorter than its buffer."""
        if n_bytes <= len(first):
            return first[:n_bytes] if 2 * n_bytes > len(first) else first[:n_bytes].clone()
        row = torch.empty(n_bytes, dtype=torch.uint8)
        row[: len(first)] = first
        for part in torch.split(row[len(first) :], self._in_bytes):
            part.copy_(self._next_piece()[: len(part)])
        return row

    def _next_piece(self) -> torch.Tensor:
        buffer, arrives = self._waiting.popleft()
        arrives.wait(FOREVER)
        self._heartbeats.hear()
        self._wait_for_more()
        return buffer

    def _wait_for_more(self) -> None:
        buffer = torch.empty(self._in_bytes, dtype=torch.uint8)
        self._waiting.append((buffer, self._group.recv([buffer], self._peer, TAG)))


def why_lost(error: Exception) -> str:
    """Return for people why a connection is lost."""
    if isinstance(error, DamagedMessage | SilentPeer):
        return str(error)
    said = shortage(error)
    return f"this process has too little: {said}" if said else "its connection broke"


def piece_bytes(payloads: Sequence[Payload]) -> int:
    """Return the length of the buffers that receive these payloads."""
    longest = max((most_bytes(payload.tensors) for payload in payloads), default=0)
    return min(LARGEST_BYTES, max(SMALLEST_BYTES, longest))


class Peers:
    """All connections of a rank, by peer, from `start` to `part`."""

    def __init__(self, connections: Mapping[int, Connection], name: str) -> None:
        """Prepare to watch the connections on a thread of that name."""
        self.connections = connections
        self._parted = threading.Event()
        self._watching = threading.Thread(target=self._watch, name=name, daemon=True)

    def start(self) -> None:
        """Start the connections."""
        for connection in self.connections.values():
            connection.start()
        self._watching.start()

    def send(self, peer: int, message: Message) -> None:
        """Send a message to one peer."""
        self.connections[peer].send(message)

    def tell(self, message: Message) -> None:
        """Send a message to all peers."""
        for connection in self.connections.values():
            connection.send(message)

    def leave(self, timeout_s: float) -> None:
        """Say goodbye, and wait for the peers that live to do so too."""
        self.tell(Message(Kind.BYE))
        _wait_for((connection for connection in self.connections.values() if not connection.given_up), timeout_s)

    def part(self, timeout_s: float) -> None:
        """Drop the connections, when the peers have left or are gone; their threads have a moment to notice."""
        _wait_for(self.connections.values(), timeout_s)
        self._parted.set()
        self._watching.join()
        self.connections = {}  # with the last of them, the sockets close

    def _watch(self) -> None:
        while not self._parted.wait(LOOK_S):
            for connection in self.connections.values():
                connection.check()


def _wait_for(connections: Iterable[Connection], timeout_s: float) -> None:
    """Wait until goodbyes have been said on all these connections, or they are lost."""
    end_s = time.monotonic() + timeout_s
    for connection in connections:
        connection.join(end_s)
