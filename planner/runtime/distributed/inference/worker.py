"""Worker: a rank that does its part of every micro-batch until the coordinator says goodbye, or is gone."""

import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import astuple

from planner.runtime.distributed.inference.rank import Rank
from planner.runtime.distributed.transport.connections import ProcessGroup, why_lost
from planner.runtime.distributed.transport.layout import COORDINATOR, INPUTS
from planner.runtime.distributed.transport.messages import Damaged, Kind, Message
from planner.runtime.distributed.transport.rendezvous import PeerInfo
from planner.runtime.errors import RemoteError, StageError, failure_from_text, failure_to_text
from planner.runtime.inference.engine import Tensors

LEAVE_S = 1.0  # for peers to say goodbye


class Worker:
    """A rank other than the coordinator's, and what it does with the messages that it gets."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._beginning = threading.Lock()
        self._begun = 0  # micro-batches
        self._early: dict[int, list[tuple[Message, float]]] = {}  # by micro-batch: messages from before it began here
        self._over = threading.Event()
        self._dismissed = False

    def serve(self, group: ProcessGroup, peer_infos: Sequence[PeerInfo]) -> bool:
        """Work until the end; return whether the coordinator has said goodbye."""
        self._rank.join(group, self, peer_infos)
        self._over.wait()
        self._rank.leave(LEAVE_S)
        self._rank.part()
        return self._dismissed

    def hear(self, peer: int, message: Message) -> None:
        """Handle a message from another rank."""
        match message.kind:
            case Kind.TENSORS if message.stage == INPUTS:
                self._begin(message)
            case Kind.TENSORS:
                self._arrive(message)
            case Kind.FAILED:
                self._rank.engine.fail(message.micro_batch, failure_from_text(message.text))
            case Kind.RECORD:
                self._rank.record(float(message.text))
            case Kind.SPANS:
                spans, logged = self._rank.recorded()
                self._rank.send(peer, Message(Kind.SPANS, text=json.dumps([list(map(astuple, spans)), logged])))
            case Kind.PING:
                self._rank.send(peer, Message(Kind.PING, text=repr(time.perf_counter())))
            case Kind.BYE if peer == COORDINATOR:
                self._dismissed = True
                self._over.set()

    def lose(self, peer: int, error: Exception) -> None:
        """End without the coordinator; tell the coordinator if another rank is gone."""
        if peer == COORDINATOR:
            self._over.set()
        elif not self._over.is_set():
            self._rank.send(COORDINATOR, Message(Kind.LOST, text=json.dumps([peer, why_lost(error)])))

    def _begin(self, message: Message) -> None:
        """Begin a micro-batch, whose inputs the coordinator has sent, and store what came for it earlier."""
        with self._beginning:
            if message.micro_batch != self._begun:
                raise Damaged(f"micro-batch {message.micro_batch} begins, {self._begun} is the next")
            self._begun += 1
            done = self._rank.engine.submit(self._rank.named(INPUTS, message.tensors))
            early = self._early.pop(message.micro_batch, ())
        number = message.micro_batch
        done.add_done_callback(lambda done: self._tell(number, done))
        for earlier, at_s in early:
            self._rank.arrive(earlier, at_s)

    def _arrive(self, message: Message) -> None:
        now_s = time.perf_counter()
        with self._beginning:
            if message.micro_batch >= self._begun:
                self._early.setdefault(message.micro_batch, []).append((message, now_s))
                return
        self._rank.arrive(message, now_s)

    def _tell(self, micro_batch: int, done: "Future[Tensors]") -> None:
        """Tell the coordinator of a stage that failed here; the coordinator tells the others."""
        failure = done.exception()
        if isinstance(failure, StageError) and not isinstance(failure.__cause__, RemoteError):
            self._rank.send(COORDINATOR, Message(Kind.FAILED, micro_batch, text=failure_to_text(failure)))
