"""One micro-batch through the operators of one device, forward and back, with every storage that lives on the way.

::

    forward   x ─► conv ─► relu ─► pool ─► y    a tensor lives to its last reader, or until the backward pass of an
                    │       ╰──────╮╰─╮         operator that saved it
    backward       ◄┴─ gradients ◄─┴──┴─ of y   a gradient lives until the operator that wrote the tensor has used it

Backward passes run in the opposite order, as PyTorch's engine does: an operator's gradients are all there before what
it saved is dropped; a second gradient of a tensor is added to the first one in place if nobody else shows that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from costmodels.memory.footprints import STATE, Footprints
from costmodels.memory.ledger import Ledger, Storage
from graphs.footprint import Gradient
from graphs.ir import Graph, Op


@dataclass(frozen=True)
class Passes:
    """Bytes of one micro-batch on one device, besides parameters, buffers and what an optimizer keeps.

    Attributes:
        forward_bytes: the most during the forward pass.
        kept_bytes: what stays until the backward pass: what was saved, inputs and results.
        backward_bytes: the most during the backward pass, with what was kept, and with the gradients of parameters
            if it makes them.
        left_bytes: what is there after the backward pass: inputs, results, gradients.
        passing_bytes: the most at any moment of what is not kept, nor a gradient of a parameter.
        saved_bytes: what is kept, by the operator that does so first: ``sum(saved_bytes.values()) == kept_bytes``.
    """

    forward_bytes: int
    kept_bytes: int
    backward_bytes: int
    left_bytes: int
    passing_bytes: int
    saved_bytes: Mapping[str, int]


def inference_bytes(graph: Graph, ops: Sequence[Op] | None = None, held: bool = True) -> int:
    """The most that one micro-batch takes on its way forward; tensors are dropped behind their last reader.

    Args:
        graph: the network.
        ops: those of one device, in their order; all of them if left out.
        held: whether what comes from outside is held to the end, by the caller or by a channel; what goes there is.
    """
    there = _DeviceStorages(Footprints(graph), graph.ops if ops is None else ops)
    there.forward(training=False, held=held)
    return there.ledger.peak_bytes


def training_passes(graph: Graph, ops: Sequence[Op] | None = None, accumulating: bool = False) -> Passes:
    """One micro-batch forward and back.

    Args:
        graph: the network.
        ops: those of one device, in their order; all of them if left out.
        accumulating: whether the gradients of parameters are there already, from a micro-batch before.
    """
    there = _DeviceStorages(Footprints(graph), graph.ops if ops is None else ops)
    there.forward(training=True)
    ledger = there.ledger
    forward_bytes, kept_bytes, passing_bytes = ledger.peak_bytes, ledger.now_bytes, ledger.passing_bytes
    ledger.restart()
    there.backward(accumulating)
    passing_bytes = max(passing_bytes, ledger.passing_bytes)
    return Passes(forward_bytes, kept_bytes, ledger.peak_bytes, ledger.now_bytes, passing_bytes, there.saved_bytes)


class _DeviceStorages:
    """The storages of one micro-batch on one device.

    What comes from outside and what goes there is held to the end: by the caller, or by a channel.
    """

    def __init__(self, footprints: Footprints, ops: Sequence[Op]) -> None:
        self.footprints = footprints
        self.graph = footprints.graph
        self.trained = frozenset(footprints.parameters)
        self.ops = tuple(ops)
        self.ledger = Ledger()
        self.storage: dict[str, Storage] = {}
        self.kept: dict[str, list[Storage]] = {}
        self.saved_bytes: dict[str, int] = {}
        self.gradient: dict[str, Storage] = {}
        self.viewed: set[str] = set()  # tensors whose gradient is a view, to which nothing is added in place

    @cached_property
    def arrivals(self) -> tuple[str, ...]:
        """What is read here and comes from outside; for a whole network, also inputs that nobody reads."""
        written = {name for op in self.ops for name in op.outputs}
        read = [name for op in self.ops for name in op.inputs]
        inputs = self.graph.inputs if len(self.ops) == len(self.graph.ops) else ()
        outside = (name for name in dict.fromkeys((*inputs, *read)) if name not in written)
        return tuple(name for name in outside if self.graph.tensor[name].role not in STATE)

    @cached_property
    def results(self) -> Mapping[str, Op]:
        """What is written here and read by the caller or another device, with its writer, in their order."""
        here = {op.name for op in self.ops}
        read = {name for op in self.graph.ops if op.name not in here for name in op.inputs} | set(self.graph.outputs)
        return {name: op for op in self.ops for name in op.outputs if name in read}

    def forward(self, training: bool, held: bool = True) -> None:
        """Run all operators; what remains is what is kept."""
        left = self._readers(held)
        first = {name: op.name for op in reversed(self.ops) for name in op.inputs}
        for name in self.arrivals:
            self.storage[name] = self.ledger.new(self.graph.tensor[name].n_bytes)
            if training:
                self._keep(first.get(name, ""), self.storage[name])
        for op in self.ops:
            run = self.footprints.run(op, training)
            for name, shown in zip(op.outputs, run.writes, strict=True):
                if isinstance(shown, int):
                    self.storage[name] = self.ledger.new(shown)
                elif shown in self.storage:  # else it shows a parameter or buffer
                    self.storage[name] = self.ledger.hold(self.storage[shown])
            if training:
                self._save(op)
            self.ledger.burst(run.extra_bytes)
            for name in dict.fromkeys((*op.inputs, *op.outputs)):
                left[name] -= name in op.inputs
                if not left[name] and name in self.storage:
                    self.ledger.drop(self.storage.pop(name))

    def backward(self, accumulating: bool) -> None:
        """Run all backward passes; gradients of parameters remain, unless they are added to those that are there."""
        waiting = self._contributions()
        for name in self.results:
            if name in self.footprints.behind:
                self.gradient[name] = self.ledger.new(self.graph.tensor[name].n_bytes)
        for op in reversed(self.ops):
            arrived = {name: self.gradient.pop(name) for name in op.outputs if name in self.gradient}
            made = self._differentiate(op, arrived) if arrived else []
            for storage in arrived.values():
                self.ledger.drop(storage)
            for storage in self.kept.pop(op.name, ()):
                self.ledger.release(storage)
            self.viewed.difference_update(op.outputs)
            for gradient, storage in made:
                self._accumulate(gradient, storage)
                waiting[gradient.tensor] -= 1
                if gradient.tensor in self.trained and not waiting[gradient.tensor]:
                    if accumulating:
                        self.ledger.drop(self.gradient.pop(gradient.tensor))
                    else:
                        self.ledger.keep(self.gradient[gradient.tensor])

    def _readers(self, held: bool) -> dict[str, int]:
        """How many operators here will read each tensor, one more if somebody else holds it."""
        left = dict.fromkeys((name for op in self.ops for name in op.outputs), 0)
        left |= dict.fromkeys(self.arrivals, int(held)) | dict.fromkeys(self.results, 1)
        left |= {name: 1 for name in self.graph.outputs if name in left}
        for op in self.ops:
            for name in dict.fromkeys(op.inputs):
                left[name] = left.get(name, 0) + 1
        return left

    def _keep(self, op: str, storage: Storage) -> None:
        """Keep it to the end of the backward pass or beyond; whoever does so first is charged."""
        if not storage.keepers:
            self.saved_bytes[op] = self.saved_bytes.get(op, 0) + storage.n_bytes
        self.ledger.keep(storage)

    def _save(self, op: Op) -> None:
        backward = self.footprints.backward(op)
        kept = [self.ledger.hold(self.storage[name]) for name in backward.saved if name in self.storage]
        if backward.saved_bytes:
            kept.append(self.ledger.new(backward.saved_bytes))
        for storage in kept:
            self._keep(op.name, storage)
        self.kept[op.name] = kept
        for name in op.outputs:
            if name in self.results and name in self.storage:
                self._keep(op.name, self.storage[name])

    def _contributions(self) -> dict[str, int]:
        """How many gradients each tensor will get here."""
        count: dict[str, int] = {}
        for op in self.ops:
            for gradient in self.footprints.backward(op).gradients:
                count[gradient.tensor] = count.get(gradient.tensor, 0) + 1
        return count

    def _differentiate(self, op: Op, arrived: Mapping[str, Storage]) -> list[tuple[Gradient, Storage]]:
        """The gradients of the inputs, before what was saved is dropped.

        A parameter keeps a gradient of its own; but of one that is a view it keeps all that is viewed.
        """
        backward = self.footprints.backward(op)
        known = dict(arrived)
        made: list[tuple[Gradient, Storage]] = []
        for name, shown, viewed in backward.gradients:
            viewed = viewed or shown in self.viewed
            own = name in self.trained and not viewed
            if isinstance(shown, str) and shown in known and not own:
                storage = self.ledger.hold(known[shown])
            else:
                storage = self.ledger.new(shown if isinstance(shown, int) else self.graph.tensor[name].n_bytes)
            known[name] = storage
            made.append((Gradient(name, shown, viewed), storage))
        self.ledger.burst(backward.extra_bytes)
        return made

    def _accumulate(self, gradient: Gradient, storage: Storage) -> None:
        """Add a gradient to those of the same tensor that came before: in place if nobody else sees that."""
        name = gradient.tensor
        known = self.gradient.get(name)
        if known is None:
            self.gradient[name] = storage
            if gradient.viewed:
                self.viewed.add(name)
            return
        if known.holders > 1 or name in self.viewed:
            self.gradient[name] = self.ledger.new(self.graph.tensor[name].n_bytes)
            self.ledger.drop(known)
            self.viewed.discard(name)
        self.ledger.drop(storage)
