"""Sets of operators in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs.ir import Graph, Op, Role, Tensor
from planner.explanations.regions import Region, TimeShare, parts, regions


def graph(*modules: str) -> Graph:
    """Operators 0, 1, ... in these modules."""
    ops = tuple(Op(str(i), "aten.relu.default", ("x",), (), module) for i, module in enumerate(modules))
    return Graph("net", ops, (Tensor("x", (1,), "float32", Role.INPUT),), ("x",), ())


def said(network: Graph, ops: str, limit: int = 6) -> str:
    return ", ".join(map(str, regions(network, map(int, ops.split()), limit)))


NET = graph("stem.conv", "stem.relu", "block.left", "block.left", "block.right", "head.linear", "")


def test_a_module_that_is_meant_whole_is_named_at_the_least_depth() -> None:
    assert said(NET, "0 1") == "stem"
    assert said(NET, "0") == "stem.conv"
    assert said(NET, "0 1 2 3 4 5 6") == "everything"
    assert said(NET, "") == ""


def test_neighbours_make_a_range_within_one_module() -> None:
    assert said(NET, "0 1 2 3 4") == "stem – block"
    assert said(NET, "2 3 4 5 6") == "block – 6"
    assert said(NET, "4 5") == "block.right, head"
    assert regions(NET, (0, 1, 2, 3, 4)) == (Region("stem", "block", 5, 5),)


def test_a_range_names_what_both_ends_share_once() -> None:
    layers = graph("net.layer.0", "net.layer.0", "net.layer.1", "net.layer.2", "net.layer.3", "net.norm")
    assert said(layers, "2 3") == "net.layer.1 – 2"
    assert said(layers, "0 2 3") == "net.layer.0:0, net.layer.1 – 2"
    assert said(graph("a.x", "a", "b"), "0 1 2") == "everything"
    assert said(graph("a.x", "a", "a.y", "b"), "0 1") == "a.x – 1"  # the operator 1 stands in a itself


def test_operators_of_a_module_with_several_are_named_with_it() -> None:
    assert said(NET, "2") == "block.left:2"
    assert said(NET, "6") == "6"


def test_what_would_take_too_many_pieces_says_how_much_is_meant() -> None:
    """Every other operator of m: three pieces, more than two."""
    striped = graph("m.a", "m.b", "m.c", "m.d", "m.e", "last")
    assert said(striped, "0 2 4 5") == "m.a, m.c, m.e, last"
    assert said(striped, "0 2 4 5", limit=2) == "m (3 of 5), last"
    assert regions(striped, (0, 2, 4, 5), 2)[0] == Region("m", "m", 3, 5)


def test_the_first_division_may_take_as_many_pieces_as_there_are() -> None:
    assert said(graph(*"abcde"), "0 2 4", limit=1) == "a, c, e"


MODULES = st.lists(st.sampled_from(["", "a", "a.b", "a.c", "a.b.c", "d", "d.e"]), min_size=1, max_size=12)


@given(MODULES, st.data())
def test_every_operator_is_in_one_region(modules: list[str], data: st.DataObject) -> None:
    ops = data.draw(st.sets(st.integers(0, len(modules) - 1)))
    found = regions(graph(*modules), ops, data.draw(st.integers(1, 8)))
    assert sum(region.n_ops for region in found) == len(ops)
    assert all(0 < region.n_ops <= region.n_of for region in found)


def test_seconds_are_divided_where_they_are_many() -> None:
    # stem 1 + 1 of 10; block 6 of 10 is more than a third: left 2 + 2 (two operators, so divided once more), right 2
    found = parts(NET, dict(enumerate([1.0, 1.0, 2.0, 2.0, 2.0, 1.0, 1.0])))
    assert found == (
        TimeShare("block.left:2 – 3", 4.0, 0.4, 2, 2),
        TimeShare("stem", 2.0, 0.2, 2),
        TimeShare("block.right", 2.0, 0.2, 1),
        TimeShare("head – 6", 2.0, 0.2, 2, 2),
    )


def test_layers_that_are_alike_are_one_part() -> None:
    layers = graph("first", "layer.0", "layer.0", "layer.1", "layer.1", "layer.2", "layer.2")
    # layer is 6 of 7, layer.0 to layer.2 are 2 of 7 each; without 5, layer.2 is not like the others
    assert parts(layers, dict.fromkeys(range(7), 1.0)) == (
        TimeShare("layer.0 – 2", 6.0, 6 / 7, 6, 3),
        TimeShare("first", 1.0, 1 / 7, 1),
    )
    assert [(part.name, part.alike) for part in parts(layers, dict.fromkeys((0, 1, 2, 3, 4, 6), 1.0))] == [
        ("layer.0 – 1", 2),
        ("first", 1),
        ("layer.2", 1),
    ]


def test_parts_of_nothing() -> None:
    assert parts(NET, {}) == ()
    assert parts(NET, {0: 0.0, 1: 0.0}) == (TimeShare("everything", 0.0, 0.0, 2),)


@given(MODULES, st.data())
def test_the_parts_sum_to_the_whole(modules: list[str], data: st.DataObject) -> None:
    cost = st.integers(0, 5).map(float)
    seconds = data.draw(st.dictionaries(st.integers(0, len(modules) - 1), cost))
    found = parts(graph(*modules), seconds)
    assert sum(part.seconds for part in found) == pytest.approx(sum(seconds.values()))
    assert sum(part.n_ops for part in found) == len(seconds)
    assert [part.seconds for part in found] == sorted((part.seconds for part in found), reverse=True)
    if any(seconds.values()):
        assert sum(part.share for part in found) == pytest.approx(1)
