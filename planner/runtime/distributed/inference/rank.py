"""Rank: the devices of one process and its connections to the other ranks; a worker does what the coordinator says."""

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import astuple

import numpy as np
import torch

from graphs.common.errors import fallbacks
from graphs.common.promises import Promise
from graphs.program.generation import GenerationProgram
from graphs.program.program import Program
from planner.plans.plan import Plan
from planner.runtime.distributed.transport.checksums import DamagedMessage
from planner.runtime.distributed.transport.connections import (
    Connection,
    Listener,
    Peers,
    ProcessGroup,
    piece_bytes,
    why_lost,
)
from planner.runtime.distributed.transport.layout import COORDINATOR, INPUTS, RankLayout, Routes, find_routes
from planner.runtime.distributed.transport.liveness import FAR_SILENT_S, Heartbeats
from planner.runtime.distributed.transport.messages import Kind, Message
from planner.runtime.distributed.transport.rendezvous import PeerInfo
from planner.runtime.errors import RemoteError, StageError, failure_from_text, failure_to_text
from planner.runtime.inference.engine import Engine
from planner.runtime.inference.recorder import LoggedTransfer
from planner.runtime.inference.tasks import Tensors
from planner.runtime.stages.compile import compile_stages
from planner.runtime.stages.generation_stages import GenerationStages
from simulator.timeline import Span

PART_S = 1.0  # for threads to notice that a connection is gone


class Rank:
    """The engine of a rank's own devices, joined with the engines of other ranks."""

    def __init__(
        self,
        plan: Plan,
        program: Program | GenerationProgram,
        layout: RankLayout,
        number: int,
        silence_s: float = FAR_SILENT_S,
    ) -> None:
        """Compile the stages of this rank and start its devices; the program has the weights of these.

        A rank of another host is given up after ``silence_s``. Raise InputError if a device is not on this host, or a
        weight of it has no values.
        """
        self.number = number
        self.layout = layout
        devices, mine, caches = plan.cluster.devices, layout.devices[number], None
        if isinstance(program, GenerationProgram):
            passes = GenerationStages(plan, program)
            returned: tuple[str, ...] = (passes.logits,)
            self.stages, caches = passes.stages, passes.caches(mine)
            compiled, self.state = passes.compiled(mine)
            self.routes: Routes = find_routes([each.graph for each in passes.programs], passes.stages, layout)
        else:
            self.stages = plan.stages
            compiled, self.state = compile_stages(program, plan.stages, devices, mine)
            self.routes = find_routes(plan.graph, plan.stages, layout)
            returned = tuple(name for name in plan.graph.outputs if name in plan.graph.writer)
        outputs = returned if number == COORDINATOR else ()
        self.engine = Engine(devices, compiled, outputs, self.routes.awaited(number), self.send_behind)
        self.engine.caches = caches
        self._links = plan.cluster.link
        self._silence_s = silence_s
        self._peers = Peers({}, "")  # until all have met

    def join(self, group: ProcessGroup, ears: Listener, peer_infos: Sequence[PeerInfo]) -> None:
        """Connect with the coordinator, whose seed counts, and with the ranks that tensors are exchanged with."""
        self.engine.seed(peer_infos[COORDINATOR].seed)
        met = {COORDINATOR} if self.number != COORDINATOR else set(self.layout.others)
        for payload in self.routes.payloads:
            if self.number in (payload.src, payload.dst):
                met |= {payload.src, payload.dst}
        connections = {
            peer: Connection(group, self.number, peer, self.routes, ears, self._heartbeats(peer, peer_infos))
            for peer in sorted(met - {self.number})
        }
        self._peers = Peers(connections, f"watch-{self.number}")
        self._peers.start()

    def send(self, peer: int, message: Message) -> None:
        """Send a message to another rank."""
        self._peers.send(peer, message)

    def arrive(self, message: Message, at_s: float) -> None:
        """Store the tensors of a stage elsewhere, which came at a time of ``time.perf_counter``."""
        self.engine.note(LoggedTransfer(message.stage, self.number, message.micro_batch, False, at_s))
        self.engine.arrive(message.micro_batch, message.stage, self.named(message.stage, message.tensors))

    def named(self, stage: int, tensors: tuple[torch.Tensor, ...]) -> Tensors:
        """Return the tensors of a payload that came, by name."""
        payload = self.routes.into[stage, self.number]
        return {tensor.name: value for tensor, value in zip(payload.tensors, tensors, strict=True)}

    def copy_of(self, micro_batch: int) -> int:
        """Return the copy of the network that a micro-batch goes through, if its caller names none."""
        return micro_batch % self.routes.n_copies

    def record(self, origin_s: float) -> None:
        """Record stages and payloads of the micro-batches that begin from here on."""
        self.engine.record(origin_s)

    def recorded(self) -> tuple[tuple[Span, ...], tuple[LoggedTransfer, ...]]:
        """Return what was recorded, and stop recording."""
        return self.engine.spans(), self.engine.noted()

    def leave(self, timeout_s: float) -> None:
        """Stop the devices, say goodbye, and wait a little for the peers to do so too."""
        self.engine.close()
        self._peers.leave(timeout_s)

    def part(self) -> None:
        """Drop the connections, when the peers have left or are gone."""
        self._peers.part(PART_S)

    def _heartbeats(self, peer: int, peer_infos: Sequence[PeerInfo]) -> Heartbeats:
        """Return the time limits for a peer; only the coordinator gives up a stopped process, and reports it.

        Over a slow link a heartbeat may wait until a long piece of a message is sent.
        """
        ends = [(src, dst) for src in self.layout.devices[peer] for dst in self.layout.devices[self.number]]
        n_bytes = np.array(float(piece_bytes(self.routes.between(peer, self.number))))
        pieces_s = [float(self._links[end].seconds(n_bytes)) for end in ends if end in self._links]
        far_s = self._silence_s + max(pieces_s, default=0.0)
        return peer_infos[self.number].heartbeats_of(peer_infos[peer], far_s, waits=self.number != COORDINATOR)

    def send_behind(self, micro_batch: int, stage: int, tensors: Tensors) -> None:
        """Send what a stage wrote, on its device's thread, or the inputs, through the host's memory."""
        for payload in self.routes.behind.get(stage, ()):
            if stage > INPUTS:
                self.engine.note(LoggedTransfer(stage, payload.dst, micro_batch, True, time.perf_counter()))
            leaving = tuple(tensors[tensor.name].cpu() for tensor in payload.tensors)
            self.send(payload.dst, Message(Kind.TENSORS, micro_batch, stage, leaving))


LEAVE_S = 1.0  # for peers to say goodbye


class Worker:
    """A rank other than the coordinator's, and what it does with the messages that it gets."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._beginning = threading.Lock()
        self._begun = 0  # micro-batches
        self._told = 0  # fallbacks that the coordinator knows
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
            case Kind.TENSORS if message.stage <= INPUTS:
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
                raise DamagedMessage(f"micro-batch {message.micro_batch} begins, {self._begun} is the next")
            self._begun += 1
            inputs = self._rank.named(message.stage, message.tensors)
            done = self._rank.engine.submit(inputs, INPUTS - message.stage)
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

    def _tell(self, micro_batch: int, done: "Promise[Tensors]") -> None:
        """Tell the coordinator of a stage that failed here, of which it tells the others, and of what gave way."""
        if len(said := fallbacks()) > self._told:
            self._told = len(said)
            self._rank.send(COORDINATOR, Message(Kind.FALLBACK, text=json.dumps(said)))
        failure = done.exception()
        if isinstance(failure, StageError) and not isinstance(failure.__cause__, RemoteError):
            self._rank.send(COORDINATOR, Message(Kind.FAILED, micro_batch, text=failure_to_text(failure)))
