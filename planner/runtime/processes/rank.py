"""Rank: the devices of one process, and its wires to the other ranks."""

import threading
import time
from collections.abc import Mapping

import torch

from costmodels.calibrate.pinned import place_of
from graphs.importers.program import Program
from planner.plans import Plan
from planner.runtime.compile import compile_here
from planner.runtime.engine import Engine, Tensors
from planner.runtime.processes.layout import FRONT, Layout
from planner.runtime.processes.messages import Kind, Message
from planner.runtime.processes.routes import INPUTS, Routes, find_routes
from planner.runtime.processes.wires import Ears, Group, Wire
from simulator.stages import split_stages

PART_S = 1.0  # for threads to notice that a connection is gone
WATCH_S = 1.0  # between looks at the peers


class Rank:
    """The engine of a rank's own devices, joined with those of others."""

    def __init__(self, plan: Plan, program: Program, layout: Layout, number: int) -> None:
        """Compile the stages of this rank and start its devices.

        Raises:
            InputError: if a device is not on this host, or a weight of it has no values.
        """
        self.number = number
        self.layout = layout
        devices, mine = plan.cluster.devices, layout.devices[number]
        places = tuple(place_of(d) if i in mine else torch.device("cpu") for i, d in enumerate(devices))
        stages = split_stages(plan.table, plan.placement)
        compiled, self.state = compile_here(program, stages, places, mine)
        self.routes: Routes = find_routes(plan.graph, stages, layout)
        written = {name for op in plan.graph.ops for name in op.outputs}
        outputs = tuple(name for name in plan.graph.outputs if name in written) if number == FRONT else ()
        self.engine = Engine(devices, compiled, outputs, self.routes.awaited(number), self._hand_on)
        self._wires: Mapping[int, Wire] = {}
        self._parted = threading.Event()

    def join(self, group: Group, ears: Ears) -> None:
        """Take up the connections: to the front, and to those with whom tensors are exchanged."""
        met = {FRONT} if self.number != FRONT else set(self.layout.others)
        for bundle in self.routes.bundles:
            if self.number in (bundle.src, bundle.dst):
                met |= {bundle.src, bundle.dst}
        self._wires = {peer: Wire(group, self.number, peer, self.routes, ears) for peer in sorted(met - {self.number})}
        for wire in self._wires.values():
            wire.start()
        self._watching = threading.Thread(target=self._watch, name=f"watch-{self.number}", daemon=True)
        self._watching.start()

    def send(self, peer: int, message: Message) -> None:
        """Send a word."""
        self._wires[peer].send(message)

    def send_inputs(self, micro_batch: int, inputs: Tensors) -> None:
        """Begin a micro-batch elsewhere; of the front."""
        self._send_behind(INPUTS, micro_batch, inputs)

    def arrive(self, micro_batch: int, stage: int, tensors: tuple[torch.Tensor, ...]) -> None:
        """What a stage elsewhere wrote has come."""
        self.engine.arrive(micro_batch, stage, self.named(stage, tensors))

    def named(self, stage: int, tensors: tuple[torch.Tensor, ...]) -> Tensors:
        """The tensors of a bundle that came, by name."""
        bundle = self.routes.into[stage, self.number]
        return {tensor.name: value for tensor, value in zip(bundle.tensors, tensors, strict=True)}

    def leave(self, timeout_s: float) -> None:
        """Stop the devices, say goodbye, and wait a little for the peers to do so too."""
        self.engine.close()
        for wire in self._wires.values():
            wire.send(Message(Kind.BYE))
        self._wait(timeout_s)

    def part(self) -> None:
        """Let go of the connections, when the peers have left or are gone."""
        self._wait(PART_S)
        self._parted.set()
        self._watching.join()
        self._wires = {}  # with the last of them, the sockets close

    def _watch(self) -> None:
        """See that every peer gives signs of life."""
        while not self._parted.wait(WATCH_S):
            for wire in self._wires.values():
                wire.check()

    def _wait(self, timeout_s: float) -> None:
        end_s = time.monotonic() + timeout_s
        for wire in self._wires.values():
            wire.join(end_s)

    def _hand_on(self, micro_batch: int, stage: int, tensors: Tensors) -> None:
        """Behind a stage, on its device's thread; what a GPU wrote leaves through the host's memory."""
        if stage in self.routes.behind:
            self._send_behind(stage, micro_batch, tensors)

    def _send_behind(self, stage: int, micro_batch: int, tensors: Tensors) -> None:
        for bundle in self.routes.behind.get(stage, ()):
            leaving = tuple(tensors[tensor.name].cpu() for tensor in bundle.tensors)
            self.send(bundle.dst, Message(Kind.TENSORS, micro_batch, stage, leaving))
