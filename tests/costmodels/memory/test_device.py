"""Bytes that stay and bytes on their way, by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from costmodels.memory.device import (
    LOOSE_BYTES,
    cache_bytes,
    ends_bytes,
    gradient_bytes,
    op_bytes,
    saved_bytes,
    tied_groups,
    working_bytes,
)
from costmodels.memory.passes import inference_bytes
from costmodels.workload import RecomputeMode, Workload
from graphs.importers.from_torch import program_from_module
from graphs.ir import Graph, Role
from tests.costmodels.memory.exact import device_bytes, held
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
    assert tied_groups(TIED) == ((0, 2),)


def test_groups_that_overlap_are_one() -> None:
    shapes = dict.fromkeys(("x", "w1", "w2", "w3", *(f"a{i}" for i in range(6))), (1,))
    reads = ["x w1", "x w2", "x w3", "x w2 w1", "x", "x w3"]  # op3 ties op0's group to op1's
    graph = sketch(shapes, [("aten.my.default", read, f"a{i}") for i, read in enumerate(reads)])
    assert tied_groups(graph) == ((0, 1, 3), (2, 5))


def test_nothing_shared_is_no_group() -> None:
    assert tied_groups(sketch({"x": (1,), "b": (1,), "a": (1,)}, [("aten.add.Tensor", "x b", "a")])) == ()


def test_the_peak_of_a_branch() -> None:
    # x 10 ─► a 20 ─► c 30 ──► e 1        op0: x a          30
    #    └──────────► d 5 ──────┘         op1: x a c        60
    #                                     op2: x c d        45     a is dropped after op1
    #                                     op3: x c d e      46     the caller holds x
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
    assert inference_bytes(graph) == 4 * 60
    assert working_bytes(graph, Workload(in_flight=3)) == 3 * 4 * 60


def test_a_view_takes_nothing_and_keeps_its_base() -> None:
    # op0: x a 30;  op1: a, seen as v;  op2: x a c 60, though only v is read;  op3: v once more, and d: 70
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
    assert inference_bytes(graph) == 4 * 70


def test_what_nobody_reads_is_dropped_at_once_but_a_result_stays() -> None:
    shapes = {"x": (1,), "a": (50,), "c": (1,), "d": (60,)}
    lines = [("aten.my.default", "x", "a"), ("aten.my.default", "x", "c"), ("aten.my.default", "c", "d")]
    assert inference_bytes(sketch(shapes, lines, "d")) == 4 * 62  # x c d
    assert inference_bytes(sketch(shapes, lines, "a d")) == 4 * 112  # x a c d


def test_parameters_are_not_on_their_way() -> None:
    graph = sketch(
        {"x": (1,), "w": (9, 9), "t": (9, 9), "a": (2,)},
        [("aten.t.default", "w", "t"), ("aten.my.default", "x t", "a")],
        "a t",
    )
    assert inference_bytes(graph) == 4 * 3


def test_a_graph_without_operators_holds_its_inputs() -> None:
    assert inference_bytes(sketch({"x1": (5,), "x2": (6,)}, [], "x1")) == 4 * 11


@given(graph=graphs(), in_flight=st.integers(1, 5))
def test_the_laws_of_memory(graph: Graph, in_flight: int) -> None:
    peak = inference_bytes(graph)
    moving = [t for t in graph.tensors if t.role in (Role.INPUT, Role.ACTIVATION)]
    results = {name for name in graph.outputs if graph.tensor[name].role in (Role.INPUT, Role.ACTIVATION)}
    assert sum(graph.tensor[name].n_bytes for name in results) <= peak <= sum(t.n_bytes for t in moving)
    assert working_bytes(graph, Workload(in_flight=in_flight)) == peak * in_flight
    read = {name for op in graph.ops for name in op.inputs}
    parameters = sum(t.n_bytes for t in graph.tensors if t.role is Role.PARAMETER and t.name in read)
    buffers = sum(t.n_bytes for op in graph.ops for t in graph.state(op) if t.role is Role.BUFFER)
    assert op_bytes(graph).sum() == parameters + buffers
    grouped = [i for group in tied_groups(graph) for i in group]
    assert len(grouped) == len(set(grouped))


# --- training --------------------------------------------------------------------------------------------------------

ADAM = Workload(mode="training", optimizer="adam", micro_batches=6)

LINE = sketch(  # x 10 ─op0 w1 5─► a 20 ─op1 b 3─► c 30 ─op2 w2 7─► d 40; by rule, as nobody recorded it
    {"x": (10,), "w1": (5,), "b": (3,), "w2": (7,), "a": (20,), "c": (30,), "d": (40,)},
    [("aten.my.default", "x w1", "a"), ("aten.my.default", "a b", "c"), ("aten.my.default", "c w2", "d")],
    "d",
)


def test_a_parameter_takes_its_gradient_and_the_states_of_the_optimizer() -> None:
    training = {name: Workload(mode="training", optimizer=name) for name in ("sgd", "momentum", "adam")}
    assert op_bytes(LINE).tolist() == op_bytes(LINE, Workload()).tolist() == [20, 12, 28]
    assert op_bytes(LINE, training["sgd"]).tolist() == [2 * 20, 12, 2 * 28]
    assert op_bytes(LINE, training["momentum"]).tolist() == [3 * 20, 12, 3 * 28]
    assert op_bytes(LINE, training["adam"]).tolist() == [4 * 20 + 4, 12, 4 * 28 + 4]  # and a count of its steps


def test_a_shared_parameter_is_trained_once() -> None:
    assert op_bytes(TIED, Workload(mode="training")).tolist() == [2 * 4 * (25 + 5) + 12, 2 * 4 * 7, 0, 4 * 3]


def test_whoever_saves_a_tensor_first_is_charged() -> None:
    # op0 saves x and a; op1 a again and c; op2 c again and d
    assert saved_bytes(LINE, ADAM).tolist() == [4 * 30, 4 * 30, 4 * 40]
    assert saved_bytes(LINE, Workload()).tolist() == [0, 0, 0]


def test_inputs_and_results_are_kept_whatever_is_recomputed() -> None:
    # x 10 at op0, which reads it first, d 40 at op2, which writes it; of TIED x 5 and e 5
    assert ends_bytes(LINE, ADAM).tolist() == [40, 0, 160]
    assert ends_bytes(TIED, ADAM).tolist() == [20, 0, 0, 20]
    assert ends_bytes(LINE, Workload()).tolist() == [0, 0, 0]


def test_gradients_are_as_large_as_trained_parameters_each_once() -> None:
    assert gradient_bytes(LINE).tolist() == [20, 0, 28]  # b is a buffer
    assert gradient_bytes(TIED).tolist() == [4 * (25 + 5), 4 * 7, 0, 0]


def test_a_stage_that_recomputes_keeps_what_comes_from_outside() -> None:
    # as above, but the one micro-batch that waits in the first stage keeps x 10 only; of gpipe's five in the second,
    # each keeps a 20 and d 40
    workload = Workload(mode="training", micro_batches=6, recompute="full")
    first = 4 * (5 + 5 + 10 + 30 + 20 + 5 + 5)
    second = 4 * (3 + 7 + 7 + 90 + 40 + 30 + 7 + 37)
    assert device_bytes(LINE, workload, [[0], [1, 2]]) == (first + LOOSE_BYTES, second + LOOSE_BYTES)
    many = replace(workload, schedule="gpipe")
    assert device_bytes(LINE, many, [[0], [1, 2]])[1] == second + 4 * 5 * (20 + 40) + LOOSE_BYTES


def test_what_passes_in_training_is_gradients_or_the_step_of_the_optimizer() -> None:
    # backward of op2: of d 40, c 30, w2 7, once more while they are computed 37; op1: c 30, a 20, a 20 more
    sgd = Workload(mode="training", micro_batches=2)
    assert working_bytes(LINE, sgd) == 4 * (40 + 30 + 7 + 37) + LOOSE_BYTES
    lines = [("aten.my.default", "x w1", "a"), ("aten.my.default", "a w2", "c")]
    big = sketch({"x": (1,), "w1": (100,), "w2": (100,), "a": (1,), "c": (1,)}, lines, "c")
    step_bytes = 3 * 400  # of w2 the root of the second moment and that divided, of w1 still the latter
    assert working_bytes(big, ADAM) == step_bytes + LOOSE_BYTES


def test_a_device_by_hand() -> None:
    # state 15 (w1 5, b 3, w2 7), gradients 12, two moments 24 and two counts of steps 2
    # kept of a micro-batch x a c d 100; while op2 goes back d 40, c 30, w2 7, and 37 more
    resident = 4 * (15 + 12 + 24 + 2)
    assert device_bytes(LINE, ADAM) == (resident + 4 * (100 + 40 + 30 + 7 + 37) + LOOSE_BYTES,)


@pytest.mark.parametrize(("schedule", "held"), [("1f1b", (2, 1)), ("gpipe", (6, 6))])
def test_stages_hold_as_many_micro_batches_as_the_schedule_says(schedule: str, held: tuple[int, int]) -> None:
    workload = Workload(mode="training", micro_batches=6, schedule=schedule)
    # op0: w1 and its gradient; kept x a; back: gradient of a 20, of w1 5, and 5 more
    # op1, op2: b, w2 and its gradient; kept a c d; back, as above: 40 + 30 + 7 + 37
    first = 4 * (5 + 5 + held[0] * 30 + 20 + 5 + 5)
    second = 4 * (3 + 7 + 7 + held[1] * 90 + 40 + 30 + 7 + 37)
    assert device_bytes(LINE, workload, [[0], [1, 2]]) == (first + LOOSE_BYTES, second + LOOSE_BYTES)


def test_in_inference_each_device_holds_what_is_in_flight() -> None:
    # op0: x a; op1 and op2: a c d, as a is held by whoever sent it
    assert device_bytes(LINE, Workload(in_flight=3), [[0], [2, 1]]) == (4 * (5 + 3 * 30), 4 * (10 + 3 * 90))


@given(
    graph=graphs(),
    optimizer=st.sampled_from(["sgd", "momentum", "adam"]),
    micro_batches=st.integers(1, 3),
    recompute=st.sampled_from(("none", "full")),
)
def test_what_adds_up_is_never_less_than_what_happens(
    graph: Graph, optimizer: str, micro_batches: int, recompute: RecomputeMode
) -> None:
    workload = Workload("training", optimizer=optimizer, micro_batches=micro_batches, schedule="gpipe")
    workload = replace(workload, recompute=recompute)
    (happens,) = device_bytes(graph, workload)
    saved = saved_bytes(graph, workload)
    waiting = np.minimum(ends_bytes(graph, workload), saved) if recompute == "full" else saved
    kept = saved.sum() + (held(workload, 1, 0) - 1) * waiting.sum()
    unread = sum(graph.tensor[name].n_bytes for name in graph.inputs) * micro_batches  # of which no operator is charged
    assert op_bytes(graph, workload).sum() + kept + unread + working_bytes(graph, workload) >= happens


class OneToken(nn.Module):
    """Attention of one token to itself and to those before, whose keys and values the caller keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        query, key, value = self.project(x).chunk(3, dim=-1)
        keys, values = torch.cat((keys, key), dim=1), torch.cat((values, value), dim=1)
        seen = nn.functional.scaled_dot_product_attention(query, keys, values)
        return seen + x, keys, values


def test_a_cache_is_an_input_that_comes_back_longer() -> None:
    inputs = (torch.randn(2, 1, 8), torch.randn(2, 15, 8), torch.randn(2, 15, 8))
    graph = program_from_module(OneToken().eval(), inputs).graph
    grown = {op.name: n_bytes for op, n_bytes in zip(graph.ops, cache_bytes(graph), strict=True) if n_bytes}
    assert grown == {"cat": 4 * 2 * 8 * (15 + 16), "cat_1": 4 * 2 * 8 * (15 + 16)}
