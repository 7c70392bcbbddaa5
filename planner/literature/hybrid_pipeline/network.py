"""Network: nodes with their costs under every tensor-parallel degree, and the devices of the pipeline, read from JSON.

::

    {"maxDevices": 8, "maxMemoryPerDevice": 8e9, "bandwidth": 25e9, "mbsInBatch": 1920,
     "nodes": [{"id": 0, "TMPCs": {"1": [{"id": "vanilla", "timePerSample": 0.001, "parameterSize": 1e6,
                                          "memoryUsageA": 1e6, "memoryUsageB": 2e6,
                                          "syncTimeFw": {"7": 0}, "syncTimeBw": {"1": 0}}, ..], "2": [..]}}, ..],
     "edges": [{"sourceId": 0, "destId": 1, "communicationCost": 8192.0}, ..]}

A node has one or several variants for each tensor-parallel degree, such as with and without recomputation. The
variants of a degree have the same parameters and messages. ``memoryUsageA`` is needed for every micro-batch in flight,
``memoryUsageB`` once. Times are in seconds, sizes in bytes. Further keys are ignored.

Source: Tarnawski, Narayanan and Phanishayee, Piper: Multidimensional Planner for DNN Parallelization, NeurIPS 2021;
https://github.com/msr-fiddle/piper.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from graphs.common.brief import brief
from graphs.common.errors import InputError
from graphs.common.json_object import JsonObject
from planner.problem.blocks import by_priority


class NodeVariant(NamedTuple):
    """One way to run a node under a tensor-parallel degree."""

    name: Any  # as the file has it
    compute_s: float  # of a sample
    in_flight_bytes: float  # for every micro-batch in flight
    fixed_bytes: float


class Sharing(NamedTuple):
    """A node under a tensor-parallel degree."""

    variants: tuple[NodeVariant, ...]
    parameter_bytes: float
    from_bytes: Mapping[int, float]  # by the position of a node that is read; sent to share what arrives
    to_bytes: Mapping[int, float]  # by the position of a reader


class Traffic(NamedTuple):
    """An edge between positions of nodes."""

    source: int
    reader: int
    n_bytes: float


@dataclass(frozen=True)
class HybridNetwork:
    """A network to train, and the devices.

    Attributes:
        node_ids: the ids in the file, in a topological order; all other fields use positions in this order.
        sharing: for each node, by tensor-parallel degree.
        edges: the tensors between nodes.
        devices: the number of devices.
        memory_bytes: of each device.
        micro_batches: of a step.
        bytes_per_s: of each device's link.
    """

    node_ids: tuple[int, ...]
    sharing: tuple[Mapping[int, Sharing], ...]
    edges: tuple[Traffic, ...]
    devices: int
    memory_bytes: float
    micro_batches: int
    bytes_per_s: float

    __repr__ = brief

    @property
    def degrees(self) -> tuple[int, ...]:
        """The tensor-parallel degrees that some node has."""
        return tuple(sorted({degree for by_degree in self.sharing for degree in by_degree}))


def hybrid_network(document: Mapping[str, Any]) -> HybridNetwork:
    """Return a network from the content of its JSON file.

    Raises:
        InputError: if a field is missing or of the wrong kind, nodes wait for each other in a circle, or the variants
            of a degree differ in more than time and memory.
    """
    top = JsonObject("the file", document)
    contents: dict[int, JsonObject] = {}
    for position, content in enumerate(top.records("nodes")):
        node = JsonObject(f"node number {position + 1} of the list", content).whole("id")
        if node in contents:
            raise InputError(f"two nodes have the id {node}; give each its own")
        contents[node] = JsonObject(f"node {node}", content)
    if not contents:
        raise InputError("there are no nodes; list at least one in nodes")
    edges = _edges(top, contents)
    ids = list(contents)
    at = {node: position for position, node in enumerate(ids)}
    order = by_priority([0.0] * len(ids), [(at[u], at[v]) for u, v, _ in edges])
    if len(order) < len(ids):
        stuck = ", ".join(str(ids[p]) for p in sorted(set(range(len(ids))) - set(order))[:4])
        raise InputError(f"nodes wait for each other in a circle, among them {stuck}; remove an edge of it")
    place = {ids[old]: new for new, old in enumerate(order)}
    node_ids = tuple(ids[old] for old in order)
    around = {node: ({u for u, v, _ in edges if v == node}, {v for u, v, _ in edges if u == node}) for node in ids}
    return HybridNetwork(
        node_ids=node_ids,
        sharing=tuple(_by_degree(contents[node], around[node], place) for node in node_ids),
        edges=tuple(Traffic(place[u], place[v], n_bytes) for u, v, n_bytes in edges),
        devices=top.count("maxDevices", 1),
        memory_bytes=top.number("maxMemoryPerDevice"),
        micro_batches=top.count("mbsInBatch", 1),
        bytes_per_s=top.above_zero("bandwidth"),
    )


def _edges(top: JsonObject, nodes: Mapping[int, JsonObject]) -> list[tuple[int, int, float]]:
    edges = []
    for position, content in enumerate(top.records("edges")):
        record = JsonObject(f"edge number {position + 1} of the list", content)
        source, reader = record.whole("sourceId"), record.whole("destId")
        for end in (source, reader):
            if end not in nodes:
                raise InputError(f"the edge from {source} to {reader} names node {end}, which does not exist; list it")
        edges.append((source, reader, record.number("communicationCost")))
    return edges


def _by_degree(node: JsonObject, around: tuple[set[int], set[int]], place: Mapping[int, int]) -> Mapping[int, Sharing]:
    """Return the costs of a node under each tensor-parallel degree."""
    table = node.object("TMPCs")
    found = {}
    for key in table.content:
        if not str(key).isdecimal() or int(key) < 1:
            raise InputError(f"{node.where} has the degree {key!r} in TMPCs; it must be a number such as '2'")
        records = [JsonObject(f"a variant of degree {key} of {node.where}", item) for item in table.records(key)]
        if records:
            found[int(key)] = _sharing(node.where, records, around, place)
    if not found:
        raise InputError(f"{node.where} has no TMPCs; give it one variant of one degree at least")
    return found


def _sharing(
    where: str, records: Sequence[JsonObject], around: tuple[set[int], set[int]], place: Mapping[int, int]
) -> Sharing:
    """Return the variants of one degree."""
    common = []
    for record in records:
        fw, bw = record.object("syncTimeFw"), record.object("syncTimeBw")
        came = {place[u]: fw.number(str(u)) for u in sorted(around[0])}
        went = {place[v]: bw.number(str(v)) for v in sorted(around[1])}
        common.append((record.number("parameterSize"), came, went))
    if any(other != common[0] for other in common[1:]):
        raise InputError(
            f"{where} has variants of one degree that differ in parameterSize, syncTimeFw or syncTimeBw; let "
            "them differ in time and memory alone"
        )
    variants = tuple(
        NodeVariant(
            record.content.get("id"),
            record.number("timePerSample"),
            record.number("memoryUsageA"),
            record.number("memoryUsageB"),
        )
        for record in records
    )
    return Sharing(variants, *common[0])
