"""Stages: a pipeline whose stages are shared among devices in two ways, and its time per sample.

A stage is copied ``data`` times, and each copy is divided among ``tensor`` devices. With d and t for these, N
micro-batches, and everything that crosses its border sent forward and backward:

::

    time    sum of compute / d  +  (2 / d * crossing bytes + 4 (d - 1) / (d N) * parameter bytes) / bandwidth
    memory  sum of in-flight bytes * y + fixed bytes  <=  memory,       y = ceil(sum of d of this and later stages / d)
    all     sum of t d <= devices,   sum of d <= N,   d divides N

The pipeline takes as long as its slowest stage.

Source: Tarnawski et al., NeurIPS 2021, see `planner.literature.hybrid_pipeline.network`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from graphs.common.brief import brief
from planner.literature.hybrid_pipeline.network import HybridNetwork, Sharing

BOTH_WAYS = 2  # a tensor forward, its gradient backward
REDUCED = 4  # bytes that a device sends and receives to add up one byte of gradients, but for the share of one device


@dataclass(frozen=True)
class HybridStage:
    """Nodes that run together.

    Attributes:
        variant: the number of the variant of each node, by the node's position.
        data: the number of copies of the stage.
        tensor: the number of devices that share a copy.
    """

    variant: dict[int, int]
    data: int
    tensor: int

    __repr__ = brief


@dataclass(frozen=True)
class StageLoad:
    """The time and memory of a stage.

    Attributes:
        time_s: seconds per sample.
        memory_bytes: of each device.
        in_flight: micro-batches that a copy holds at a time.
    """

    time_s: float
    memory_bytes: float
    in_flight: int


def loads_of(network: HybridNetwork, stages: Sequence[HybridStage]) -> list[StageLoad]:
    """Return the load of each stage, in the order of the pipeline."""
    found = []
    later = 0
    for stage in reversed(stages):
        later += stage.data
        found.append(_load(network, stage, -(-later // stage.data)))
    return found[::-1]


def _load(network: HybridNetwork, stage: HybridStage, in_flight: int) -> StageLoad:
    """Return the load of a stage with a number of micro-batches in flight."""
    sharing = {node: network.sharing[node][stage.tensor] for node in stage.variant}
    chosen = [sharing[node].variants[number] for node, number in stage.variant.items()]
    sent = crossing_bytes(network, sharing)
    reduced = sum(REDUCED * (stage.data - 1) * own.parameter_bytes for own in sharing.values())
    traffic = (BOTH_WAYS * sent + reduced / network.micro_batches) / stage.data
    time_s = sum(variant.compute_s for variant in chosen) / stage.data + traffic / network.bytes_per_s
    held = sum(variant.in_flight_bytes * in_flight + variant.fixed_bytes for variant in chosen)
    return StageLoad(time_s, held, in_flight)


def crossing_bytes(network: HybridNetwork, sharing: dict[int, Sharing]) -> float:
    """Return the bytes that enter and leave a stage for a sample, one way."""
    total = 0.0
    for source, reader, n_bytes in network.edges:
        if (source in sharing) != (reader in sharing):
            total += n_bytes
            total += sharing[reader].from_bytes[source] if reader in sharing else sharing[source].to_bytes[reader]
    return total


def stages_document(network: HybridNetwork, stages: Sequence[HybridStage]) -> dict[str, Any]:
    """Return the stages as the published evaluator reads them."""
    ids = network.node_ids
    return {
        "stages": [
            {
                "nodes": sorted(ids[node] for node in stage.variant),
                "dataParallelDegree": stage.data,
                "tensorParallelDegree": stage.tensor,
                "TMPCids": {
                    str(ids[node]): network.sharing[node][stage.tensor].variants[number].name
                    for node, number in sorted(stage.variant.items(), key=lambda item: ids[item[0]])
                },
            }
            for stage in stages
        ]
    }
