"""Constraints: what patterns name, what becomes of the problem, and what is refused."""

from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs.common.errors import InputError
from graphs.ir import Graph
from graphs.rewrites.fuse import Fuse
from graphs.rewrites.imported_names import number_of
from planner.problem.blocks import merge_blocks
from planner.problem.constraints import (
    CollisionError,
    Constraint,
    NamedOps,
    Rule,
    constrained,
    contiguous,
    forbid,
    pin,
    together,
    whole,
)
from planner.problem.problem import Goal
from planner.solvers.solve import solve
from simulator.placement import Placement
from tests.planner.explanations.small import make_graph
from tests.planner.problem.problems import make_table, value

MODULES = {"stem": "stem", "left": "block.left", "right": "block.right", "cat": "block", "head": "head"}
READS = {"left": "stem", "right": "stem", "cat": "left right", "head": "cat"}
GRAPH = make_graph(MODULES, READS)
FLOWS = [(0, (1, 2), 1.0), (1, (3,), 1.0), (2, (3,), 1.0), (3, (4,), 1.0)]
TABLE = make_table([[1, 2], [2, 1], [3, 3], [1, 1], [2, 4]], FLOWS)


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("stem", (0,)),
        ("block", (1, 2, 3)),  # a module and everything in it
        ("block.left", (1,)),
        ("block.*", (1, 2)),
        ("*t", (1, 2, 3)),  # left and right, block.left and block.right by their modules, and cat
        ("[lr]*", (1, 2)),
        ("*", (0, 1, 2, 3, 4)),
    ],
)
def test_a_pattern_names_operators_and_modules(pattern: str, named: tuple[int, ...]) -> None:
    assert NamedOps(GRAPH).matching([pattern]) == named


def test_every_operator_of_a_fusion_names_the_fused_one() -> None:
    modules, reads = {"pad": "", "conv": "stem", "relu": "act", "head": ""}, {"relu": "conv", "head": "relu"}
    graph = make_graph(modules, {"conv": "pad", **reads}, parameters={"conv": "w"})
    ops = tuple(replace(op, kind="aten.conv2d.default") if op.name == "conv" else op for op in graph.ops)
    tensors = tuple(replace(each, dtype="float32") for each in graph.tensors)
    fused = Fuse((("pad", "conv", "relu"),))(replace(graph, ops=ops, tensors=tensors))
    assert [op.name for op in fused.ops] == ["conv", "head"]  # not its first member
    for name in ("pad", "conv", "relu", "stem", "act", "p?d"):
        assert NamedOps(fused).matching([name]) == (0,)
    assert [number_of(fused, name) for name in ("pad", "relu", "head")] == [0, 0, 1]


def test_an_operator_that_was_split_names_all_of_its_parts() -> None:
    graph = make_graph({"up[0/2]": "", "up[1/2]": "", "up": "", "head": ""}, {"up": "up[0/2] up[1/2]", "head": "up"})
    parts = make_graph({"up[0/2]": "", "up[1/2]": "", "head": ""}, {"head": "up[0/2] up[1/2]"})
    assert NamedOps(parts).matching(["up"]) == (0, 1)
    assert NamedOps(parts).matching(["up[1/2]"]) == (1,)  # no pattern, although it has brackets
    assert number_of(graph, "up") == 2
    with pytest.raises(InputError, match=r"operator 'up' is split into 'up\[0/2\]', 'up\[1/2\]'; name one"):
        number_of(parts, "up")


def test_several_patterns_name_what_each_of_them_names() -> None:
    assert NamedOps(GRAPH).matching(["head", "block.left"]) == (1, 4)


def test_a_pattern_that_names_nothing_is_refused_with_what_is_close() -> None:
    with pytest.raises(InputError) as error:
        NamedOps(GRAPH).matching(["block.lift"])
    assert str(error.value) == "nothing in 'net' matches 'block.lift'; there are block.left, block.right, block"


def test_pinned_operators_cannot_run_elsewhere() -> None:
    problem = constrained(TABLE, GRAPH, Goal.THROUGHPUT, [pin("block", "dev1")])
    assert problem.table.forward_s.tolist() == [[1, 2], [inf, 1], [inf, 3], [inf, 1], [2, 4]]
    assert problem.goal is Goal.THROUGHPUT


def test_forbidden_operators_can_run_elsewhere() -> None:
    problem = constrained(TABLE, GRAPH, Goal.LATENCY, [forbid("head", "dev0"), forbid("stem", "dev1")])
    assert problem.table.forward_s.tolist() == [[1, inf], [2, 1], [3, 3], [1, 1], [inf, 4]]


def test_devices_are_named_by_name_pattern_or_kind() -> None:
    for devices in (("dev0", "dev1"), ("dev*",), ("gpu", "dev0")):
        problem = constrained(TABLE, GRAPH, Goal.COST, [pin("*", *devices)], ["cpu", "gpu"])
        assert np.isfinite(problem.table.forward_s).all()
    problem = constrained(TABLE, GRAPH, Goal.COST, [pin("*", "gpu")], ["cpu", "gpu"])
    assert np.isinf(problem.table.forward_s[:, 0]).all()


def test_a_device_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InputError) as error:
        constrained(TABLE, GRAPH, Goal.COST, [pin("stem", "gpu0")], ["cpu", "cpu"])
    assert str(error.value) == "'pin stem to gpu0' names the device 'gpu0'; there are dev0, dev1"


def test_operators_kept_together_are_a_group_beside_those_of_the_table() -> None:
    table = make_table(TABLE.forward_s, FLOWS, together=((0, 4),))
    problem = constrained(table, GRAPH, Goal.THROUGHPUT, [together("block.left", "cat"), together("head")])
    assert problem.table.together == ((0, 4), (1, 3))


def test_whole_modules_are_a_group_each() -> None:
    modules = {"a": "h.0.attn", "b": "h.0.mlp", "c": "h.0", "d": "h.1.mlp", "e": "h.1", "f": "h.2", "g": ""}
    graph = make_graph(modules, {})
    table = make_table([[1, 2]] * len(modules), [])
    problem = constrained(table, graph, Goal.THROUGHPUT, [whole("h.*")])
    assert problem.table.together == ((0, 1, 2), (3, 4))  # neither h itself nor modules of a single operator
    assert constrained(table, graph, Goal.THROUGHPUT, [whole("h.0", "h.2")]).table.together == ((0, 1, 2),)
    assert (
        merge_blocks(constrained(table, graph, Goal.COST, [whole("*")]).table).n == 2
    )  # h, with all that is in it, and g


def test_an_operator_is_whole_in_any_case() -> None:
    with pytest.raises(InputError) as error:
        constrained(TABLE, make_graph({"a": "", "b": "m"}, {}), Goal.COST, [whole("a")])
    assert str(error.value) == "'whole a' names operators and no module; an operator is always whole, leave it out"


def test_contiguous_operators_are_those_named_or_all() -> None:
    assert constrained(TABLE, GRAPH, Goal.COST, [contiguous("block")]).contiguous == {1, 2, 3}
    assert constrained(TABLE, GRAPH, Goal.COST, [contiguous()]).contiguous == {0, 1, 2, 3, 4}
    assert constrained(TABLE, GRAPH, Goal.COST, []).contiguous == frozenset()


def test_an_operator_without_a_device_is_a_collision() -> None:
    with pytest.raises(CollisionError) as error:
        constrained(TABLE, GRAPH, Goal.COST, [pin("block", "dev0"), forbid("cat", "dev0")])
    assert str(error.value) == "no device is left for operator 'op3'"


def test_constraints_say_what_they_are() -> None:
    named = (pin("a", "x", "y"), forbid("b.*", "x"), together("a", "b"), whole("d.*"), whole("*"), contiguous("c"))
    texts = [str(constraint) for constraint in (*named, contiguous())]
    assert texts == [
        "pin a to x or y",
        "forbid b.* on x",
        "together a, b",
        "whole d.*",
        "whole *",
        "contiguous c",
        "contiguous",
    ]


NO_OPERATORS = "'{}' names no operators; give a name, a module or a pattern such as 'head.*'"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((Rule.PIN, ("a",)), "'pin a' needs a device; only pin and forbid name devices"),
        ((Rule.TOGETHER, ("a", "b"), ("x",)), "'together a, b' takes no device; only pin and forbid name devices"),
        (
            (Rule.FORBID, ("",), ("x",)),
            "'forbid' names no operators; give a name, a module or a pattern such as 'head.*'",
        ),
        ((Rule.TOGETHER, ()), NO_OPERATORS.format("together")),
    ],
)
def test_half_a_constraint_is_refused(arguments: tuple[Rule, tuple[str, ...]], told: str) -> None:
    with pytest.raises(InputError) as error:
        Constraint(*arguments)
    assert str(error.value) == told


CONSTRAINTS = st.one_of(
    st.builds(pin, st.sampled_from(list(MODULES)), st.sampled_from(["dev0", "dev1"])),
    st.builds(forbid, st.sampled_from(list(MODULES)), st.sampled_from(["dev0", "dev1"])),
    st.builds(together, st.sampled_from(list(MODULES)), st.sampled_from(list(MODULES))),
    st.builds(whole, st.sampled_from([*MODULES.values(), "block.*", "*e*"])),
    st.builds(contiguous),
)


def kept(graph: Graph, constraint: Constraint, device: tuple[int, ...]) -> bool:
    """Whether a placement keeps a constraint, from its words alone."""
    ops = NamedOps(graph).matching(constraint.patterns)
    match constraint.rule:
        case Rule.PIN:
            return all(f"dev{device[op]}" in constraint.devices for op in ops)
        case Rule.FORBID:
            return not any(f"dev{device[op]}" in constraint.devices for op in ops)
        case Rule.TOGETHER:
            return len({device[op] for op in ops}) == 1
        case Rule.WHOLE:
            named = {module for module in MODULES.values() if fnmatchcase(module, constraint.patterns[0])}
            return all(len({device[op] for op in NamedOps(graph).matching([module])}) == 1 for module in named)
        case Rule.CONTIGUOUS:  # on two devices: tensors go one way at most
            ways = {(device[a], device[b]) for a, b in TABLE.edges if device[a] != device[b]}
            return len(ways) <= 1


@settings(max_examples=40)
@given(st.lists(CONSTRAINTS, max_size=3), st.sampled_from([Goal.THROUGHPUT, Goal.COST]))
def test_the_best_answer_is_the_best_of_those_that_keep_them(constraints: list[Constraint], goal: Goal) -> None:
    free = constrained(TABLE, GRAPH, goal, [])
    placements = [p for p in product(range(2), repeat=5) if all(kept(GRAPH, c, p) for c in constraints)]
    best = min((value(free, Placement(p)) for p in placements), default=inf)
    try:
        problem = constrained(TABLE, GRAPH, goal, constraints)
    except CollisionError:
        assert best == inf
        return
    assert solve(problem, "exhaustive", gap=0.0).objective_s == pytest.approx(best)


def test_a_device_with_a_typo_is_told_the_nearest() -> None:
    with pytest.raises(InputError) as error:
        constrained(TABLE, GRAPH, Goal.THROUGHPUT, [pin("stem", "dve1")])
    assert str(error.value) == (
        "'pin stem to dve1' names the device 'dve1'; there are dev0, dev1; did you mean 'dev1'?"
    )
