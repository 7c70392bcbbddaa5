"""What records show of themselves stays short, however large the network is."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from costmodels.measured import Measurement, Profile
from graphs.common.brief import MOST, brief
from planner.plans.plan import Plan
from planner.plans.prediction import predict
from planner.problem.result import Result, Status
from planner.solvers.solve import solve
from simulator.stages import split_stages
from tests.planner.view.samples import chain_plan, fork_plan, random_plan, training_plan

LONGEST = 2500  # characters


@cache
def large() -> Plan:
    return random_plan(0, n_ops=1500, n_devices=40)


def records(value: Any, depth: int = 0) -> Iterator[Any]:
    """All records within a value, of collections the first and the last."""
    if is_dataclass(value):
        yield value
        for field in fields(value):
            yield from records(getattr(value, field.name), depth + 1)
    elif isinstance(value, Mapping):
        yield from records(list(value.values()), depth)
    elif isinstance(value, list | tuple) and value and depth < 6:
        for item in (value[0], value[-1]):
            yield from records(item, depth + 1)


def results() -> list[Any]:
    plan, training = large(), training_plan()
    key = {f"key {n}": Measurement(1.0, 0.1, 3) for n in range(1000)}
    return [
        plan,
        plan.problem,
        plan.evaluation,
        predict(plan, 1),
        split_stages(plan.table, plan.placement),
        Result(Status.FEASIBLE, plan.placement, 1.0, 0.5, 2.0, "one"),
        solve(chain_plan(["a"] * 50, 2).problem, time_limit_s=1),
        Profile("abc", {"cpu": "x" * 500}, key, {}, {2: key}),
        training,
        training.training_run,
    ]


@pytest.mark.attack("first-try")
def test_no_record_of_a_large_network_is_long() -> None:
    seen: dict[str, int] = {}
    for record in (record for result in results() for record in records(result)):
        for text in (repr(record), str(record)):
            name = type(record).__name__
            seen[name] = max(seen.get(name, 0), len(text))
    assert {"Plan", "Graph", "CostTable", "Problem", "Timeline", "Cluster", "Placement", "Profile"} <= seen.keys()
    assert {name: length for name, length in seen.items() if length > LONGEST} == {}


@pytest.mark.attack("first-try")
def test_a_plan_is_printed_in_ten_lines() -> None:
    lines = str(large()).splitlines()
    assert len(lines) == 10
    assert max(map(len, lines)) < 120
    assert "\n" not in repr(large())
    assert str(fork_plan()) == (
        "fork for throughput: 6 operators on 2 of 2 devices of desk\n"
        "  micro-batches of 2, 4 in flight, 2 KiB between devices for each\n"
        "  10 ms by chain-dp; no plan can be more than 10.00% better (feasible)\n"
        "  cpu0: 5 operators, 10 ms, 19.3 KiB of 977 KiB\n"
        "  cpu1: 1 operators, 3 ms, 19 KiB of 977 KiB"
    )
    assert "steps of 2 micro-batches of 1 by gpipe" in str(training_plan())
    assert "; no plan for these steps can be more than " in str(training_plan())  # as others may be faster


@dataclass
class Thing:
    small: tuple[int, ...]
    one: tuple[str, ...]
    large: list[int]
    table: dict[str, float]
    array: Any
    text: str
    none: None = None


def test_small_values_are_whole_and_large_ones_cut() -> None:
    thing = Thing((1, 2), ("a",), list(range(1000)), {"a": 1.0}, np.zeros((3, 5)), "x" * 999)
    cut = f"'{'x' * (MOST // 2 - 1)} … {'x' * (MOST // 2 - 1)}'"
    assert brief(thing) == (
        "Thing(small=(1, 2), one=('a',), large=[0, 1, 2, 3, … 1,000 in all], table={'a': 1.0}, "
        f"array=<float64, 3×5>, text={cut}, none=None)"
    )


def test_pytest_tells_which_part_of_a_graph_differs() -> None:
    graph = fork_plan().graph
    other = replace(graph, ops=(replace(graph.ops[0], kind="other"), *graph.ops[1:]))
    with pytest.raises(AssertionError) as error:
        assert graph == other
    assert "differing attribute ops" in str(error.value)
