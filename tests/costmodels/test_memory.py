"""Bytes that stay and bytes on their way, by hand."""

from hypothesis import given
from hypothesis import strategies as st

from costmodels.memory import op_bytes, peak_activation_bytes, together, working_bytes
from costmodels.workload import Workload
from graphs.ir import Graph, Role
from tests.costmodels.sketches import sketch
from tests.graphs.random_graphs import graphs

TIED = sketch(
    {"x": (5,), "w1": (5, 5), "w2": (5,), "w3": (7,), "b": (3,), "a": (5,), "c": (5,), "d": (5,), "e": (5,)},
    [
        ("aten.linear.default", "x w1 w2 b", "a"),
        ("aten.mul.Tensor", "a w3", "c"),
        ("aten.linear.default", "c w1", "d"),
        ("aten.add.Tensor", "d b b", "e"),
    ],
    "e",
)


def test_a_shared_parameter_counts_once_and_a_shared_buffer_each_time() -> None:
    # op0 has w1, w2 and b; op1 w3; op2 reads w1 again; op3 has its own copy of b, once
    assert op_bytes(TIED).tolist() == [4 * (25 + 5 + 3), 4 * 7, 0, 4 * 3]


def test_operators_with_the_same_parameter_stay_together() -> None:
    assert together(TIED) == ((0, 2),)


def test_groups_that_overlap_are_one() -> None:
    shapes = dict.fromkeys(("x", "w1", "w2", "w3", *(f"a{i}" for i in range(6))), (1,))
    reads = ["x w1", "x w2", "x w3", "x w2 w1", "x", "x w3"]  # op3 ties op0's group to op1's
    graph = sketch(shapes, [("aten.my.default", read, f"a{i}") for i, read in enumerate(reads)])
    assert together(graph) == ((0, 1, 3), (2, 5))


def test_nothing_shared_is_no_group() -> None:
    assert together(sketch({"x": (1,), "b": (1,), "a": (1,)}, [("aten.add.Tensor", "x b", "a")])) == ()


def test_the_peak_of_a_branch() -> None:
    # x 10 ─► a 20 ─► c 30 ──► e 1        op0: x a          30
    #    └──────────► d 5 ──────┘         op1: x a c        60
    #                                     op2: x c d        45     a is dropped after op1
    #                                     op3: c d e        36     x after op2
    graph = sketch(
        {"x": (10,), "a": (20,), "c": (30,), "d": (5,), "e": (1,)},
        [
            ("aten.my.default", "x", "a"),
            ("aten.my.default", "a", "c"),
            ("aten.my.default", "x", "d"),
            ("aten.my.default", "c d", "e"),
        ],
        "e",
    )
    assert peak_activation_bytes(graph) == 4 * 60
    assert working_bytes(graph, Workload(in_flight=3)) == 3 * 4 * 60


def test_a_view_takes_nothing_and_keeps_its_base() -> None:
    # op0: x a 30;  op1: a, seen as v;  op2: a c 50, though only v is read;  op3: v once more, and d: 60
    graph = sketch(
        {"x": (10,), "a": (20,), "v": (4, 5), "c": (30,), "d": (10,)},
        [
            ("aten.my.default", "x", "a"),
            ("aten.view.default", "a", "v"),
            ("aten.my.default", "v", "c"),
            ("aten.my.default", "v c", "d"),
        ],
        "d",
    )
    assert peak_activation_bytes(graph) == 4 * 60


def test_what_nobody_reads_is_dropped_at_once_but_a_result_stays() -> None:
    shapes = {"x": (1,), "a": (50,), "c": (1,), "d": (60,)}
    lines = [("aten.my.default", "x", "a"), ("aten.my.default", "x", "c"), ("aten.my.default", "c", "d")]
    assert peak_activation_bytes(sketch(shapes, lines, "d")) == 4 * 61  # c d
    assert peak_activation_bytes(sketch(shapes, lines, "a d")) == 4 * 111  # a c d


def test_parameters_are_not_on_their_way() -> None:
    graph = sketch(
        {"x": (1,), "w": (9, 9), "t": (9, 9), "a": (2,)},
        [("aten.t.default", "w", "t"), ("aten.my.default", "x t", "a")],
        "a t",
    )
    assert peak_activation_bytes(graph) == 4 * 3


def test_a_graph_without_operators_holds_its_inputs() -> None:
    assert peak_activation_bytes(sketch({"x1": (5,), "x2": (6,)}, [], "x1")) == 4 * 11


@given(graph=graphs(), in_flight=st.integers(1, 5))
def test_the_laws_of_memory(graph: Graph, in_flight: int) -> None:
    peak = peak_activation_bytes(graph)
    moving = [t for t in graph.tensors if t.role in (Role.INPUT, Role.ACTIVATION)]
    results = {name for name in graph.outputs if graph.tensor[name].role in (Role.INPUT, Role.ACTIVATION)}
    assert sum(graph.tensor[name].n_bytes for name in results) <= peak <= sum(t.n_bytes for t in moving)
    assert working_bytes(graph, Workload(in_flight=in_flight)) == peak * in_flight
    read = {name for op in graph.ops for name in op.inputs}
    parameters = sum(t.n_bytes for t in graph.tensors if t.role is Role.PARAMETER and t.name in read)
    buffers = sum(t.n_bytes for op in graph.ops for t in graph.state(op) if t.role is Role.BUFFER)
    assert op_bytes(graph).sum() == parameters + buffers
    grouped = [i for group in together(graph) for i in group]
    assert len(grouped) == len(set(grouped))
