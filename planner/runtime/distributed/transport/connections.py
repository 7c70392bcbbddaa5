"""Wires: the connection of a rank to a peer, with a thread that sends and one that receives.

gloo hands a message over quickly only where the receiver waits for it with a buffer that is large enough. So each end
always has a few buffers waiting, of a length that both know from the plan; a longer message comes in several pieces.
How many messages are in the queues is bounded by the micro-batches in flight.

Who has nothing to say gives a heartbeat now and then, so that a host behind a cut cable is noticed (see `heartbeats`).
A process that ends closes its connections.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Protocol

import torch
from torch.distributed import Work

from costmodels.host.affinity import use_threads
from graphs.ir import Tensor
from planner.runtime.distributed.transport.liveness import LOOK_S, Heartbeats, SilenceTimeout, Silent
from planner.runtime.distributed.transport.messages import (
    Damaged,
    Kind,
    Message,
    address,
    length,
    most_bytes,
    pack,
    unpack,
)
from planner.runtime.distributed.transport.routes import Payload, Routes

FOREVER = timedelta(days=365)  # where gloo waits no longer, all connections break, not only the one
SMALLEST_BYTES, LARGEST_BYTES = 2**12, 2**22  # of a piece
ALL_BYTES = 2**24  # of the buffers that wait for one peer, where there are more than two
MOST_WAITING = 8
TAG = 0


class ProcessGroup(Protocol):
    """All ranks, joined: what torch.distributed calls a process group, of which its types do not tell."""

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int, /) -> Work:
        """Begin to send."""
        ...

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int, /) -> Work:
        """Begin to receive."""
        ...


class Ears(Protocol):
    """Who hears what a connection brings, on the connection's thread."""

    def hear(self, peer: int, message: Message) -> None:
        """A message has come."""
        ...

    def lose(self, peer: int, error: Exception) -> None:
        """The connection broke, or what came over it makes no sense; nothing more comes."""
        ...


class Connection:
    """The connection of a rank to one peer."""

    def __init__(
        self, group: ProcessGroup, rank: int, peer: int, routes: Routes, ears: Ears, silence_timeout: SilenceTimeout
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
        self._heartbeats = Heartbeats(silence_timeout)
        self._ended = False  # the peer has said goodbye
        self.given_up = False  # nothing will come, though the connection is there
        for _ in range(max(2, min(MOST_WAITING, ALL_BYTES // self._in_bytes))):
            self._wait_for_more()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name=f"{what}-{rank}-{peer}", daemon=True)
            for what, work in (("send", self._send), ("receive", self._receive))
        ]

    def start(self) -> None:
        """Begin to send and to listen."""
        for thread in self._threads:
            thread.start()

    def send(self, message: Message) -> None:
        """Put a message behind those that wait to be sent."""
        self._queue.put(message)

    def check(self) -> None:
        """Give the peer up if nothing was heard of it for too long; to be called every `LOOK_S`."""
        if not self._ended and (why := self._heartbeats.look()):
            self.given_up = True
            self._lose(Silent(why))

    def join(self, end_s: float) -> None:
        """Wait until a goodbye has been sent and one has come, or the connection is lost.

        Args:
            end_s: until when, by ``time.monotonic``.
        """
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))

    def _guarded(self, work: Callable[[], None]) -> None:
        use_threads(1)  # copies are made on this thread alone
        try:
            work()
        except Exception as error:  # torch raises RuntimeError for a peer that ended; a damaged message is as bad
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        if not self._lost.is_set():
            self._lost.set()
            self.send(Message(Kind.BYE))  # the sender need not wait for more
            self._ears.lose(self._peer, error)

    def _send(self) -> None:
        while not self._lost.is_set() and self._tell():
            pass

    def _receive(self) -> None:
        while self._hear():
            pass

    def _tell(self) -> bool:
        """Send one message; False for the last. Nothing of it is held while the next is waited for."""
        try:
            message = self._queue.get(timeout=LOOK_S)
        except Empty:
            message = Message(Kind.PULSE)
        for piece in torch.split(pack(message), self._out_bytes):
            self._group.send([piece], self._peer, TAG).wait(FOREVER)
        return message.kind is not Kind.BYE

    def _hear(self) -> bool:
        """Receive one message, likewise."""
        row = self._next_row()
        kind, _, stage = address(row)
        if kind is not Kind.PULSE:
            self._ears.hear(self._peer, unpack(row, self._expected(kind, stage)))
        self._ended = kind is Kind.BYE
        return not self._ended

    def _expected(self, kind: Kind, stage: int) -> Sequence[Tensor]:
        return self._arriving[stage] if kind is Kind.TENSORS else ()

    def _next_row(self) -> torch.Tensor:
        """A whole message. What is much shorter than its buffer does not keep that."""
        first = self._next_piece()
        n_bytes = length(first)
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
    """What a person reads of a connection that is lost."""
    return str(error) if isinstance(error, Damaged | Silent) else "its connection broke"


def piece_bytes(payloads: Sequence[Payload]) -> int:
    """Length of the buffers that wait at the end of a direction in which these travel."""
    longest = max((most_bytes(payload.tensors) for payload in payloads), default=0)
    return min(LARGEST_BYTES, max(SMALLEST_BYTES, longest))
