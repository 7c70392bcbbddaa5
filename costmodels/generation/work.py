"""Work of one pass of a language model through a layer, as seconds at the peaks of a device.

A pass computes some tokens: in decode one of each sequence, in prefill those of a prompt. Every amount is a count, or
the seconds that a device would take at the peak of its data sheet; `costmodels.generation.rates` has the price of each.

::

    amount            unit                          price
    layers            passes through a layer        seconds to start its kernels
    weights, cache    bytes / peak bandwidth        1 / share of the bandwidth that is reached
    rows, products    FLOP / peak                   1 / share of the peak: of a few rows in decode, of many in prefill
    unpacking         elements / float32 peak       operations to turn a packed weight into a number
    reduced           bytes / bandwidth of a link   1 / share of the link's bandwidth

Reading and computing are added, not overlapped: fitted to the same measurements, their sum is as near as the greater of
the two, and small quantised products are bound by neither alone.

Sources: Williams, Waterman and Patterson, Roofline, CACM 2009; Li et al., prima.cpp, arXiv 2504.08791 (adds reading and
computing); Pope et al., arXiv 2211.05102 (communication of tensor parallelism).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf, log, sqrt
from typing import TypeAlias

from costmodels.cluster.cluster import Device
from costmodels.language_model.feed_forward import Experts
from costmodels.language_model.formats import WeightFormat
from costmodels.language_model.mixers import (
    CompressedAttention,
    GroupedAttention,
    LatentAttention,
    Mixer,
    Recurrence,
)
from costmodels.language_model.model import DecoderLayer, ModelDescription
from costmodels.language_model.tensors import WeightTensor
from graphs.common.brief import Brief

Demand: TypeAlias = dict[str, float]
"""Amounts by name: counts, or seconds at a peak."""

VALUE_BYTES = 2  # of a value of a token between layers

HALF, EIGHT, FOUR, INTEGERS, BLOCKS = "16 bits", "8 bits", "4 bits", "integers", "k-quants"
CLASSES = (HALF, EIGHT, FOUR, INTEGERS, BLOCKS)
"""Classes of weight formats whose products reach other shares of the peak."""


@dataclass(frozen=True)
class Machine(Brief):
    """Peaks of a device, and of the link to its neighbours in a tensor-parallel group.

    Attributes:
        link_bytes_per_s: bandwidth of a device's link, one way; infinite without neighbours.
        host_devices: how many devices have such a link; beyond them, ``far_bytes_per_s`` joins hosts.
    """

    bytes_per_s: float
    flops_per_s: Mapping[str, float]
    link_bytes_per_s: float = inf
    host_devices: int = 1
    far_bytes_per_s: float = inf

    def peak(self, kind: str) -> float:
        """Return the FLOP/s of products of a class: float8's for 8 and 4 bits where there is one, or 16 bits'."""
        half = max(self.flops_per_s.get(name, 0.0) for name in ("bfloat16", "float16", "float32"))
        if kind in (EIGHT, FOUR):
            return max(half, self.flops_per_s.get("float8_e4m3fn", 0.0))
        return half

    @property
    def ordinary(self) -> float:
        """FLOP/s of ordinary arithmetic."""
        return self.flops_per_s.get("float32", self.peak(HALF))


def peaks_of(device: Device, link_bytes_per_s: float = inf, host_devices: int = 1) -> Machine:
    """Return the peaks of a device of a cluster."""
    return Machine(device.memory_bytes_per_s, device.flops_per_s, link_bytes_per_s, host_devices)


@dataclass(frozen=True)
class LayerShare(Brief):
    """Division of a layer among equal devices.

    Attributes:
        tensor: devices that share every product of attention, and of the feed-forward part without experts.
        data: groups of them that have other sequences and the same weights of attention (data-parallel attention).
        experts: parts into which the experts are divided; each expert is cut into devices / experts.
    """

    tensor: int = 1
    data: int = 1
    experts: int = 1

    @property
    def devices(self) -> int:
        """How many devices share the layer."""
        return self.tensor * self.data


@dataclass(frozen=True)
class LayerWork(Brief):
    """The sizes of a layer that its work depends on, summed over its tensors.

    Attributes:
        layer: the layer.
        hidden: values of a token between layers.
        bytes: of weights by group: "own" (attention and feed-forward), "shared" and "experts".
        flops: of one token's products by group and class; those of experts for the active ones.
        packed: elements in formats that take operations to unpack, by group.
        counts: passes through such a layer, by the amounts that they add to.
        reused: bytes in "own" that an earlier layer has, by the number of that layer.
    """

    layer: DecoderLayer
    hidden: int
    bytes: Mapping[str, float]
    flops: Mapping[tuple[str, str], float]
    packed: Mapping[str, float]
    counts: Mapping[str, float] = field(default_factory=dict)
    reused: Mapping[int, float] = field(default_factory=dict)

    @property
    def held_bytes(self) -> float:
        """Bytes of the weights that the layer adds to those of its earlier ones."""
        return sum(self.bytes.values()) - sum(self.reused.values())

    @property
    def experts(self) -> Experts | None:
        """The experts of the layer; None if it has none."""
        return self.layer.feed_forward if isinstance(self.layer.feed_forward, Experts) else None


def product_class(weights: WeightFormat) -> str:
    """Return the class of a format of weights."""
    if weights.kind == "float":
        return HALF if weights.bits > 8 else EIGHT if weights.bits > 4 else FOUR
    return BLOCKS if weights.name.endswith("_K") or weights.name.startswith(("iq", "tq")) else INTEGERS


def layer_work(layer: DecoderLayer, hidden: int) -> LayerWork:
    """Return the sizes of a layer."""
    n_bytes: dict[str, float] = {"own": 0.0, "shared": 0.0, "experts": 0.0}
    flops: dict[tuple[str, str], float] = {}
    packed, reused = dict.fromkeys(n_bytes, 0.0), dict[int, float]()
    for tensor in layer.tensors:
        group = tensor.part if tensor.part in ("shared", "experts") else "own"
        n_bytes[group] += tensor.bytes
        if tensor.owner >= 0:
            reused[tensor.owner] = reused.get(tensor.owner, 0.0) + tensor.bytes
        kind = product_class(tensor.format)
        if tensor.is_product:
            active = layer.active_share if group == "experts" else 1.0
            flops[group, kind] = flops.get((group, kind), 0.0) + 2.0 * tensor.elements * active
        packed[group] += tensor.elements if kind == BLOCKS else 0
    counts = {
        "layers": 1.0,
        "expert layers": float(isinstance(layer.feed_forward, Experts)),
        "latent layers": float(any(isinstance(mixer, LatentAttention | CompressedAttention) for mixer in layer.mixers)),
        "selecting layers": float(any(getattr(mixer, "selected", 0) > 0 for mixer in layer.mixers)),
        "recurrent layers": float(any(isinstance(mixer, Recurrence) for mixer in layer.mixers)),
    }
    return LayerWork(layer, hidden, n_bytes, flops, packed, counts, reused)


def works_of(model: ModelDescription) -> tuple[LayerWork, ...]:
    """Return the sizes of all layers in order; equal layers are one object."""
    made: dict[int, LayerWork] = {}
    for layer in model.layers:
        if id(layer) not in made:
            made[id(layer)] = layer_work(layer, model.hidden)
    return tuple(made[id(layer)] for layer in model.layers)


def counted(works: Iterable[LayerWork]) -> list[tuple[LayerWork, int]]:
    """Return the different layers in the order in which they occur, and how often each does; see `works_of`."""
    every = list(works)
    times = Counter(map(id, every))
    return [(work, times[number]) for number, work in {id(work): work for work in every}.items()]


@dataclass(frozen=True)
class Tokens(Brief):
    """Rows that a pass computes on each of the data-parallel groups.

    Attributes:
        rows: tokens.
        cache_tokens: tokens of the cache that each row attends to on average, itself included.
        sequences: sequences that the rows are of; each reads its cache once.
        prompt: whether the rows are of prompts, whose products have many rows.
    """

    rows: float
    cache_tokens: int
    sequences: float
    prompt: bool = False

    @classmethod
    def decode(cls, sequences: float, context: int) -> "Tokens":
        """Return one token of each sequence, at this length."""
        return cls(sequences, context, sequences)

    @classmethod
    def prefill(cls, tokens: int, cached: int = 0) -> "Tokens":
        """Return the next tokens of one prompt of which some are in the cache."""
        return cls(tokens, cached + tokens, 1.0, prompt=True)


def pass_demand(
    work: LayerWork, machine: Machine, share: LayerShare, tokens: Tokens, value_bytes: float, away: bool = False
) -> Demand:
    """Return the work of one device of those that share a layer.

    Args:
        work: the layer.
        machine: peaks of each of the devices.
        share: how they share it.
        tokens: the rows of each data-parallel group.
        value_bytes: of each cached value of keys and values.
        away: whether the experts are computed elsewhere.
    """
    rows, spread = tokens.rows, work.experts
    demand: Demand = dict(work.counts)
    shared = 1 if share.data > 1 else share.tensor
    demand["weights"] = (work.bytes["own"] / share.tensor + work.bytes["shared"] / shared) / machine.bytes_per_s
    demand["unpacking"] = (work.packed["own"] / share.tensor + work.packed["shared"] / shared) / machine.ordinary
    if not tokens.prompt:  # the share of the peak that products of many rows reach includes what lies between them
        demand["values"] = rows * work.hidden * VALUE_BYTES / machine.bytes_per_s
    products = _products(work, machine, share, rows)
    if spread is not None and not away:
        _add(demand, experts_demand(work, machine, share.devices, rows * share.data))
        balance = imbalance(share.experts, rows * share.data * spread.active)
        for (group, kind), flops in work.flops.items():
            if group == "experts":
                products[kind] += flops * rows * share.data / share.devices * balance / machine.peak(kind)
    kind_of_rows = "products" if tokens.prompt else "rows"
    _add(demand, {f"{kind_of_rows} {kind}": seconds for kind, seconds in products.items() if seconds})
    _add(demand, _mixing(work, machine, share, tokens, value_bytes))
    _add(demand, _messages(work, machine, share, rows))
    return demand


def experts_demand(work: LayerWork, machine: Machine, devices: int, rows: float) -> Demand:
    """Return the reading of the different experts that some tokens take, on each of the devices that share them."""
    spread = work.experts
    if spread is None:
        return {}
    part = spread.expected_distinct(rows) / spread.count / devices
    return {
        "experts": work.bytes["experts"] * part / machine.bytes_per_s,
        "unpacking": work.packed["experts"] * part / machine.ordinary,
    }


def imbalance(parts: int, choices: float) -> float:
    """Return how many times the mean the fullest of equal parts has, after a number of choices at random.

    Source: Raab and Steger, Balls into bins, RANDOM 1998: the greatest load is the mean and sqrt(2 mean ln parts).
    """
    return 1.0 if parts == 1 or choices <= 0 else min(float(parts), 1.0 + sqrt(2 * log(parts) * parts / choices))


def head_demand(model: ModelDescription, machine: Machine, tensor: int, rows: float, prompt: bool = False) -> Demand:
    """Return the work of the scores of all words for some tokens, on each of the devices that share the head."""
    head = model.head_tensor
    kind = product_class(head.format)
    name = "products" if prompt else "rows"
    return {
        "weights": head.bytes / tensor / machine.bytes_per_s,
        f"{name} {kind}": rows * model.head_flops / tensor / machine.peak(kind),
        "unpacking": head.elements * (kind == BLOCKS) / tensor / machine.ordinary,
    }


def total(demands: Iterable[tuple[Demand, float]]) -> Demand:
    """Return the sum of demands, each as often as the number next to it says."""
    added: Demand = {}
    for demand, times in demands:
        for name, amount in demand.items():
            added[name] = added.get(name, 0.0) + amount * times
    return added


def _add(demand: Demand, other: Mapping[str, float]) -> None:
    for name, amount in other.items():
        demand[name] = demand.get(name, 0.0) + amount


def _products(work: LayerWork, machine: Machine, share: LayerShare, rows: float) -> dict[str, float]:
    """Return the seconds at the peak of all products but those of experts, by class."""
    seconds = dict.fromkeys(CLASSES, 0.0)
    for (group, kind), flops in work.flops.items():
        if group != "experts":
            parts = share.tensor if group == "own" or share.data == 1 else 1
            seconds[kind] += flops * rows / parts / machine.peak(kind)
    return seconds


def _mixing(work: LayerWork, machine: Machine, share: LayerShare, tokens: Tokens, value_bytes: float) -> Demand:
    """Return the reading of the cache and the FLOP of attention."""
    n_bytes, flops = 0.0, 0.0
    for mixer in work.layer.mixers:
        cached = mixer.read_bytes(tokens.cache_tokens, value_bytes) / heads_divided(mixer, share.tensor)
        n_bytes += tokens.sequences * cached
        if tokens.prompt:
            before = tokens.cache_tokens - round(tokens.rows)
            flops += mixer.prefill_flops(round(tokens.rows), before) / share.tensor
        else:
            flops += tokens.rows * mixer.decode_flops(tokens.cache_tokens) / share.tensor
    name = "prompt attention" if tokens.prompt else "attention"
    return {"cache": n_bytes / machine.bytes_per_s, name: flops / machine.peak(HALF)}


def heads_divided(mixer: Mixer, tensor: int) -> int:
    """Return into how many parts a tensor-parallel group divides what a mixer keeps: a latent is whole on each."""
    if isinstance(mixer, GroupedAttention):
        return min(tensor, mixer.kv_heads)
    return 1 if isinstance(mixer, LatentAttention | CompressedAttention) else tensor


def _messages(work: LayerWork, machine: Machine, share: LayerShare, rows: float) -> Demand:
    """Return the all-reduces of a tensor-parallel group, and the exchanges of tokens with experts elsewhere.

    An exchange sends a token to the devices that have its experts, in 8 bits, and brings the results back in 16; where
    experts are cut and not spread, all devices have them.
    """
    demand: Demand = {}
    n_bytes = rows * work.hidden * VALUE_BYTES
    if share.tensor > 1:
        times = 1 if work.experts is not None and share.data > 1 else 2
        near = min(share.tensor, machine.host_devices)
        demand["reduces"] = float(times)
        demand["reduce members"] = float(times * near)
        demand["reduced"] = times * 2 * (share.tensor - 1) / share.tensor * n_bytes / machine.link_bytes_per_s
        if share.tensor > machine.host_devices:
            demand["far reduces"] = float(times)
            demand["far reduced"] = times * 2 * n_bytes / machine.far_bytes_per_s
    if share.data > 1 and work.experts is not None:
        others = share.devices - 1
        met = others * (1 - (1 - 1 / share.experts) ** work.experts.active)
        demand["exchanges"] = 1 + log(share.devices, 2) / 3
        demand["exchanged"] = rows * work.hidden * 3 * met / share.tensor / machine.link_bytes_per_s
    return demand


def weights_elsewhere(tensors: Iterable[WeightTensor]) -> int:
    """Return the bytes of tensors that are no layer's and that text is generated with."""
    return sum(tensor.bytes for tensor in tensors if tensor.part not in ("vision", "draft"))
