"""Failure detector: the ranks of a training see that all live and that none has failed, over connections of their own.

torch waits for a stopped or unreachable rank until its own time limit. So the first rank and each of the others
exchange heartbeats (see `liveness`); the first rank reports to all others each failure that it notices or receives. ::

    rank 0 ◄── lives ──► rank 1       rank 2 is silent: 0 tells 1, and both end torch's waiting
       ▲
       └────── lives ──► rank 2
"""

import atexit
import json
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from graphs.common.errors import InputError, first_line
from planner.runtime.closing import Closing
from planner.runtime.distributed.transport.connections import Connection, Peers, ProcessGroup, why_lost
from planner.runtime.distributed.transport.layout import COORDINATOR, RankLayout, Routes
from planner.runtime.distributed.transport.liveness import FAR_SILENT_S
from planner.runtime.distributed.transport.messages import Kind, Message
from planner.runtime.distributed.transport.rendezvous import PeerInfo
from planner.runtime.errors import RankError, RemoteError, StageError

LEAVE_S = 2.0  # for the others to say goodbye
GRACE_S = 0.5  # for torch to notice by itself
TOLD_S = 1.0  # for the reason to come if torch has noticed first
AGAIN = "start all ranks again"


class FailureDetector(Closing):
    """Watches the other ranks until it is closed, and tells them if its ``with`` block ends by an error."""

    def __init__(
        self,
        group: ProcessGroup,
        layout: RankLayout,
        rank: int,
        peer_infos: Sequence[PeerInfo],
        break_off: Callable[[], None],
        silence_s: float = FAR_SILENT_S,
    ) -> None:
        """Begin to watch the other ranks of a group.

        ``break_off`` makes everything fail that waits for other ranks; it is called `GRACE_S` after one is known to be
        gone. A rank of another host is given up after ``silence_s`` without a heartbeat.
        """
        self.layout, self._rank, self._break_off = layout, rank, break_off
        self._lock = threading.Lock()
        self._known = threading.Event()
        self._why = self._trace = ""
        self._closed = False
        self._breaking: threading.Timer | None = None
        own, peers = peer_infos[rank], layout.others if rank == COORDINATOR else (COORDINATOR,)
        connections = {
            peer: Connection(group, rank, peer, Routes(()), self, own.heartbeats_of(peer_infos[peer], silence_s))
            for peer in peers
        }
        self._peers = Peers(connections, f"heartbeats-{rank}")
        self._peers.start()
        atexit.register(self.close)  # a thread that hears something while Python ends would abort the process

    @contextmanager
    def heeding(self) -> Iterator[None]:
        """Watch a block that waits for other ranks: it fails if one of them has failed; its own failure is reported.

        Raise RankError if a rank fails, before or meanwhile; the cause is its error, if known, or torch's error here.
        """
        if self._known.is_set():
            self._fail(None)
        try:
            yield
        except Exception as error:
            if _of_torch(error):
                self._fail(error)
            self.tell(error)
            raise

    def tell(self, error: BaseException) -> None:
        """Tell the others that this rank has failed, which ends what they wait for."""
        trace = "".join(traceback.format_exception(error.__cause__ or error))
        kind = "" if isinstance(error, StageError | InputError) else f"{type(error).__name__}: "
        why = f"{self.layout.title(self._rank)} failed: {kind}{first_line(error)}; {AGAIN}"
        self._keep(why, trace, tells=True)

    def hear(self, peer: int, message: Message) -> None:  # noqa: ARG002  # from any rank
        """Handle a message from another rank."""
        if message.kind is Kind.LOST:
            self._learn(*json.loads(message.text))

    def lose(self, peer: int, error: Exception) -> None:
        """Handle the loss of a connection."""
        self._learn(f"{self.layout.title(peer)} is gone: {why_lost(error)}; {AGAIN}", "")

    def close(self) -> None:
        """Say goodbye, and wait a little for the others to do so too. May be called again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        self._peers.leave(LEAVE_S)
        self._peers.part(0.0)
        if self._breaking is not None:
            self._breaking.cancel()
            self._breaking.join()

    def __exit__(self, *raised: Any) -> None:
        _, error, _ = raised
        try:
            if error is not None and _of_torch(error) and self._known.wait(TOLD_S):
                self._fail(error)
            if isinstance(error, Exception | KeyboardInterrupt) and not isinstance(error, RankError):
                self.tell(error)
        finally:
            self.close()

    def _learn(self, why: str, trace: str) -> None:
        """Keep that a rank is gone or has failed; the first rank tells the others."""
        if self._keep(why, trace, tells=self._rank == COORDINATOR):
            with self._lock:
                if not self._closed:
                    self._breaking = threading.Timer(GRACE_S, self._break_off)
                    self._breaking.daemon = True
                    self._breaking.start()

    def _keep(self, why: str, trace: str, tells: bool) -> bool:
        """Keep a reason, and tell the others; return whether it is the first one, and the detector is open."""
        with self._lock:
            if self._closed or self._known.is_set():
                return False
            self._why, self._trace = why, trace
            self._known.set()
        if tells:
            self._peers.tell(Message(Kind.LOST, text=json.dumps([why, trace])))
        return True

    def _fail(self, error: BaseException | None) -> NoReturn:
        """Raise the reason that is known, or else an error of torch's."""
        if not self._known.wait(TOLD_S) and error is not None:
            raise RankError(f"a step was broken off: {first_line(error)}; see what the other ranks say") from error
        raise RankError(self._why) from RemoteError("\n" + self._trace) if self._trace else error


def _of_torch(error: BaseException) -> bool:
    """Return whether an error may be torch's, because a rank is gone."""
    return isinstance(error, RuntimeError) and not isinstance(error, StageError | RankError)
