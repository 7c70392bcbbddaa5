"""One micro-batch forward and back, storage by storage, with every sum written out."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.memory.footprints import Footprints
from costmodels.memory.passes import inference_bytes, training_passes
from graphs.footprint import Backward, Footprint, Gradient, Run
from graphs.ir import Graph
from tests.costmodels.sketches import sketch, unrecorded
from tests.graphs.random_graphs import graphs

NOTHING = Run((), 0)


def with_footprints(graph: Graph, *footprints: Footprint | None) -> Graph:
    """The graph as if an importer had recorded that."""
    ops = tuple(replace(op, footprint=footprint) for op, footprint in zip(graph.ops, footprints, strict=True))
    return replace(graph, ops=ops)


def footprint(run: Run, backward: Backward) -> Footprint:
    """The same in inference and training."""
    return Footprint(run, run, backward)


# x 10 ─conv w 5─► a 20 ─relu─► c 20 ─pool─► d 5: relu saves its result, pool what it read and 40 B of numbers besides
CHAIN = with_footprints(
    sketch(
        {"x": (10,), "w": (5,), "a": (20,), "c": (20,), "d": (5,)},
        [("conv", "x w", "a"), ("relu", "a", "c"), ("pool", "c", "d")],
        "d",
    ),
    footprint(Run((80,), 12), Backward(("x",), 0, (Gradient("w", 20),), 8)),
    footprint(Run((80,)), Backward(("c",), 0, (Gradient("a", 80),))),
    Footprint(Run((20,), 40), Run((20,)), Backward(("c",), 40, (Gradient("c", 80),))),
)


def test_forward_only() -> None:
    # conv: x 40, a 80, inside 12; relu: x 40, a 80, c 80; pool: x 40, c 80, d 20, inside 40
    assert inference_bytes(CHAIN) == 40 + 80 + 80


def test_forward_and_back() -> None:
    passes = training_passes(CHAIN)
    assert passes.forward_bytes == 40 + 80 + 80  # relu, as above; pool: x 40, c 80, numbers 40, d 20
    assert passes.kept_bytes == 40 + 80 + 40 + 20
    assert dict(passes.saved_bytes) == {"op0": 40, "op1": 80, "op2": 40 + 20}
    # pool: kept 180, of d 20, of c 80. relu: x 40, c 80, d 20, of c 80, of a 80. conv: x d, of a, of w, 8 inside
    assert passes.backward_bytes == max(180 + 20 + 80, 40 + 80 + 20 + 80 + 80, 60 + 80 + 20 + 8)
    assert passes.left_bytes == 40 + 20 + 20  # x, d, of w
    # forward pass: a 80 beside what is kept at relu, and c 80 before it is; back: of c 80 and a 80
    assert passes.passing_bytes == 160


def test_a_gradient_that_is_there_already_is_no_news() -> None:
    assert training_passes(CHAIN, accumulating=True).left_bytes == 40 + 20


def test_a_stage_holds_what_it_is_sent_and_what_it_sends() -> None:
    # relu alone: a comes, c goes and is saved; back: of c comes, of a goes
    passes = training_passes(CHAIN, [CHAIN.ops[1]])
    assert (passes.kept_bytes, passes.backward_bytes, passes.left_bytes) == (160, 160 + 160, 160 + 80)


def test_two_that_save_one_storage_keep_it_once() -> None:
    passes = training_passes(CHAIN, CHAIN.ops[1:])
    assert passes.kept_bytes == 80 + 80 + 40 + 20  # a, c, numbers, d


def test_a_view_keeps_its_base_and_its_gradient_is_the_one_that_came() -> None:
    graph = with_footprints(
        sketch(
            {"x": (1,), "w": (2,), "a": (10,), "v": (5, 2), "c": (10,)},
            [("my", "x w", "a"), ("view", "a", "v"), ("my", "v", "c")],
            "c",
        ),
        footprint(Run((40,)), Backward((), 0, (Gradient("w", 8),))),
        footprint(Run(("a",)), Backward((), 0, (Gradient("a", "v", True),))),
        footprint(Run((40,)), Backward(("v",), 0, (Gradient("v", 40),))),
    )
    passes = training_passes(graph)
    assert passes.kept_bytes == 4 + 40 + 40  # x, a by way of v, c
    assert passes.saved_bytes["op2"] == 40 + 40
    # op2: kept 84, of c 40, of v 40; op1: x c 44, of v 40; op0: x c 44, of a 40, of w 8
    assert passes.backward_bytes == 84 + 80


def branch(*second: Gradient) -> Graph:
    """a is read twice; what the two readers give back is added."""
    return with_footprints(
        sketch(
            {"x": (1,), "w": (1,), "a": (10,), "c": (10,), "d": (10,)},
            [("my", "x w", "a"), ("my", "a", "c"), ("add", "a c", "d")],
            "d",
        ),
        footprint(Run((40,)), Backward((), 0, (Gradient("w", 4),))),
        footprint(Run((40,)), Backward((), 0, (Gradient("a", 40),))),
        footprint(Run((40,)), Backward((), 0, second)),
    )


def test_a_second_gradient_is_added_in_place() -> None:
    # kept x d 44. op2: of d 40, of a 40, of c 40; op1: of a 40, of c 40, of a once more 40: the sum takes nothing
    passes = training_passes(branch(Gradient("a", 40), Gradient("c", 40)))
    assert passes.backward_bytes == 44 + 120


@pytest.mark.parametrize("first", [Gradient("a", 40, True), Gradient("a", "d", True)])
def test_nothing_is_added_to_a_view_in_place(first: Gradient) -> None:
    # op1 done: of a 40 by way of d or of its own, of a once more 40, and their sum 40
    passes = training_passes(branch(first, Gradient("c", 40)))
    assert passes.backward_bytes == 44 + 120


def test_what_somebody_else_still_reads_is_not_changed() -> None:
    # the residual: both get the gradient that came; when op1 has used it, it is changed in place
    both = training_passes(branch(Gradient("a", "d"), Gradient("c", "d")))
    assert both.backward_bytes == 44 + 80  # of d, of a


def test_a_parameter_has_a_gradient_of_its_own_but_keeps_all_that_a_view_shows() -> None:
    def left(gradient: Gradient) -> int:
        graph = with_footprints(
            sketch({"x": (10,), "w": (10,), "a": (10,)}, [("add", "x w", "a")], "a"),
            footprint(Run((40,)), Backward((), 0, (gradient,))),
        )
        return training_passes(graph).left_bytes

    assert left(Gradient("w", "a")) == 80 + 40
    assert left(Gradient("w", "a", True)) == 80 + 40
    assert left(Gradient("w", 4, True)) == 80 + 4


def test_a_shared_parameter_adds_up_in_one_gradient() -> None:
    graph = with_footprints(
        sketch({"x": (1,), "w": (10,), "a": (1,), "c": (1,)}, [("my", "x w", "a"), ("my", "a w", "c")], "c"),
        footprint(Run((4,)), Backward((), 0, (Gradient("w", 40),))),
        footprint(Run((4,)), Backward((), 0, (Gradient("w", 40), Gradient("a", 4)))),
    )
    passes = training_passes(graph)
    assert passes.left_bytes == 8 + 40
    assert passes.backward_bytes == 8 + 4 + 40 + 40  # x c, of a, of w twice


def test_what_nobody_could_record_is_taken_by_rule_and_named() -> None:
    graph = replace(CHAIN, ops=(CHAIN.ops[0], replace(CHAIN.ops[1], footprint=None), CHAIN.ops[2]))
    assert unrecorded(CHAIN, training=True) == ()
    assert unrecorded(graph) == ("op1",)
    rule = Footprints(graph)
    assert rule.run(graph.ops[1], training=True) == Run((80,))
    assert rule.backward(graph.ops[1]) == Backward(("a", "c"), 0, (Gradient("a", 80),), 80)
    half = replace(graph.ops[1], footprint=Footprint(Run((80,), 3)))  # no backward pass
    graph = replace(graph, ops=(graph.ops[0], half, graph.ops[2]))
    assert (unrecorded(graph), unrecorded(graph, training=True)) == ((), ("op1",))
    assert inference_bytes(graph) == 40 + 80 + 80 + 3


def test_by_rule_no_gradient_comes_to_what_no_parameter_stands_before() -> None:
    graph = sketch({"x": (1,), "a": (1,), "w": (1,), "c": ((1,), "int64")}, [("my", "x", "a"), ("my", "a w", "c")], "c")
    rule = Footprints(graph)
    assert rule.backward(graph.ops[0]) == Backward()
    assert [gradient.tensor for gradient in rule.backward(graph.ops[1]).gradients] == ["w"]
    assert rule.behind == frozenset()  # whole numbers have no gradient
    stopped = sketch({"w": (1,), "a": (1,)}, [("aten.detach.default", "w", "a")], "a")
    assert Footprints(stopped).parameters == ()


@given(graph=graphs(), accumulating=st.booleans())
def test_the_laws_of_passes(graph: Graph, accumulating: bool) -> None:
    passes = training_passes(graph, accumulating=accumulating)
    assert passes.kept_bytes <= min(passes.forward_bytes, passes.backward_bytes)
    assert sum(passes.saved_bytes.values()) == passes.kept_bytes
    assert passes.left_bytes <= passes.backward_bytes
    assert inference_bytes(graph) <= passes.forward_bytes
    parameters = sum(graph.tensor[name].n_bytes for name in Footprints(graph).parameters)
    most = passes.passing_bytes + passes.kept_bytes + (0 if accumulating else parameters)
    assert max(passes.forward_bytes, passes.backward_bytes) <= most
