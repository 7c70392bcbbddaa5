"""Graph, cluster and workload into a CostTable: measured where there is a measurement, else by the roofline."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.cluster import Cluster, Device, Link
from costmodels.flops import work_of
from costmodels.measured import Profile, op_keys
from costmodels.memory import op_bytes, together, working_bytes
from costmodels.roofline import roofline_s
from costmodels.table import CostTable, Floats, Ints, Source
from costmodels.workload import Workload
from graphs.ir import Graph


def tabulate(graph: Graph, cluster: Cluster, workload: Workload, profiles: Mapping[str, Profile]) -> CostTable:
    """Every number that a planner needs.

    Args:
        graph: with the shapes of one micro-batch.
        cluster: devices and links.
        workload: what the network is used for.
        profiles: measurements by fingerprint; a device uses the one that its ``profile`` names.
    """
    return assemble(graph, cluster, workload, *_times(graph, cluster, profiles))


def assemble(
    graph: Graph, cluster: Cluster, workload: Workload, forward_s: Floats, source: NDArray[np.str_]
) -> CostTable:
    """The table of operator times that are known already; everything else follows from the three descriptions.

    Args:
        graph: with the shapes of one micro-batch.
        cluster: devices and links.
        workload: what the network is used for.
        forward_s: [n_ops, n_devices], seconds.
        source: [n_ops, n_devices], where each time came from.
    """
    flow_bytes = np.array([float(graph.tensor[flow.tensor].n_bytes) for flow in graph.flows])
    wires = _wires(cluster, flow_bytes)
    return CostTable(
        ops=tuple(op.name for op in graph.ops),
        devices=tuple(device.name for device in cluster.devices),
        forward_s=forward_s,
        op_bytes=op_bytes(graph),
        working_bytes=working_bytes(graph, workload),
        flows=graph.flows,
        flow_bytes=flow_bytes,
        wire=wires.wire,
        wire_s=wires.wire_s,
        wire_latency_s=wires.wire_latency_s,
        channel=wires.channel,
        capacity_bytes=np.array([float(device.memory_bytes) for device in cluster.devices]),
        overlap=cluster.overlap,
        together=together(graph),
        source=source,
        handover_s=np.array([device.handover_s for device in cluster.devices]),
    )


def guessed_kinds(graph: Graph) -> tuple[str, ...]:
    """Kinds of operator whose work the roofline can only guess, in order of appearance."""
    return work_of(graph).guessed


def _times(graph: Graph, cluster: Cluster, profiles: Mapping[str, Profile]) -> tuple[Floats, NDArray[np.str_]]:
    """Seconds and their sources, both [n_ops, n_devices], computed once for devices that are alike."""
    work, keys = work_of(graph), op_keys(graph)
    known: dict[object, tuple[Floats, NDArray[np.str_]]] = {}

    def column(device: Device) -> tuple[Floats, NDArray[np.str_]]:
        peaks = tuple(sorted(device.flops_per_s.items()))
        alike = (peaks, device.memory_bytes_per_s, device.launch_s, device.profile)
        if alike not in known:
            profile = profiles.get(device.profile)
            measured = [profile.ops.get(key) if profile else None for key in keys]
            seconds = roofline_s(work, device)
            for i, measurement in enumerate(measured):
                if measurement is not None:
                    seconds[i] = measurement.seconds
            known[alike] = seconds, np.array([Source.MEASURED if m else Source.ROOFLINE for m in measured], dtype=str)
        return known[alike]

    columns = [column(device) for device in cluster.devices]
    return np.column_stack([c[0] for c in columns]), np.column_stack([c[1] for c in columns])


@dataclass(frozen=True)
class _Wires:
    """The links as arrays; see `CostTable`."""

    wire: Ints
    wire_s: Floats
    wire_latency_s: Floats
    channel: Ints


def _wires(cluster: Cluster, flow_bytes: Floats) -> _Wires:
    n = len(cluster.devices)
    wire, channel = np.full((n, n), -1, dtype=np.int64), np.full((n, n), -1, dtype=np.int64)
    channels: dict[object, int] = {}
    kinds: dict[tuple[object, ...], int] = {}
    examples: list[Link] = []
    for pair, link in sorted(cluster.link.items()):
        channel[pair] = channels.setdefault(link.channel or pair, len(channels))
        alike = (link.bytes_per_s, link.latency_s, link.points)
        wire[pair] = kinds.setdefault(alike, len(kinds))
        if wire[pair] == len(examples):
            examples.append(link)
    wire_s = np.array([link.seconds(flow_bytes) for link in examples]).reshape(len(examples), len(flow_bytes))
    return _Wires(wire, wire_s.T, np.array([link.latency_s for link in examples]), channel)
