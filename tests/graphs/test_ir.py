"""Records check themselves, and what follows from them is right: flows, edges, fingerprint."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs.common.errors import InputError
from graphs.ir import ITEM_BYTES, Flow, Graph, Op, Role, Tensor
from tests.graphs.random_graphs import graphs


def activation(name: str) -> Tensor:
    return Tensor(name, (2, 3), "float32", Role.ACTIVATION)


#   image ─► conv ─► h ─┬─► relu ─► r ─┐
#   weight ──┘          ├──────────────┴─► add ─► sum         h is read by both, weight by conv and add
#                       └ (halves) ─► split ─► left, right    nobody reads left and right
GRAPH = Graph(
    name="net",
    ops=(
        Op("conv", "conv2d", ("image", "weight"), ("h",), module="features.0", attrs={"stride": (2, 2), "groups": 1}),
        Op("relu", "relu", ("h",), ("r",)),
        Op("add", "add", ("h", "r", "h", "weight"), ("sum",)),
        Op("split", "split", ("h",), ("left", "right")),
    ),
    tensors=(
        Tensor("image", (1, 3, 8, 8), "float32", Role.INPUT),
        Tensor("weight", (16, 3, 3, 3), "float16", Role.PARAMETER),
        Tensor("table", (5,), "int64", Role.BUFFER),
        *(activation(name) for name in ("h", "r", "sum", "left", "right")),
    ),
    inputs=("image",),
    outputs=("sum", "left"),
)


# --- tensors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "dtype", "n_elements", "n_bytes"),
    [
        ((2, 3, 4), "float32", 24, 24 * 4),
        ((), "int64", 1, 8),
        ((7, 0), "float32", 0, 0),
        ((5,), "bfloat16", 5, 10),
        ((5,), "bool", 5, 5),
        ((2,), "complex128", 2, 32),
        ((2,), "complex32", 2, 8),
    ],
)
def test_a_tensor_takes_its_elements_times_their_size(
    shape: tuple[int, ...], dtype: str, n_elements: int, n_bytes: int
) -> None:
    tensor = Tensor("t", shape, dtype, Role.ACTIVATION)
    assert (tensor.n_elements, tensor.n_bytes) == (n_elements, n_bytes)


def test_the_sizes_of_dtypes_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    assert dict(ITEM_BYTES) == {dtype: getattr(torch, dtype).itemsize for dtype in ITEM_BYTES}


def test_a_negative_dimension_is_named() -> None:
    with pytest.raises(InputError) as error:
        Tensor("t", (2, -1), "float32", Role.INPUT)
    assert str(error.value) == "tensor 't' has the shape (2, -1); dimensions are 0 or more"


def test_an_unknown_dtype_is_named() -> None:
    with pytest.raises(InputError) as error:
        Tensor("t", (2,), "float12", Role.INPUT)
    assert str(error.value).startswith("tensor 't' has the unknown dtype 'float12'; known: bool, uint8, ")


# --- checks of a graph -----------------------------------------------------------------------------------------------


def with_op(number: int, **changes: Any) -> dict[str, Any]:
    """The fields of GRAPH with one operator changed."""
    ops = list(GRAPH.ops)
    ops[number] = replace(ops[number], **changes)
    return {"ops": tuple(ops)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensors": (*GRAPH.tensors, activation("h"))}, "two tensors are named 'h'; names must be unique"),
        (with_op(1, name="conv"), "two operators are named 'conv'; names must be unique"),
        (
            {"inputs": ("image", "photo")},
            "graph 'net' names the tensor 'photo' among its ends but does not describe it",
        ),
        ({"outputs": ("total",)}, "graph 'net' names the tensor 'total' among its ends but does not describe it"),
        (
            {"inputs": ("image", "weight")},
            "tensor 'weight' must be an input by its role and in the list of inputs, or by neither",
        ),
        ({"inputs": ()}, "tensor 'image' must be an input by its role and in the list of inputs, or by neither"),
        (with_op(1, inputs=("x",)), "operator 'relu' reads the tensor 'x', which the graph does not describe"),
        (with_op(1, inputs=("sum",)), "operator 'relu' reads the tensor 'sum' before any operator has written it"),
        (with_op(1, inputs=("r",)), "operator 'relu' reads the tensor 'r' before any operator has written it"),
        (with_op(1, outputs=("x",)), "operator 'relu' writes the tensor 'x', which the graph does not describe"),
        (with_op(1, outputs=("h",)), "operator 'relu' writes the tensor 'h', which is there already"),
        (with_op(1, outputs=("weight",)), "operator 'relu' writes the tensor 'weight', which is there already"),
        (with_op(3, outputs=("right",)), "the output 'left' of graph 'net' is written by no operator"),
    ],
)
def test_a_graph_that_does_not_hold_together_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        replace(GRAPH, **changes)
    assert str(error.value) == message


def test_an_input_or_a_parameter_may_be_an_output() -> None:
    assert replace(GRAPH, outputs=("image", "weight")).outputs == ("image", "weight")


# --- what follows from a graph ---------------------------------------------------------------------------------------


def test_tensors_and_operators_are_found_by_name() -> None:
    assert GRAPH.tensor["weight"].n_bytes == 16 * 3 * 3 * 3 * 2
    assert GRAPH.index == {"conv": 0, "relu": 1, "add": 2, "split": 3}


def test_a_flow_is_an_activation_with_all_its_readers_each_once() -> None:
    assert GRAPH.flows == (Flow("h", 0, (1, 2, 3)), Flow("r", 1, (2,)))


def test_edges_are_pairs_of_operators_once() -> None:
    assert GRAPH.edges == ((0, 1), (0, 2), (0, 3), (1, 2))


def test_two_tensors_between_two_operators_are_two_flows_and_one_edge() -> None:
    cat = Op("cat", "cat", ("right", "left"), ("joined",))
    graph = replace(GRAPH, ops=(*GRAPH.ops, cat), tensors=(*GRAPH.tensors, activation("joined")))
    assert graph.flows[2:] == (Flow("left", 3, (4,)), Flow("right", 3, (4,)))
    assert graph.edges == (*GRAPH.edges, (3, 4))


def test_the_state_of_an_operator_is_what_it_reads_and_nobody_writes() -> None:
    assert [t.name for t in GRAPH.state(GRAPH.ops[0])] == ["weight"]
    assert [t.name for t in GRAPH.state(replace(GRAPH.ops[0], inputs=("table", "weight", "table")))] == [
        "table",
        "weight",
    ]


@given(graphs())
def test_flows_are_the_activations_that_somebody_reads(graph: Graph) -> None:
    for flow in graph.flows:
        assert flow.tensor in graph.ops[flow.writer].outputs
        assert [i for i, op in enumerate(graph.ops) if flow.tensor in op.inputs] == list(flow.readers)
        assert flow.writer < flow.readers[0]
    read = {name for op in graph.ops for name in op.inputs if graph.tensor[name].role is Role.ACTIVATION}
    assert [flow.tensor for flow in graph.flows] == [t for op in graph.ops for t in op.outputs if t in read]


# --- fingerprint -----------------------------------------------------------------------------------------------------


def with_tensor(number: int, **changes: Any) -> dict[str, Any]:
    """The fields of GRAPH with one tensor changed."""
    tensors = list(GRAPH.tensors)
    tensors[number] = replace(tensors[number], **changes)
    return {"tensors": tuple(tensors)}


def test_the_fingerprint_is_twelve_hexadecimal_digits_that_stay() -> None:
    # Pinned: plans and measurements that were kept are found by it.
    assert GRAPH.fingerprint == "6fe68bb10d7a"


@pytest.mark.parametrize(
    "changes",
    [
        with_tensor(0, shape=(2, 3, 8, 8)),
        with_tensor(0, dtype="float64"),
        with_tensor(1, role=Role.BUFFER),
        with_tensor(2, name="positions"),
        with_op(0, name="conv1"),
        with_op(0, kind="conv3d"),
        with_op(0, module="features.1"),
        with_op(0, inputs=("weight", "image")),
        with_op(0, attrs={"stride": (2, 1), "groups": 1}),
        with_op(0, attrs={"stride": (2, 2), "groups": 1.0}),
        with_op(0, attrs={"stride": (2, 2), "groups": True}),
        with_op(0, attrs={"stride": (2, 2), "groups": "1"}),
        with_op(0, attrs={"stride": (2, 2)}),
        with_op(3, outputs=("right", "left")),
        {"ops": (GRAPH.ops[0], GRAPH.ops[1], GRAPH.ops[3], GRAPH.ops[2])},
        {"outputs": ("left", "sum")},
        {"outputs": ("sum",)},
    ],
)
def test_the_fingerprint_changes_with_the_computation(changes: dict[str, Any]) -> None:
    assert replace(GRAPH, **changes).fingerprint != GRAPH.fingerprint


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "another"},
        with_op(0, attrs={"groups": 1, "stride": (2, 2)}),  # the same in another order
    ],
)
def test_the_fingerprint_does_not_change_with_what_does_not_count(changes: dict[str, Any]) -> None:
    assert replace(GRAPH, **changes).fingerprint == GRAPH.fingerprint


@given(graphs(), st.text(max_size=3))
def test_the_name_of_a_graph_never_counts(graph: Graph, name: str) -> None:
    assert replace(graph, name=name).fingerprint == graph.fingerprint
