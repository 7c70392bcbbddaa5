"""PricedStage: seconds and bytes of one stage of a pipeline, by its layers and their recomputation.

::

    a_i     stage i for a micro-batch, forward and backward: layers, their tensor-parallel all-reduces, what is
            recomputed, the head, messages to neighbours; ZeRO 2 and 3 overlap with all of this
    s_i     gradients (ZeRO 0: all-reduce; 1: reduce-scatter, and all-gather of parameters; 2: the latter) and the
            optimizer; neither overlaps with computing

    held by stage i     min(m, p - i) micro-batches; interleaved min(m, (2 (p - i - 1) + (v - 1) p + 1) / v)
    bytes               states under ZeRO, activations held, one recomputed layer, 10 bytes a logit on the last stage

Sources of memory are those of `planner.parallelism.closed_form.memory`; those of collectives are in
`costmodels.cluster.collectives`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from math import ceil, inf
from typing import NamedTuple, TypeVar

from costmodels.cluster.collectives import overlapped_s
from costmodels.cluster.fabric import FabricGroup
from graphs.common.brief import brief
from planner.parallelism.closed_form.config import ParallelShape, StageLayers
from planner.parallelism.closed_form.layer_book import ACTIVATION, ExpertGroup, LayerBook, LayerPrice
from planner.parallelism.closed_form.layer_times import LayerTimes
from planner.parallelism.closed_form.memory import PARAMETER, zero_states

LOGIT = 10  # bytes kept of a logit: 16 bits, 32 bits, and its gradient's 32 bits
TOKEN = 8  # bytes of a token's number
GATHERED = 2  # products whose parameters ZeRO-3 has gathered at a time: one in use, one on its way (DeepSpeed)


T = TypeVar("T")


def _kept(method: Callable[["PricedStage", int], T]) -> Callable[["PricedStage", int], T]:
    """Keep what a method returns for each number of layers, which searches ask for with every recomputation."""

    @wraps(method)
    def known(stage: "PricedStage", layers: int) -> T:
        found: dict[int, T] = stage.__dict__.setdefault(f"{method.__name__}, kept", {})
        if layers not in found:
            found[layers] = method(stage, layers)
        return found[layers]

    return known


class _States(NamedTuple):
    """Parameters on one device of a stage, and the devices that have the same ones."""

    parameters: float
    replicas: FabricGroup


@dataclass(frozen=True)
class PricedStage:
    """The price of a stage.

    Attributes:
        book: prices of layers.
        shape: how devices and batch would be divided if all stages were like this one.
        number: of the stage.
        slowest: the number of its slowest device, which sets its pace.
        limit: bytes that a plan may use of its smallest device.
        message_s: seconds that a micro-batch needs to and from a neighbouring stage.
    """

    book: LayerBook
    shape: ParallelShape
    number: int
    slowest: int
    limit: float
    message_s: float

    __repr__ = brief

    @classmethod
    def on(
        cls, book: LayerBook, shape: ParallelShape, number: int, members: Sequence[int], apart: tuple[int, int]
    ) -> "PricedStage":
        """Return the stage on the given devices, of which one of each kind is enough.

        Args:
            book, shape, number: as above.
            members: the numbers of the devices.
            apart: stride and size of the group of devices that messages pass between, as in `Fabric.group`.
        """
        devices = book.fabric.devices
        slowest = min(members, key=lambda member: max(devices[member].flops_per_s.values()))
        limit = min(devices[member].usable_bytes for member in members)
        return cls(book, shape, number, slowest, limit, _message_s(book, shape, *apart))

    @cached_property
    def layer(self) -> LayerPrice:
        """The price of a layer."""
        experts = ExpertGroup(self.shape.expert, self.shape.stride)
        return self.book.price(self.slowest, self.shape.tensor, self.shape.samples, experts)

    @property
    def end_s(self) -> float:
        """Seconds of a micro-batch outside the layers: messages to neighbours and, on the last stage, the head."""
        return self.message_s + (self.layer.head_s if self._last else 0.0)

    @property
    def held(self) -> float:
        """The number of micro-batches whose activations the stage holds at a time."""
        pipeline, chunks = self.shape.pipeline, self.shape.chunks
        later = pipeline - self.number - 1
        held = later + 1 if chunks == 1 else (2 * later + (chunks - 1) * pipeline + 1) / chunks
        return min(self.shape.micro_batches, held)

    def pass_s(self, layers: StageLayers) -> float:
        """Return the seconds of a micro-batch, forward and backward."""
        own_s = sum(count * s for count, s in zip(layers, self.layer.total_s, strict=True)) + self.end_s
        if self.shape.zero < 2 or self.shape.data == 1:
            return own_s
        return overlapped_s(own_s, self._zero_s(layers.total), self.book.setting.efficiency.overlap)

    def computing_s(self, layers: StageLayers) -> float:
        """Return the seconds of a micro-batch in which the stage computes."""
        own_s = sum(count * s for count, s in zip(layers, self.layer.computing_s, strict=True))
        return own_s + (self.layer.head_s if self._last else 0.0)

    @_kept
    def sync_s(self, layers: int) -> float:
        """Return the seconds of gradients and optimizer in a step."""
        setting, fabric = self.book.setting, self.book.fabric
        times = LayerTimes(setting.network, fabric.devices[self.slowest], setting.efficiency)
        divided = sum(own.parameters / (own.replicas.size if self.shape.zero else 1) for own in self._states(layers))
        step_s = times.optimizer_s(divided, setting.gradient_bytes, setting.state_bytes)
        return step_s + sum(map(self._gradients_s, self._states(layers)))

    def _gradients_s(self, own: "_States") -> float:
        """Return the seconds of adding up gradients in a step, and of sending the parameters that ZeRO divides."""
        setting, fabric, zero = self.book.setting, self.book.fabric, self.shape.zero
        if own.replicas.size == 1 or zero == 3:
            return 0.0
        gradient_bytes = setting.gradient_bytes * own.parameters
        if zero == 0:
            return fabric.all_reduce(gradient_bytes, own.replicas)
        gather_s = fabric.all_gather(PARAMETER * own.parameters, own.replicas)
        return gather_s + (fabric.all_gather(gradient_bytes, own.replicas) if zero == 1 else 0.0)

    def bytes_of(self, layers: StageLayers) -> float:
        """Return the bytes that a device of the stage holds."""
        return self._fixed_bytes(layers.total) + self._activation_bytes(layers)

    def cheapest(self, layers: int, most_s: float = inf) -> StageLayers | None:
        """Return the layers by the fastest recomputation that fits the memory; None if none below ``most_s`` fits."""
        asked = self.book.setting.demands.recompute
        if asked is not None:
            alike = StageLayers.of(layers, asked)
            return alike if self.bytes_of(alike) <= self.limit and self.pass_s(alike) < most_s else None
        if self.bytes_of(StageLayers(0, 0, layers)) > self.limit:  # nothing holds less
            return None
        none_s, _, full_s = self.layer.total_s
        best: StageLayers | None = None
        best_s = most_s
        for full in range(layers + 1):
            if layers * none_s + full * (full_s - none_s) + self.end_s >= best_s:
                break
            found = self._with_full(layers, full)
            if found is not None and (found_s := self.pass_s(found)) < best_s:
                best, best_s = found, found_s
        return best

    def _with_full(self, layers: int, full: int) -> StageLayers | None:
        """Return layers with ``full`` recomputed in full and the fewest selective ones that fit; None if none fit."""
        plain = StageLayers(layers - full, 0, full)
        if self.bytes_of(plain) <= self.limit:
            return plain
        if full == layers:
            return None
        none, selective, _ = self.layer.held_bytes
        saved = self.held * (none - selective)
        one = StageLayers(layers - full - 1, 1, full)
        over = self.bytes_of(one) - self.limit
        more = max(0, ceil(over / saved)) if saved > 0 else (inf if over > 0 else 0)
        return StageLayers(layers - full - 1 - int(more), 1 + int(more), full) if more <= layers - full - 1 else None

    @property
    def _last(self) -> bool:
        return self.number == self.shape.pipeline - 1

    def _activation_bytes(self, layers: StageLayers) -> float:
        """Return the bytes of activations that wait for backward passes, of one recomputed layer, and of logits."""
        network = self.book.setting.network
        kept = sum(count * n_bytes for count, n_bytes in zip(layers, self.layer.held_bytes, strict=True))
        none, selective, full = self.layer.held_bytes
        again = none - full if layers.full else none - selective if layers.selective else 0.0
        tokens = self.shape.samples * network.sequence
        if self.number == 0:
            kept += tokens * (TOKEN + network.hidden * network.dropout) / self.shape.tensor
        logits = LOGIT * tokens * network.vocabulary / self.shape.tensor if self._last else 0.0
        return self.held * kept + again + logits

    @_kept
    def _fixed_bytes(self, layers: int) -> float:
        """Return the bytes of states, and of the parameters that ZeRO-3 has gathered."""
        shape, setting = self.shape, self.book.setting
        sizes = (setting.state_bytes, setting.gradient_bytes)
        states = sum(zero_states(own.parameters, own.replicas.size, shape.zero, *sizes) for own in self._states(layers))
        if shape.zero < 3 or shape.data == 1:
            return states
        network = setting.network
        width = max(network.hidden, network.ffn)
        if network.mixture is not None and shape.data > shape.expert:
            width = max(width, network.mixture.count * network.mixture.width // shape.expert)
        return states + GATHERED * PARAMETER * network.hidden * width / shape.tensor

    @cached_property
    def _layer_parameters(self) -> float:
        """Parameters of a layer on one device; norms and biases are not divided."""
        network = self.book.setting.network
        return network.product_parameters / self.shape.tensor + network.vector_parameters

    def _states(self, layers: int) -> tuple["_States", ...]:
        """Return the parameters on one device with their replicas; experts have fewer of these."""
        own = _States(self._parameters(layers), self._replicas)
        experts = self.book.setting.network.expert_parameters
        if not experts:
            return (own,)
        shape = self.shape
        group = self.book.fabric.group(shape.data // shape.expert, shape.stride * shape.expert)
        return own, _States(layers * experts / (shape.tensor * shape.expert), group)

    def _parameters(self, layers: int) -> float:
        """Return the parameters on one device, experts left out.

        A tied head is a copy unless its stage has the embedding too.
        """
        network = self.book.setting.network
        ends = network.embedding_parameters if self.number == 0 else 0
        if self._last:
            ends += network.vocabulary * network.hidden if self.number else network.head_parameters
        return layers * self._layer_parameters + ends / self.shape.tensor

    @_kept
    def _zero_s(self, layers: int) -> float:
        """Return the seconds of ZeRO's messages for a micro-batch: gradients; with ZeRO-3, parameters twice, too."""
        fabric, total_s = self.book.sharded_fabric, 0.0
        for own in self._states(layers):
            if own.replicas.size > 1:
                total_s += fabric.all_gather(self.book.setting.gradient_bytes * own.parameters, own.replicas)
                if self.shape.zero == 3:
                    total_s += 2 * fabric.all_gather(PARAMETER * own.parameters, own.replicas)
        return total_s

    @cached_property
    def _replicas(self) -> FabricGroup:
        return self.book.fabric.group(self.shape.data, self.shape.stride)


def _message_s(book: LayerBook, shape: ParallelShape, stride: int, size: int) -> float:
    """Return the seconds of a micro-batch to and from a neighbour, for all chunks; each rank sends its part."""
    if shape.pipeline == 1:
        return 0.0
    network = book.setting.network
    n_bytes = ACTIVATION * shape.samples * network.sequence * network.hidden / shape.tensor
    return 2 * shape.chunks * book.fabric.message(n_bytes, stride, size)
