"""Coordinator: the rank of a plan in several processes that callers talk to; a `Runner` works through it."""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from queue import Empty, SimpleQueue

import torch

from graphs.common.errors import say_once
from graphs.common.promises import Promise
from planner.runtime.distributed.inference.rank import Rank
from planner.runtime.distributed.transport.connections import ProcessGroup, why_lost
from planner.runtime.distributed.transport.layout import INPUTS, RankLayout
from planner.runtime.distributed.transport.liveness import measured_ahead_s
from planner.runtime.distributed.transport.messages import Kind, Message
from planner.runtime.distributed.transport.rendezvous import PeerInfo
from planner.runtime.errors import RankError, StageError, failure_from_text, failure_to_text
from planner.runtime.inference.engine import CLOSED
from planner.runtime.inference.recorder import LoggedTransfer, in_order, transfer_times
from planner.runtime.inference.tasks import Tensors
from simulator.stages import Stage
from simulator.timeline import Span

LEAVE_S = 2.0  # for the others to say goodbye
ASK_S = 30.0  # for an answer that is no micro-batch


class Coordinator:
    """The rank that begins every micro-batch and has its outputs."""

    def __init__(
        self,
        rank: Rank,
        group: ProcessGroup,
        peer_infos: Sequence[PeerInfo],
        fate: Callable[[int], str] = lambda _: "",
        end: Callable[[], None] = lambda: None,
    ) -> None:
        """Connect with the other ranks; ``fate`` says what became of a rank that is gone, ``end`` ends all ranks."""
        self.state, self.caches = rank.state, rank.engine.caches  # of the devices of its process
        self._rank, self._fate, self._end = rank, fate, end
        self._entering = threading.Lock()
        self._broken = ""
        self._fallbacks: dict[str, str] = {}  # of other ranks, by the reason; the caller's thread says them
        self._closing = threading.Lock()
        self._closed = False
        others = rank.layout.others
        self._answers: Mapping[int, SimpleQueue[Message | None]] = {peer: SimpleQueue() for peer in others}
        rank.join(group, self, peer_infos)
        own = peer_infos[rank.number]
        self.pids = tuple(peer_infos[peer].pid for peer in others if peer_infos[peer].seen_by(own))
        self._near = frozenset(peer for peer in others if peer_infos[peer].beside(own))

    @property
    def begun(self) -> int:
        """The number of micro-batches that have entered, which is the number of the next one."""
        return self._rank.engine.begun

    def submit(self, inputs: Mapping[str, torch.Tensor], copy: int | None = None) -> "Promise[Tensors]":
        """Start one micro-batch; the result holds its output tensors by name. Raise RankError if a rank is gone.

        It runs through this copy of the network if a number is given.
        """
        self._say_fallbacks()
        with self._entering:  # each rank hears of the micro-batches in the order of their numbers
            self._check_whole()
            number = self.begun
            copy = self._rank.copy_of(number) if copy is None else copy
            done = self._rank.engine.submit(inputs, copy)
            self._rank.send_behind(number, INPUTS - copy, dict(inputs))
        done.add_done_callback(lambda done: self._tell(number, done))
        return done

    def record(self) -> None:
        """Keep the spans of the micro-batches that enter from here on, for `spans`."""
        ahead_s = dict.fromkeys(self._rank.layout.others, 0.0)
        for peer in ahead_s.keys() - self._near:  # anew: clocks drift
            ahead_s[peer] = measured_ahead_s(lambda peer=peer: float(self._ask(peer, Kind.PING)))  # type: ignore[misc]
        with self._entering:
            self._check_whole()
            origin_s = time.perf_counter()
            self._rank.record(origin_s)
            for peer, peer_ahead_s in ahead_s.items():
                self._rank.send(peer, Message(Kind.RECORD, text=repr(origin_s + peer_ahead_s)))

    def spans(self) -> tuple[Span, ...]:
        """Return the spans of all ranks and between them since `record`, by the clock of this rank, and stop recording.

        They are sorted by their starts. Transfers have no labels.
        """
        own, kept = self._rank.recorded()
        spans, logged = list(own), list(kept)
        for peer in self._rank.layout.others:
            theirs, ends = json.loads(self._ask(peer, Kind.SPANS))
            spans += [Span(*fields) for fields in theirs]
            logged += [LoggedTransfer(*fields) for fields in ends]
        return in_order((*spans, *transfers(logged, self._rank.stages, self._rank.layout)))

    def close(self) -> None:
        """Fail the micro-batches on their way, and end the other ranks. May be called again."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            try:
                self._rank.leave(LEAVE_S)
            finally:
                self._end()
                self._rank.part()
        self._say_fallbacks()

    def hear(self, peer: int, message: Message) -> None:
        """Handle a message from another rank."""
        match message.kind:
            case Kind.TENSORS:
                self._rank.arrive(message, time.perf_counter())
            case Kind.FAILED:
                self._rank.engine.fail(message.micro_batch, failure_from_text(message.text))
            case Kind.LOST:
                gone, why = json.loads(message.text)
                self._give_up(gone, why)
            case Kind.FALLBACK:
                self._fallbacks |= dict(json.loads(message.text))
            case Kind.SPANS | Kind.PING:
                self._answers[peer].put(message)

    def lose(self, peer: int, error: Exception) -> None:
        """Handle the loss of a connection."""
        self._give_up(peer, why_lost(error))

    def _give_up(self, peer: int, known: str) -> None:
        """Fail all micro-batches because a rank is gone; nothing more can begin."""
        if self._closed:
            return
        why = self._fate(peer) or known
        with self._entering:
            self._broken = self._broken or f"{self._rank.layout.title(peer)} is gone: {why}; start the runner again"
            lost = self._rank.engine.on_way()
        for number in lost:
            self._rank.engine.fail(number, RankError(self._broken))
        for answers in self._answers.values():
            answers.put(None)

    def _say_fallbacks(self) -> None:
        for reason, text in self._fallbacks.copy().items():
            say_once(reason, text)

    def _check_whole(self) -> None:
        if self._closed:
            raise RuntimeError(CLOSED)
        if self._broken:
            raise RankError(self._broken)

    def _tell(self, micro_batch: int, done: "Promise[Tensors]") -> None:
        """Tell the other ranks of a stage that failed, so that they drop the micro-batch."""
        failure = done.exception()
        if isinstance(failure, StageError):
            for peer in self._rank.layout.others:
                self._rank.send(peer, Message(Kind.FAILED, micro_batch, text=failure_to_text(failure)))

    def _ask(self, peer: int, kind: Kind) -> str:
        """Return the answer of another rank, which it gives at once, whatever its devices do."""
        self._check_whole()
        self._rank.send(peer, Message(kind))
        try:
            answer = self._answers[peer].get(timeout=ASK_S)
        except Empty:
            title = self._rank.layout.title(peer)
            raise RankError(f"{title} does not answer within {ASK_S:.0f} s; start the runner again") from None
        if answer is None:
            raise RankError(self._broken)
        return answer.text


def transfers(logged: Iterable[LoggedTransfer], stages: Sequence[Stage], layout: RankLayout) -> Iterator[Span]:
    """Yield a span without a label for every tensor that went from a device to a device of another rank."""
    ends = (((stage, rank, micro_batch), leaves, at_s) for stage, rank, micro_batch, leaves, at_s in logged)
    times = transfer_times(ends, lambda message: (layout.rank_of[stages[message[0]].device], message[1]))
    for (number, rank, micro_batch), start_s, end_s in times:
        src = stages[number].device
        for flow, dst in stages[number].sends:
            if layout.rank_of[dst] == rank:
                link = f"{layout.names[src]} → {layout.names[dst]}"
                yield Span("transfer", link, "", micro_batch, flow, start_s, end_s)
