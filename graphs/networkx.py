"""Converts a graph to a networkx.DiGraph and back."""

from typing import Any

import networkx as nx

from graphs.common.errors import InputError
from graphs.ir import Graph


def to_networkx(graph: Graph) -> "nx.DiGraph[str]":
    """One node for each operator, under its name, and one edge for each pair of a writer and a reader.

    Attributes of a node are ``op`` and ``position``, of an edge ``tensors`` (their names) and ``n_bytes``, and of the
    graph ``name``, ``tensors``, ``inputs`` and ``outputs``.
    """
    digraph: nx.DiGraph[str] = nx.DiGraph(
        name=graph.name, tensors=graph.tensors, inputs=graph.inputs, outputs=graph.outputs
    )
    for position, op in enumerate(graph.ops):
        digraph.add_node(op.name, op=op, position=position)
    for flow in graph.flows:
        for reader in flow.readers:
            ends = graph.ops[flow.writer].name, graph.ops[reader].name
            tensors = (*digraph.edges[ends]["tensors"], flow.tensor) if digraph.has_edge(*ends) else (flow.tensor,)
            digraph.add_edge(*ends, tensors=tensors, n_bytes=sum(graph.tensor[t].n_bytes for t in tensors))
    return digraph


def from_networkx(digraph: "nx.DiGraph[str]") -> Graph:
    """The inverse of `to_networkx`. Nodes may have been removed or added; edges follow from the operators' inputs.

    Operators keep the order of their ``position`` where that order is topological.

    Raises:
        InputError: if a node has no ``op``, the graph lacks its attributes, or the edges contain a cycle.
    """
    missing = [key for key in ("tensors", "inputs", "outputs") if key not in digraph.graph]
    if missing:
        raise InputError(f"the networkx graph has no attribute '{missing[0]}'; start from to_networkx(graph)")
    nodes: dict[str, dict[str, Any]] = dict(digraph.nodes(data=True))
    for name, attributes in nodes.items():
        if "op" not in attributes:
            raise InputError(f"the node '{name}' has no attribute 'op'; add it with op=Op(...)")
    try:
        order = list(nx.lexicographical_topological_sort(digraph, key=lambda n: nodes[n].get("position", len(nodes))))
    except nx.NetworkXUnfeasible as error:
        raise InputError("the networkx graph has a cycle; a network's operators must form a DAG") from error
    return Graph(
        name=digraph.graph.get("name", ""),
        ops=tuple(nodes[name]["op"] for name in order),
        tensors=tuple(digraph.graph["tensors"]),
        inputs=tuple(digraph.graph["inputs"]),
        outputs=tuple(digraph.graph["outputs"]),
    )
