"""Conflicts: the smallest set of demands that cannot be met, and by how much."""

from math import inf

import numpy as np
import pytest

from graphs.rewrites.fuse import Fuse
from planner.problem.blocks import merge_blocks
from planner.problem.constraints import contiguous, forbid, pin, together
from planner.problem.problem import Goal
from planner.solvers.conflict import Conflict, Request, find_conflict, least_missing_bytes
from simulator.training import TrainingStep
from tests.costmodels.parts import table_with
from tests.planner.explanations.small import make_graph
from tests.planner.problem.problems import make_table

GRAPH = make_graph({"a": "m", "b": "m", "c": "", "d": ""}, {"b": "a", "c": "b", "d": "c"})
FLOWS = [(0, (1,), 1.0), (1, (2,), 1.0), (2, (3,), 1.0)]
TABLE = make_table([[1, 1]] * 4, FLOWS, op_bytes=[10, 20, 30, 40], capacity_bytes=[60, 60])


def test_without_a_conflict_there_is_none() -> None:
    assert find_conflict(Request(TABLE, GRAPH, Goal.THROUGHPUT), [pin("a", "dev0"), together("b", "c")]) is None


def test_a_pin_against_a_ban() -> None:
    demands = [together("c", "d"), pin("m", "dev0"), forbid("b", "dev0"), contiguous()]
    conflict = find_conflict(Request(TABLE, GRAPH, Goal.THROUGHPUT), demands)
    assert conflict is not None
    assert (conflict.constraints, conflict.memories) == ((pin("m", "dev0"), forbid("b", "dev0")), ())
    assert str(conflict) == (
        "'pin m to dev0' and 'forbid b on dev0' cannot be met at once: no device is left for operator 'op1'; "
        "leave out one of them"
    )


def test_pins_apart_of_what_was_fused_into_one_say_so_and_name_the_way_out() -> None:
    fused = Fuse((("b", "c"),))(GRAPH)
    asked = Request(make_table([[1, 1]] * 3, FLOWS[:2]), fused, Goal.THROUGHPUT)
    demands = [pin("a", "dev0"), pin("b", "dev0"), pin("c", "dev1")]
    assert str(find_conflict(asked, demands)) == (
        "'pin b to dev0' and 'pin c to dev1' cannot be met at once: no device is left for operator 'op1', as b and c "
        "are fused into 'b'; leave out one of them, or keep them apart with --rewrites none (rewrites='none' in Python)"
    )
    asked = Request(make_table([[1, 1]] * 3, FLOWS[:2]), fused, Goal.THROUGHPUT)
    through = find_conflict(asked, [pin("a", "dev0"), together("a", "b"), pin("c", "dev1")])
    assert through is not None
    assert through.fused is not None
    itself = find_conflict(asked, [pin("b", "dev0"), forbid("b", "dev0")])
    assert itself is not None
    assert itself.fused is None


def test_a_pin_against_the_memory_says_by_how_much() -> None:
    # c and d need 30 + 40 = 70 of the 60 bytes of dev0; where a is does not matter
    conflict = find_conflict(
        Request(TABLE, GRAPH, Goal.LATENCY), [pin("a", "dev1"), pin("c", "dev0"), pin("d", "dev0")]
    )
    assert conflict is not None
    assert str(conflict) == (
        "'pin c to dev0' and 'pin d to dev0' and the memory of dev0 cannot be met at once: "
        "'dev0' is over by 10 B at least, however the rest is placed; leave out one of them"
    )


def test_together_against_the_memory_of_all() -> None:
    conflict = find_conflict(
        Request(TABLE, GRAPH, Goal.THROUGHPUT), [together("b", "c", "d")]
    )  # 90 bytes on one device
    assert conflict is not None
    assert conflict.constraints == (together("b", "c", "d"),)
    assert conflict.memories == ("dev0", "dev1")


def test_memory_alone() -> None:
    table = make_table([[1, 1]] * 4, FLOWS, op_bytes=[10, 20, 30, 40], capacity_bytes=[50, 30])
    conflict = find_conflict(Request(table, GRAPH, Goal.THROUGHPUT), [contiguous()])
    assert conflict is not None
    assert (conflict.constraints, conflict.memories) == ((), ("dev0", "dev1"))
    assert str(conflict).startswith("the memory of dev0, dev1 is not enough: ")
    assert str(conflict).endswith("over by 20 B at least, however the rest is placed; add memory or devices")


def test_whole_operators_that_cannot_be_packed() -> None:
    # 3 times 30 bytes in 45 + 45: enough in all, but two never fit on one device
    table = make_table([[1, 1]] * 3, [], op_bytes=[30, 30, 30], capacity_bytes=[45, 45])
    graph = make_graph({"a": "", "b": "", "c": ""}, {})
    conflict = find_conflict(Request(table, graph, Goal.THROUGHPUT), [])
    assert conflict is not None
    assert conflict.because == "whole operators cannot be packed into the memory that is left"


def test_one_constraint_against_the_links() -> None:
    table = make_table([[1, 1]] * 4, FLOWS, link_s=inf)
    conflict = find_conflict(Request(table, GRAPH, Goal.THROUGHPUT), [pin("a", "dev0"), pin("d", "dev1")])
    assert conflict is not None
    assert conflict.constraints == (pin("a", "dev0"), pin("d", "dev1"))
    assert conflict.because == "what must share a device, be linked or be contiguous has no place"


@pytest.mark.parametrize(
    ("forward_s", "capacity", "missing"),
    [
        ([[1, 1], [1, 1]], [10, 10], 10),  # 30 bytes in 20
        ([[1, inf], [1, inf]], [10, 100], 20),  # both only on the first
        ([[1, 1], [1, 1]], [30, 0], 0),
    ],
)
def test_the_least_memory_that_is_missing(forward_s: list[list[float]], capacity: list[float], missing: float) -> None:
    blocks = merge_blocks(make_table(forward_s, op_bytes=[10, 20], capacity_bytes=capacity))
    assert np.sum(least_missing_bytes(blocks)) == pytest.approx(missing, abs=1e-5)


@pytest.mark.parametrize(
    ("step", "collides"),
    [
        (
            TrainingStep("1f1b", 4),
            False,
        ),  # two operators of 10 bytes each, twice on the first device
        (TrainingStep("gpipe", 4), True),  # four of them
        (TrainingStep("gpipe", 4, recompute="full"), False),
    ],
)
def test_a_training_step_needs_what_its_schedule_holds(step: TrainingStep, collides: bool) -> None:
    table = table_with(TABLE, op_bytes=np.zeros(4), saved_bytes=np.full(4, 10.0), capacity_bytes=np.full(2, 45.0))
    table = table_with(table, backward_s=table.forward_s, flow_bytes=np.zeros(3))
    conflict = find_conflict(Request(table, GRAPH, Goal.TRAINING, step=step), [])
    assert (conflict is not None) == collides
    if conflict is not None:
        assert conflict.memories == ("dev0", "dev1")


MANY = 600


def many() -> Request:
    """A line of operators on two devices; the first and the last share a parameter."""
    names = [f"op{i}" for i in range(MANY)]
    graph = make_graph(dict.fromkeys(names, "m"), dict(zip(names[1:], names, strict=False)))
    flows = [(i, (i + 1,), 0.0) for i in range(MANY - 1)]
    return Request(make_table([[1, 1]] * MANY, flows, together=((0, MANY - 1),)), graph, Goal.THROUGHPUT)


def test_of_hundreds_of_pins_the_two_that_collide_are_named_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.solvers.conflict.solve", None)
    pins = [pin(f"op{i}", f"dev{i * 2 // MANY}") for i in range(MANY)]
    conflict = find_conflict(many(), pins, time_limit_s=0.0)
    assert conflict is not None
    assert (conflict.constraints, conflict.memories) == ((pins[0], pins[-1]), ())
    assert conflict.because == "'op0' and 'op599' must share a device, and none is left for all of them"


def test_without_time_it_says_that_fewer_may_do(monkeypatch: pytest.MonkeyPatch) -> None:
    # of three operators of 30 bytes two are on one device, which has 47 bytes at most: it takes searches to see that
    table = make_table([[1, 1]] * 4, FLOWS, op_bytes=[30, 30, 30, 1], capacity_bytes=[45, 47])
    asked, demands = Request(table, GRAPH, Goal.THROUGHPUT), [pin("d", "dev0"), contiguous(), together("a", "d")]
    known = find_conflict(asked, demands)
    assert known is not None
    assert (known.smallest, known.constraints, known.memories) == (True, (), ("dev0", "dev1"))

    class OneSearch:
        """A deadline after one search."""

        left_s = 1.0

        def __init__(self, _: float) -> None:
            self._looks = iter((False,))

        @property
        def over(self) -> bool:
            return next(self._looks, True)

    monkeypatch.setattr("planner.solvers.conflict.Deadline", OneSearch)
    late = find_conflict(asked, demands)
    assert late is not None
    assert not late.smallest
    assert {*demands} >= {*late.constraints}
    assert late.memories == ("dev0", "dev1")
    assert "cannot be met at once (perhaps some of them can: there was no time to try): " in str(late)


def test_where_no_demand_is_to_blame_there_is_no_conflict() -> None:
    table = make_table([[inf, 1], [1, inf]], [(0, (1,), 1.0)], link_s=inf)
    graph = make_graph({"a": "m", "b": "m"}, {"b": "a"})
    assert find_conflict(Request(table, graph, Goal.THROUGHPUT), [contiguous()]) is None


def test_a_message_names_a_few_of_many_demands() -> None:
    pins = tuple(pin(f"op{i}", "dev0") for i in range(40))
    said = str(Conflict(pins, ("dev0",), "there is no room", smallest=False))
    assert said.startswith("'pin op0 to dev0' and ")
    assert " and 'pin op5 to dev0' and 34 more and the memory of dev0 cannot be met at once" in said
