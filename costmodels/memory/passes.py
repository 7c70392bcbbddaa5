"""The storages of one micro-batch in the forward and backward passes of one device's operators, and their bytes.

::

    forward   x ─► conv ─► relu ─► pool ─► y    a tensor lives to its last reader, or until the backward pass of an
                    │       ╰──────╮╰─╮         operator that saved it
    backward       ◄┴─ gradients ◄─┴──┴─ of y   a gradient lives until the operator that wrote the tensor has used it

Backward passes run in the opposite order, as in PyTorch's engine: all gradients of an operator exist before its saved
tensors are released; a second gradient of a tensor is added to the first one in place if its storage is not shared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from costmodels.memory.footprints import Footprints
from graphs.caches import in_place
from graphs.footprint import Gradient
from graphs.ir import STATE, Graph, Op, Role


@dataclass(eq=False, slots=True)
class Storage:
    """Memory that is freed by its last holder."""

    n_bytes: int  # size in bytes
    holders: int = 1  # number of holders
    keepers: int = 0  # number of holders that keep it until a later pass


@dataclass(slots=True)
class Ledger:
    """Allocated bytes and their peaks."""

    now_bytes: int = 0  # bytes of all storages with holders
    kept_bytes: int = 0  # bytes of all storages with keepers; the others are temporary
    peak_bytes: int = 0  # peak of ``now_bytes`` since `restart`
    passing_bytes: int = 0  # peak of the temporary bytes since `restart`

    def new(self, n_bytes: int) -> Storage:
        """Allocate a storage for one holder."""
        self.now_bytes += n_bytes
        self._note()
        return Storage(n_bytes)

    def hold(self, storage: Storage) -> Storage:
        """Add a holder."""
        storage.holders += 1
        return storage

    def drop(self, storage: Storage) -> None:
        """Remove a holder; the last one frees the storage."""
        storage.holders -= 1
        if not storage.holders:
            self.now_bytes -= storage.n_bytes

    def keep(self, storage: Storage) -> Storage:
        """Make one of the holders a keeper."""
        storage.keepers += 1
        if storage.keepers == 1:
            self.kept_bytes += storage.n_bytes
        return storage

    def release(self, storage: Storage) -> None:
        """Remove a keeper, which is no holder afterwards either."""
        storage.keepers -= 1
        if not storage.keepers:
            self.kept_bytes -= storage.n_bytes
        self.drop(storage)

    def burst(self, n_bytes: int) -> None:
        """Allocate and free bytes at once."""
        self._note(n_bytes)

    def restart(self) -> None:
        """Set the peaks to the bytes that are alive now."""
        self.peak_bytes = self.passing_bytes = 0
        self._note()

    def _note(self, more_bytes: int = 0) -> None:
        self.peak_bytes = max(self.peak_bytes, self.now_bytes + more_bytes)
        self.passing_bytes = max(self.passing_bytes, self.now_bytes - self.kept_bytes + more_bytes)


@dataclass(frozen=True)
class Passes:
    """Bytes of one micro-batch on one device, besides parameters, buffers and states of an optimizer."""

    forward_bytes: int  # peak of the forward pass
    kept_bytes: int  # bytes that are kept for the backward pass: saved tensors, inputs and results
    backward_bytes: int  # peak of the backward pass, with the kept bytes, and with new gradients of parameters
    left_bytes: int  # bytes after the backward pass: inputs, results, gradients
    passing_bytes: int  # peak of the bytes that are neither kept nor gradients of parameters
    saved_bytes: Mapping[str, int]  # the kept bytes by the first operator that saves them; their sum is ``kept_bytes``


def inference_bytes(graph: Graph, ops: Sequence[Op] | None = None) -> int:
    """Return the peak bytes of inputs and activations of a micro-batch in inference, through some operators or all.

    A tensor is held from its writer to its last reader, inputs and results to the end, since the caller or a channel
    holds them; during an operator, both its inputs and its outputs are held. A view keeps its base's storage alive.
    """
    storages = _DeviceStorages(Footprints(graph), graph.ops if ops is None else ops)
    storages.forward(training=False)
    return storages.ledger.peak_bytes


def training_passes(graph: Graph, ops: Sequence[Op] | None = None, accumulating: bool = False) -> Passes:
    """Return the bytes of one micro-batch in training.

    It runs some operators in their order, or all. The gradients of parameters exist already if ``accumulating``.
    """
    storages = _DeviceStorages(Footprints(graph), graph.ops if ops is None else ops)
    storages.forward(training=True)
    ledger = storages.ledger
    forward_bytes, kept_bytes, passing_bytes = ledger.peak_bytes, ledger.now_bytes, ledger.passing_bytes
    ledger.restart()
    storages.backward(accumulating)
    passing_bytes = max(passing_bytes, ledger.passing_bytes)
    return Passes(forward_bytes, kept_bytes, ledger.peak_bytes, ledger.now_bytes, passing_bytes, storages.saved_bytes)


class _DeviceStorages:
    """The storages of one micro-batch on one device, whose inputs and results the caller or a channel holds."""

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
        """The tensors that the device receives; for a whole network, also inputs without a reader."""
        written = {name for op in self.ops for name in op.outputs}
        read = [name for op in self.ops for name in op.inputs]
        inputs = self.graph.inputs if len(self.ops) == len(self.graph.ops) else ()
        outside = (name for name in dict.fromkeys((*inputs, *read)) if name not in written)
        return tuple(name for name in outside if self.graph.tensor[name].role not in (*STATE, Role.CACHE))

    @cached_property
    def written_in_place(self) -> frozenset[str]:
        """The tensors that are written over a cache, whose bytes stay on the device."""
        return frozenset(after for _, after in in_place(self.graph).values())

    @cached_property
    def results(self) -> Mapping[str, Op]:
        """The tensors that the caller or another device reads, with their writers, in the order of the writers."""
        own = {op.name for op in self.ops}
        read = {name for op in self.graph.ops if op.name not in own for name in op.inputs} | set(self.graph.outputs)
        return {name: op for op in self.ops for name in op.outputs if name in read}

    def forward(self, training: bool) -> None:
        """Run all operators; the kept storages remain."""
        left = self._readers()
        first = {name: op.name for op in reversed(self.ops) for name in op.inputs}
        for name in self.arrivals:
            self.storage[name] = self.ledger.new(self.graph.tensor[name].n_bytes)
            if training:
                self._keep(first.get(name, ""), self.storage[name])
        for op in self.ops:
            run = self.footprints.run(op, training)
            for name, shown in zip(op.outputs, run.writes, strict=True):
                if name in self.written_in_place:
                    continue
                if isinstance(shown, int):
                    self.storage[name] = self.ledger.new(shown)
                elif shown in self.storage:  # otherwise it is a view of a parameter or buffer
                    self.storage[name] = self.ledger.hold(self.storage[shown])
            if training:
                self._save(op)
            self.ledger.burst(run.extra_bytes)
            for name in dict.fromkeys((*op.inputs, *op.outputs)):
                left[name] -= name in op.inputs
                if not left[name] and name in self.storage:
                    self.ledger.drop(self.storage.pop(name))

    def backward(self, accumulating: bool) -> None:
        """Run all backward passes; gradients of parameters remain, unless they are added to existing ones."""
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

    def _readers(self) -> dict[str, int]:
        """The number of holders of each tensor: its readers here, and the caller or a channel."""
        left = dict.fromkeys((name for op in self.ops for name in op.outputs), 0)
        left |= dict.fromkeys((*self.arrivals, *self.results), 1)
        left |= {name: 1 for name in self.graph.outputs if name in left}
        for op in self.ops:
            for name in dict.fromkeys(op.inputs):
                left[name] = left.get(name, 0) + 1
        return left

    def _keep(self, op: str, storage: Storage) -> None:
        """Keep a storage until the end of the backward pass or longer; it counts for its first keeper."""
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
        """The number of gradients that operators here have for each tensor."""
        count: dict[str, int] = {}
        for op in self.ops:
            for gradient in self.footprints.backward(op).gradients:
                count[gradient.tensor] = count.get(gradient.tensor, 0) + 1
        return count

    def _differentiate(self, op: Op, arrived: Mapping[str, Storage]) -> list[tuple[Gradient, Storage]]:
        """The gradients of the inputs, before the saved tensors are released.

        A parameter has a separate gradient, unless the gradient is a view, which keeps its whole base alive.
        """
        backward = self.footprints.backward(op)
        gradients = dict(arrived)
        made: list[tuple[Gradient, Storage]] = []
        for name, shown, viewed in backward.gradients:
            viewed = viewed or shown in self.viewed
            own = name in self.trained and not viewed
            if isinstance(shown, str) and shown in gradients and not own:
                storage = self.ledger.hold(gradients[shown])
            else:
                storage = self.ledger.new(shown if isinstance(shown, int) else self.graph.tensor[name].n_bytes)
            gradients[name] = storage
            made.append((Gradient(name, shown, viewed), storage))
        self.ledger.burst(backward.extra_bytes)
        return made

    def _accumulate(self, gradient: Gradient, storage: Storage) -> None:
        """Add a gradient to earlier ones of the same tensor, in place if their storage is not shared."""
        name = gradient.tensor
        sum_ = self.gradient.get(name)
        if sum_ is None:
            self.gradient[name] = storage
            if gradient.viewed:
                self.viewed.add(name)
            return
        if sum_.holders > 1 or name in self.viewed:
            self.gradient[name] = self.ledger.new(self.graph.tensor[name].n_bytes)
            self.ledger.drop(sum_)
            self.viewed.discard(name)
        self.ledger.drop(storage)
