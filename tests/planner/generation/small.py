"""Small language models, clusters and questions for tests."""

from costmodels.cluster.cluster import Cluster, Device, Link
from costmodels.language_model.feed_forward import Dense, Experts, FeedForward
from costmodels.language_model.formats import format_named
from costmodels.language_model.mixers import GroupedAttention
from costmodels.language_model.model import DecoderLayer, ModelDescription
from costmodels.language_model.tensors import Part, WeightTensor

HALF = format_named("float16")


def tensor(name: str, part: Part, *shape: int, weights: str = "float16") -> WeightTensor:
    """Return weights of a part."""
    return WeightTensor(name, shape, format_named(weights), part)


def layer(hidden: int, width: int, experts: int = 0, window: int = 0) -> DecoderLayer:
    """Return a layer with 4 heads, 2 of keys; with ``experts``, of which a token takes 2."""
    attention = GroupedAttention(4, 2, hidden // 4, hidden // 4, window)
    own = [tensor("q", "mixer", hidden, hidden), tensor("k", "mixer", hidden // 2, hidden)]
    own += [tensor("v", "mixer", hidden // 2, hidden), tensor("o", "mixer", hidden, hidden)]
    part: FeedForward = Experts(experts, 2, width) if experts else Dense(width)
    if experts:
        own += [tensor("router", "router", experts, hidden), tensor("up", "experts", experts, 2 * width, hidden)]
        own += [tensor("down", "experts", experts, hidden, width)]
    else:
        own += [tensor("up", "dense", 2 * width, hidden), tensor("down", "dense", hidden, width)]
    return DecoderLayer((attention,), part, tuple(own))


def model(*layers: DecoderLayer, hidden: int = 1024, vocabulary: int = 8000, tied: bool = False) -> ModelDescription:
    """Return a model of some layers."""
    ends = [tensor("embedding", "embedding", vocabulary, hidden)]
    if not tied:
        ends.append(tensor("head", "head", vocabulary, hidden))
    return ModelDescription("small", hidden, vocabulary, layers, tuple(ends), tied=tied, trained_tokens=4096)


def device(name: str, memory_mb: float, kind: str = "RTX-4090", host: str = "", speed: float = 1.0) -> Device:
    """Return a device with some memory, and the speed of a 4090 or a part of it."""
    flops = {"float32": 80e12 * speed, "float16": 160e12 * speed}
    return Device(name, kind, memory_mb * 1e6, flops, 1000e9 * speed, host=host)


def cluster(*devices: Device, latency_s: float = 20e-6) -> Cluster:
    """Return devices that are all joined, hosts by a slower link."""
    links = tuple(
        Link(a.name, b.name, 10e9 if a.host == b.host else 0.1e9, latency_s if a.host == b.host else 50 * latency_s)
        for a in devices
        for b in devices
        if a is not b
    )
    return Cluster("small", devices, links)
