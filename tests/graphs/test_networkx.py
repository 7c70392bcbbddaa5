"""To networkx and back, and after changes made there."""

import networkx as nx
import pytest
from hypothesis import given

from graphs.common.errors import InputError
from graphs.ir import Graph, Op, Role, Tensor
from graphs.networkx import from_networkx, to_networkx
from tests.graphs.random_graphs import graphs

#   x ─► split ─► left (8 bytes) ──► join ─► y        both halves go from split to join; relu only reads left
#                 right (4 bytes) ─┘
#                 left ─► relu ─► r
GRAPH = Graph(
    name="net",
    ops=(
        Op("split", "split", ("x",), ("left", "right")),
        Op("relu", "relu", ("left",), ("r",)),
        Op("join", "cat", ("left", "right"), ("y",)),
    ),
    tensors=(
        Tensor("x", (3,), "float32", Role.INPUT),
        Tensor("left", (2,), "float32", Role.ACTIVATION),
        Tensor("right", (1,), "float32", Role.ACTIVATION),
        Tensor("r", (2,), "float32", Role.ACTIVATION),
        Tensor("y", (3,), "float32", Role.ACTIVATION),
    ),
    inputs=("x",),
    outputs=("y",),
)


def test_nodes_carry_operators_and_edges_the_bytes_of_all_their_tensors() -> None:
    digraph = to_networkx(GRAPH)
    assert list(digraph.nodes(data=True)) == [
        ("split", {"op": GRAPH.ops[0], "position": 0}),
        ("relu", {"op": GRAPH.ops[1], "position": 1}),
        ("join", {"op": GRAPH.ops[2], "position": 2}),
    ]
    assert sorted(digraph.edges(data=True)) == [
        ("split", "join", {"tensors": ("left", "right"), "n_bytes": 8 + 4}),
        ("split", "relu", {"tensors": ("left",), "n_bytes": 8}),
    ]
    assert digraph.graph == {"name": "net", "tensors": GRAPH.tensors, "inputs": ("x",), "outputs": ("y",)}


@given(graphs())
def test_every_graph_comes_back(graph: Graph) -> None:
    digraph = to_networkx(graph)
    assert nx.is_directed_acyclic_graph(digraph)
    assert sorted(digraph.edges) == sorted((graph.ops[a].name, graph.ops[b].name) for a, b in graph.edges)
    assert from_networkx(digraph) == graph


def test_the_order_of_positions_is_kept_however_the_nodes_were_added() -> None:
    digraph = to_networkx(GRAPH)
    reversed_digraph: nx.DiGraph[str] = nx.DiGraph(**digraph.graph)
    reversed_digraph.add_nodes_from(reversed(list(digraph.nodes(data=True))))
    reversed_digraph.add_edges_from(digraph.edges)
    assert from_networkx(reversed_digraph) == GRAPH


def test_a_node_may_be_removed() -> None:
    digraph = to_networkx(GRAPH)
    digraph.remove_node("relu")
    assert [op.name for op in from_networkx(digraph).ops] == ["split", "join"]


def test_a_node_may_be_added_without_a_position() -> None:
    digraph = to_networkx(GRAPH)
    digraph.graph["tensors"] += (Tensor("z", (3,), "float32", Role.ACTIVATION),)
    digraph.add_node("sigmoid", op=Op("sigmoid", "sigmoid", ("y",), ("z",)))
    digraph.add_edge("join", "sigmoid")
    assert [op.name for op in from_networkx(digraph).ops] == ["split", "relu", "join", "sigmoid"]


def test_a_node_that_others_read_from_may_not_be_removed() -> None:
    digraph = to_networkx(GRAPH)
    digraph.remove_node("split")
    with pytest.raises(InputError, match="operator 'relu' reads the tensor 'left' before any operator has written it"):
        from_networkx(digraph)


@pytest.mark.parametrize("key", ["tensors", "inputs", "outputs"])
def test_a_missing_attribute_is_named(key: str) -> None:
    digraph = to_networkx(GRAPH)
    del digraph.graph[key]
    with pytest.raises(InputError) as error:
        from_networkx(digraph)
    assert str(error.value) == f"the networkx graph has no attribute '{key}'; start from to_networkx(graph)"


def test_a_node_without_an_operator_is_named() -> None:
    digraph = to_networkx(GRAPH)
    digraph.add_edge("join", "extra")
    with pytest.raises(InputError) as error:
        from_networkx(digraph)
    assert str(error.value) == "the node 'extra' has no attribute 'op'; add it with op=Op(...)"


def test_a_cycle_is_refused() -> None:
    digraph = to_networkx(GRAPH)
    digraph.add_edge("join", "split")
    with pytest.raises(InputError) as error:
        from_networkx(digraph)
    assert str(error.value) == "the networkx graph has a cycle; a network's operators must form a DAG"
