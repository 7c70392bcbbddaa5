"""Units: devices and tensor-parallel groups that can hold neighbouring layers, and the price of each layer on them.

::

    classes    equal devices of one host are interchangeable: only how many of them are in use matters
    units      a class and a number of its devices: 1, or 2, 4, 8 that share every product
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from costmodels.cluster.cluster import Cluster, Device
from costmodels.generation.rates import rates_of
from costmodels.generation.stages import HostProcessors, Unit, chunks_of, head_seconds, layer_seconds
from costmodels.generation.work import LayerShare, LayerWork, Tokens, heads_divided, peaks_of
from graphs.common.brief import Brief
from planner.generation.question import GenerationQuestion, is_processor


@dataclass(frozen=True)
class DeviceClass(Brief):
    """Equal devices of one host.

    Attributes:
        devices: their numbers in the cluster.
        host: its number.
        processor: whether they are the host's processors.
    """

    devices: tuple[int, ...]
    host: int
    processor: bool


@dataclass(frozen=True)
class UnitPrice(Brief):
    """Cost of a layer on a unit.

    Attributes:
        token_s: of one token of every sequence.
        prompt_s: of the prompts of every sequence.
        bytes: weights and cache on each device of the unit.
        weights: of these the weights.
        away_token_s: as ``token_s`` with the experts on the host; infinite where that is impossible.
        away_prompt_s: likewise.
        expert_bytes: of the experts: what a device is without them, and what the host then has in all.
    """

    token_s: float
    prompt_s: float
    bytes: float
    weights: float
    away_token_s: float = inf
    away_prompt_s: float = inf
    expert_bytes: float = 0.0
    host_bytes: float = 0.0


@dataclass(frozen=True)
class PricedUnit(Brief):
    """A unit with its limits and the prices of everything that may lie on it.

    Attributes:
        unit: its figures.
        device_class: number of its class.
        size: devices.
        room_bytes: of each device, for weights and caches: what a plan may use without buffers.
        buffer_bytes: compute buffers on each device.
        prices: of each different layer, by the identity of its work.
        head: seconds of a token and of the prompts, and bytes on each device.
        embedding_bytes: on each device.
        host: number of the class that computes experts for it; None if there is none.
    """

    unit: Unit
    device_class: int
    size: int
    room_bytes: float
    buffer_bytes: float
    prices: dict[int, UnitPrice]
    head: UnitPrice
    embedding_bytes: float
    host: int | None = None


def device_classes(cluster: Cluster) -> tuple[DeviceClass, ...]:
    """Return the classes of equal devices, in the order of the cluster."""
    hosts = hosts_of(cluster)
    found: dict[tuple[int, str, float, float, float], list[int]] = {}
    for number, device in enumerate(cluster.devices):
        key = (
            hosts[number],
            device.kind,
            device.usable_bytes,
            device.memory_bytes_per_s,
            max(device.flops_per_s.values()),
        )
        found.setdefault(key, []).append(number)
    return tuple(
        DeviceClass(tuple(numbers), key[0], is_processor(cluster.devices[numbers[0]])) for key, numbers in found.items()
    )


def hosts_of(cluster: Cluster) -> list[int]:
    """Return the host of each device: by the names that devices give, or else by the lowest of several levels."""
    if any(device.host for device in cluster.devices):
        names = list(dict.fromkeys(device.host for device in cluster.devices))
        return [names.index(device.host) for device in cluster.devices]
    size = cluster.levels[0].size if len(cluster.levels) > 1 else len(cluster.devices)
    return [number // size for number in range(len(cluster.devices))]


def priced_units(question: GenerationQuestion, classes: Sequence[DeviceClass]) -> tuple[PricedUnit, ...]:
    """Return all units with their prices."""
    return tuple(
        _priced(question, classes, number, size) for number, own in enumerate(classes) for size in _sizes(question, own)
    )


def _sizes(question: GenerationQuestion, own: DeviceClass) -> Iterator[int]:
    """Yield 1, and how many devices of a class may share products: powers of 2 that attention's heads divide into."""
    yield 1
    if own.processor or not question.engine.batches:
        return
    size = 2
    while size <= len(own.devices):
        joined = all((own.devices[0], other) in question.cluster.link for other in own.devices[1:size])
        if joined and all(count % size == 0 for count in question.heads):
            yield size
        size *= 2


def _priced(question: GenerationQuestion, classes: Sequence[DeviceClass], number: int, size: int) -> PricedUnit:
    own = classes[number]
    device = question.cluster.devices[own.devices[0]]
    unit, host = _unit(question, classes, number, size)
    prices = {id(work): _layer_price(question, unit, work) for work in question.works}
    token, prompt = Tokens.decode(question.sequences, question.length), float(question.sequences)
    head = question.model.head_tensor
    return PricedUnit(
        unit,
        number,
        size,
        device.usable_bytes - question.buffer_bytes,
        question.buffer_bytes,
        prices,
        UnitPrice(
            head_seconds(unit, question.model, token.rows),
            prompt * head_seconds(unit, question.model, 1.0, prompt=True),
            head.bytes / size,
            head.bytes / size,
        ),
        question.model.embedding_bytes / size,
        host,
    )


def _unit(
    question: GenerationQuestion, classes: Sequence[DeviceClass], number: int, size: int
) -> tuple[Unit, int | None]:
    own, cluster = classes[number], question.cluster
    device = cluster.devices[own.devices[0]]
    rate = inf
    if size > 1:
        rate = cluster.link[own.devices[0], own.devices[1]].bytes_per_s
    machine = peaks_of(device, rate, size)
    share = LayerShare(size, 1, 1)
    rates = rates_of(question.engine.name, device)
    host = None if own.processor or question.engine.batches else _processors(classes, own.host)
    if host is None:
        return Unit(machine, rates, share), None
    helper: Device = cluster.devices[classes[host].devices[0]]
    return Unit(machine, rates, share, HostProcessors(peaks_of(helper), rates_of(question.engine.name, helper))), host


def _processors(classes: Sequence[DeviceClass], host: int) -> int | None:
    return next((number for number, each in enumerate(classes) if each.host == host and each.processor), None)


def _layer_price(question: GenerationQuestion, unit: Unit, work: LayerWork) -> UnitPrice:
    tensor, values = unit.share.tensor, question.value_bytes
    tokens = Tokens.decode(question.sequences, question.length)
    chunks = chunks_of(question.prompt, question.engine.chunk_tokens)

    def seconds(away: bool) -> tuple[float, float]:
        prompt = sum(layer_seconds(unit, work, chunk, values, away).both for chunk in chunks)
        return layer_seconds(unit, work, tokens, values, away).both, prompt * question.sequences

    token_s, prompt_s = seconds(away=False)
    cache = sum(
        mixer.cache_bytes(question.context, values) / heads_divided(mixer, tensor) for mixer in work.layer.mixers
    )
    weights = work.held_bytes / tensor
    whole = UnitPrice(token_s, prompt_s, weights + cache * question.sequences, weights)
    if unit.host is None or work.experts is None:
        return whole
    away_token_s, away_prompt_s = seconds(away=True)
    experts = work.bytes["experts"]
    return UnitPrice(token_s, prompt_s, whole.bytes, weights, away_token_s, away_prompt_s, experts / tensor, experts)
