"""Placement problems in the public format of Tarnawski et al. (NeurIPS 2020), as a `Problem` and back.

::

    {"maxFPGAs": 2, "maxCPUs": 1, "maxSizePerFPGA": 1e9,
     "nodes": [{"id": 0, "supportedOnFpga": 1, "cpuLatency": 9.5, "fpgaLatency": 1.0, "isBackwardNode": 0,
                "colorClass": 3, "size": 4e6}, ...],
     "edges": [{"sourceId": 0, "destId": 1, "cost": 0.2}, ...]}

Times are in milliseconds there and in seconds here. "FPGA" stands for any accelerator. ``colorClass`` (same class, same
device) and ``size`` (bytes on an accelerator) may be left out; further keys are ignored. A node's out-edges carry one
tensor, so they cost the same: what it takes to bring it from an accelerator to the host's memory, or back.

Source: Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020; their inputs
are at https://github.com/msr-fiddle/dnn-partitioning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from costmodels.table import Source
from graphs.common.arrays import Floats
from graphs.common.brief import Brief
from graphs.common.documents import read_json
from graphs.common.errors import InputError
from graphs.common.json_object import JsonObject
from graphs.ir import Flow
from planner.literature.placement.offload import Offload, OffloadTable
from planner.problem.blocks import by_priority
from planner.problem.problem import Goal, Problem
from simulator.placement import Placement

S_PER_MS = 1e-3
MOST_DEVICES = 4096  # every pair of them has a link
EQUAL_COST = 1e-6  # milliseconds by which the costs of a node's out-edges may differ, as in the public evaluator


@dataclass(frozen=True)
class PlacementProblem(Brief):
    """A `Problem` and the names that its file has for things."""

    problem: Problem  # operators in a topological order; devices are the accelerators, then the CPUs
    node_ids: tuple[int, ...]  # [n_ops], the node of each operator

    def assignment(self, placement: Placement) -> dict[str, int]:
        """Return the file's device of each node: accelerators from 0, then CPUs; sorted by node."""
        return {str(node): device for node, device in sorted(zip(self.node_ids, placement.device, strict=True))}


def read_problem(path: Path, goal: Goal, contiguous: bool = False) -> PlacementProblem:
    """Read a placement problem.

    Args:
        path: a JSON file.
        goal: what is minimised.
        contiguous: whether forward nodes must be placed so that devices follow one another.

    Raises:
        InputError: if the file is missing, not JSON, or describes no problem. The message names the node or edge.
    """
    document = read_json(path, "placement problem")
    try:
        return problem_from_dict(document, goal, contiguous)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def problem_from_dict(document: Mapping[str, Any], goal: Goal, contiguous: bool = False) -> PlacementProblem:
    """Read a placement problem from the content of its JSON file.

    For latency, where CPUs never wait for each other, all CPUs are one device.

    Raises:
        InputError: if a field is missing or of the wrong kind, nodes wait for each other in a circle, or there is no
            device for a node.
    """
    top = JsonObject("the file", document)
    k, n_cpus = top.count("maxFPGAs"), top.count("maxCPUs")
    if not k + n_cpus:
        raise InputError("there are no devices: maxFPGAs and maxCPUs are both 0; give one of them at least 1")
    n_cpus = min(n_cpus, 1) if goal is Goal.LATENCY else n_cpus
    if k + n_cpus > MOST_DEVICES:
        raise InputError(f"maxFPGAs and maxCPUs are {k:.5g} and {n_cpus:.5g}; give at most {MOST_DEVICES:,} devices")
    nodes = _nodes(top)
    readers, cost_ms = _edges(top, nodes)
    node_ids = _topological(nodes, readers)
    op_of = {node: op for op, node in enumerate(node_ids)}
    ordered = [nodes[node] for node in node_ids]
    table = _table(
        (k, n_cpus, top.number("maxSizePerFPGA") if k else 0.0),
        ordered,
        [tuple(sorted(op_of[reader] for reader in readers[node])) for node in node_ids],
        np.asarray([cost_ms.get(node, 0.0) for node in node_ids]) * S_PER_MS,
    )
    forward = (op for op, node in enumerate(ordered) if not node.backward)
    return PlacementProblem(Problem(table, goal, frozenset(forward if contiguous else ())), node_ids)


@dataclass(frozen=True)
class _PublicNode:
    node: int
    on_accelerator_s: float  # infinite if it cannot run there
    on_cpu_s: float
    backward: bool
    color: object  # None without one
    n_bytes: float


def _nodes(top: JsonObject) -> dict[int, _PublicNode]:
    """Return the nodes by their ids."""
    nodes: dict[int, _PublicNode] = {}
    for position, content in enumerate(top.records("nodes")):
        node = JsonObject(f"node number {position + 1} of the list", content).whole("id")
        if node in nodes:
            raise InputError(f"two nodes have the id {node}; give each its own")
        record = JsonObject(f"node {node}", content)
        nodes[node] = _PublicNode(
            node,
            record.number("fpgaLatency") * S_PER_MS if record.flag("supportedOnFpga") else inf,
            record.number("cpuLatency") * S_PER_MS,
            record.flag("isBackwardNode"),
            record.label("colorClass"),
            record.number("size", 0.0),
        )
    if not nodes:
        raise InputError("there are no nodes; list at least one in nodes")
    return nodes


def _edges(top: JsonObject, nodes: Mapping[int, _PublicNode]) -> tuple[dict[int, set[int]], dict[int, float]]:
    """Return the readers of each node, and the milliseconds to move its output."""
    readers: dict[int, set[int]] = {node: set() for node in nodes}
    cost_ms: dict[int, float] = {}
    for position, content in enumerate(top.records("edges")):
        record = JsonObject(f"edge number {position + 1} of the list", content)
        source, dest = record.whole("sourceId"), record.whole("destId")
        for end in (source, dest):
            if end not in nodes:
                raise InputError(f"the edge from {source} to {dest} names node {end}, which does not exist; list it")
        cost = JsonObject(f"the edge from {source} to {dest}", content).number("cost")
        if abs(cost_ms.setdefault(source, cost) - cost) > EQUAL_COST:
            raise InputError(
                f"the edges that leave node {source} cost {cost_ms[source]:g} and {cost:g}; they carry one tensor, "
                "so give them the same cost, or a node to each tensor"
            )
        readers[source].add(dest)
    return readers, cost_ms


def _topological(nodes: Mapping[int, _PublicNode], readers: Mapping[int, set[int]]) -> tuple[int, ...]:
    """Return the nodes in a topological order; of those that may come next, the one with the smallest id."""
    ids = sorted(nodes)
    number = {node: position for position, node in enumerate(ids)}
    edges = [(number[node], number[reader]) for node in ids for reader in readers[node]]
    order = tuple(ids[position] for position in by_priority([0.0] * len(ids), edges))
    if len(order) < len(ids):
        names = " -> ".join(map(str, _circle(readers, set(ids) - set(order))))
        raise InputError(f"nodes wait for each other in a circle: {names}; remove one of these edges")
    return order


def _circle(readers: Mapping[int, set[int]], stuck: set[int]) -> list[int]:
    """Return a cycle among nodes that wait for each other; it ends with its first node."""
    writer = {reader: node for node in sorted(stuck, reverse=True) for reader in readers[node]}
    path = [min(stuck)]
    while path[-1] not in path[:-1]:
        path.append(writer[path[-1]])
    return path[path.index(path[-1]) :][::-1]


def _table(
    devices: tuple[int, int, float],
    nodes: Sequence[_PublicNode],
    readers: Sequence[tuple[int, ...]],
    cost_s: Floats,
) -> OffloadTable:
    """Return the cost table of some accelerators and CPUs; all devices exchange tensors through the host's memory."""
    k, n_cpus, capacity_bytes = devices
    n_devices = k + n_cpus
    for node in nodes:
        if node.on_accelerator_s == inf and not n_cpus:
            raise InputError(f"node {node.node} is not supported on accelerators and maxCPUs is 0; allow a CPU")
    writers = [op for op, after in enumerate(readers) if after]
    host = np.arange(n_devices) >= k
    moved_s = np.where(host, 0.0, cost_s[writers, None])
    colors: dict[object, list[int]] = {}
    for op, node in enumerate(nodes):
        if node.color is not None:
            colors.setdefault(node.color, []).append(op)
    away = ~np.eye(n_devices, dtype=bool)
    return OffloadTable(
        ops=tuple(str(node.node) for node in nodes),
        devices=(*(f"accelerator {d}" for d in range(k)), *(f"CPU {d}" for d in range(k, n_devices))),
        forward_s=np.where(
            host,
            np.asarray([node.on_cpu_s for node in nodes])[:, None],
            np.asarray([node.on_accelerator_s for node in nodes])[:, None],
        ),
        op_bytes=np.asarray([node.n_bytes for node in nodes]),
        working_bytes=0.0,
        flows=tuple(Flow(f"{nodes[op].node}", op, readers[op]) for op in writers),
        flow_bytes=np.zeros(len(writers)),
        link_class=np.where(away, 0, -1),
        link_s=np.zeros((len(writers), 1)),
        link_latency_s=np.zeros(1),
        channel=np.where(away, 0, -1),
        capacity_bytes=np.where(host, inf, capacity_bytes),
        overlap=False,
        together=tuple(tuple(ops) for ops in colors.values() if len(ops) > 1),
        source=np.full((len(nodes), n_devices), str(Source.GIVEN)),
        offload=Offload(store_s=moved_s, fetch_s=moved_s, host=host),
    )
