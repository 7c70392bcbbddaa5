"""Setting: equal layers between an embedding and a head, GPUs, and measured times, read from JSON.

::

    {"model": {"layers": 28, "hidden": 4096, "sequence": 8192}, "batch": 64, "chunks": 32, "uniform": false,
     "cluster": {"gpus": 8, "memory_MB": 36864, "reserved_for_allocator": 0.2, "context_MB": 1024, "overlap": 1.15},
     "forward_ms_per_sample": {"sequence": [..], "layer": [..], "embedding_and_head": [..]},
     "layer_memory": {"parameters_MB": .., "activation_MB_per_sample": {"1": ..},
                      "recomputed_activation_MB_per_sample": ..},
     "embedding_memory": {"only_stage": {"model_states_MB": {"1": ..}, "activation_MB_per_sample": {"1": ..}},
                          "first_stage": .., "last_stage": ..},
     "allreduce_MB_per_ms": {"8": {"near": .., "spread": ..}}, "p2p_MB_per_ms": {"2": ..},
     "collective_ms": {"message_MB": [..], "allreduce": {"2": [..]}, "all2all": {"2": [..]}}}

Keys in quotation marks are numbers of ranks. A MB is 2^20 bytes. Further keys are ignored.

Source: the settings in the tests of Galvatron's search (Miao et al., VLDB 2023; https://github.com/PKU-DAIR/Hetu-Galvatron).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from graphs.common.brief import Brief
from graphs.common.errors import InputError
from graphs.common.json_object import JsonObject

BY_RANKS = Mapping[int, float]


class LayerStrategy(NamedTuple):
    """How a layer, or embedding and head, is divided among the GPUs of its stage; the rest of them are replicas."""

    tensor: int  # ranks that share every product (tensor parallelism)
    sequence: int  # ranks that share the sequence (Ulysses); one of the two is 1
    zero: int = 2  # ZeRO stage, 2 or 3
    recompute: bool = False


class OuterMemory(NamedTuple):
    """Embedding and head on one stage."""

    states_mb: BY_RANKS
    activation_mb: BY_RANKS  # of a sample


class Curve(NamedTuple):
    """Measured times by size."""

    sizes: tuple[float, ...]
    ms: tuple[float, ...]


@dataclass(frozen=True)
class LayerwiseSetting(Brief):
    """A model to train, the GPUs, and measurements of both."""

    layers: int  # the number of layers
    hidden: int  # values of a token between layers
    sequence: int  # tokens of a sample
    batch: int  # samples of a step
    micro_batches: int  # parts of the batch
    uniform: bool  # whether layers, embedding and head share one strategy
    gpus: int  # the number of GPUs
    limit_mb: int  # the most that one GPU may hold
    context_mb: float  # of every GPU before anything is placed
    overlap: float  # how many times as long computing and communication take while both run
    layer_ms: Curve  # of one sample, by tokens
    outer_ms: Curve  # of one sample in embedding and head, by tokens
    parameters_mb: float  # of a layer
    activation_mb: BY_RANKS  # of a layer and a sample, by ranks that share it
    recomputed_mb: float  # the same with recomputation, on one rank
    outer_memory: Mapping[str, OuterMemory]  # by ``only_stage``, ``first_stage`` and ``last_stage``
    near_mb_per_ms: BY_RANKS  # bandwidth of an all-reduce, by ranks, if they are neighbours
    spread_mb_per_ms: BY_RANKS  # if they are not
    p2p_mb_per_ms: BY_RANKS  # bandwidth between stages, by their number
    all_reduce: Mapping[int, Curve]  # times by MB, by ranks
    all_to_all: Mapping[int, Curve]  # the same


MOST_LAYERS = 100_000
STAGES = ("only_stage", "first_stage", "last_stage")


def layerwise_setting(document: Mapping[str, Any]) -> LayerwiseSetting:
    """Return a setting from the content of its JSON file.

    Raises:
        InputError: if a field is missing or of the wrong kind, or there are fewer samples than micro-batches.
    """
    top = JsonObject("the file", document)
    model, cluster = top.object("model"), top.object("cluster")
    memory, outer = top.object("layer_memory"), top.object("embedding_memory")
    forward, messages = top.object("forward_ms_per_sample"), top.object("collective_ms")
    bandwidth = top.object("allreduce_MB_per_ms")
    batch, micro_batches = top.count("batch", 1), top.count("chunks", 1)
    if batch < micro_batches:
        raise InputError(f"batch is {batch} and chunks is {micro_batches}; give each micro-batch a sample at least")
    layers = model.count("layers", 1)
    if layers > MOST_LAYERS:
        raise InputError(f"{model.where} has layers = {layers}; give at most {MOST_LAYERS:,}")
    total_mb = cluster.number("memory_MB")
    states = {name: outer.object(name) for name in STAGES}
    return LayerwiseSetting(
        layers=layers,
        hidden=model.count("hidden", 1),
        sequence=model.count("sequence", 1),
        batch=batch,
        micro_batches=micro_batches,
        uniform=top.flag("uniform"),
        gpus=cluster.count("gpus", 1),
        limit_mb=int(total_mb - int(cluster.number("reserved_for_allocator") * total_mb)),
        context_mb=cluster.number("context_MB"),
        overlap=cluster.number("overlap"),
        layer_ms=_curve(forward, "sequence", "layer", 3),
        outer_ms=_curve(forward, "sequence", "embedding_and_head", 2),
        parameters_mb=memory.number("parameters_MB"),
        activation_mb=_by_ranks(memory.object("activation_MB_per_sample")),
        recomputed_mb=memory.number("recomputed_activation_MB_per_sample"),
        outer_memory={
            name: OuterMemory(
                _by_ranks(stage.object("model_states_MB")), _by_ranks(stage.object("activation_MB_per_sample"))
            )
            for name, stage in states.items()
        },
        near_mb_per_ms={ranks: bandwidth.object(key).above_zero("near") for key, ranks in _ranks(bandwidth)},
        spread_mb_per_ms={ranks: bandwidth.object(key).above_zero("spread") for key, ranks in _ranks(bandwidth)},
        p2p_mb_per_ms=_by_ranks(top.object("p2p_MB_per_ms")),
        all_reduce=_curves(messages, "allreduce"),
        all_to_all=_curves(messages, "all2all"),
    )


def _ranks(record: JsonObject) -> list[tuple[str, int]]:
    """Return the keys of a table by ranks, as text and as numbers."""
    wrong = next((key for key in record.content if not str(key).isdecimal()), None)
    if wrong is not None:
        raise InputError(f"{record.where} has the key {wrong!r}; it must be a number of ranks, such as '2'")
    return [(key, int(key)) for key in record.content]


def _by_ranks(record: JsonObject) -> BY_RANKS:
    return {ranks: record.above_zero(key) for key, ranks in _ranks(record)}


def _curve(record: JsonObject, sizes: str, times: str, least: int) -> Curve:
    """Return times by size; a fit needs ``least`` points."""
    points = len(record.records(sizes))
    if points < least:
        raise InputError(f"{record.where} has {points} values of {sizes}; give {least} at least")
    return Curve(record.numbers(sizes, points), record.numbers(times, points))


def _curves(messages: JsonObject, name: str) -> Mapping[int, Curve]:
    """Return the curve of a collective for each number of ranks."""
    table = messages.object(name)
    sizes = messages.numbers("message_MB", len(messages.records("message_MB")))
    return {ranks: Curve(sizes, table.numbers(key, len(sizes))) for key, ranks in _ranks(table)}
