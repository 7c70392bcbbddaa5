"""Who sends what to whom, by hand and on random placements."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from graphs.importers.from_torch import program_from_module
from graphs.kernels.functions import inputs_of
from graphs.program.program import Program
from planner.plans.plan import Plan
from planner.runtime.distributed.transport.layout import (
    COORDINATOR,
    INPUTS,
    RankLayout,
    Routes,
    find_routes,
    rank_layout,
)
from planner.runtime.stages.compile import outputs_of
from simulator.placement import Placement
from simulator.stages import Stage, split_stages
from tests.planner.runtime.small import NETWORKS, alternating, make_plan, program_of
from tests.simulator.tables import placements


class Skips(nn.Module):
    """x ─► a ─► b ─► c, where c reads a and x too; d is of no use."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = x + 1
        b = a.relu()
        c = b * a - x
        return c, a


def found(plan: Plan, extra: int) -> tuple[RankLayout, tuple[Stage, ...], Routes]:
    layout = rank_layout(plan, len(plan.placement.used) + extra)
    stages = split_stages(plan.table, plan.placement)
    return layout, stages, find_routes(plan.graph, stages, layout)


def written(routes: Routes) -> list[tuple[int, int, int, list[str]]]:
    return [(b.stage, b.src, b.dst, [tensor.name for tensor in b.tensors]) for b in routes.payloads]


def skips() -> Program:
    return program_from_module(Skips(), (torch.ones(2),))


def test_a_skip_goes_straight_to_its_reader_and_once_to_each_rank() -> None:
    program = skips()
    assert [op.name for op in program.graph.ops] == ["add", "relu", "mul", "sub"]
    plan = make_plan(program, Placement((0, 1, 2, 2)))
    _, _, routes = found(plan, 1)
    assert written(routes) == [
        (INPUTS, 0, 1, ["x"]),
        (INPUTS, 0, 2, []),  # the word that a micro-batch begins
        (INPUTS, 0, 3, ["x"]),
        (0, 1, 0, ["add"]),  # it is an output
        (0, 1, 2, ["add"]),
        (0, 1, 3, ["add"]),
        (1, 2, 3, ["relu"]),
        (2, 3, 0, ["sub"]),
    ]
    assert routes.awaited(0) == ((0, 2),)
    assert routes.awaited(3) == ((0, 1),)
    assert [payload.dst for payload in routes.behind[0]] == [0, 2, 3]
    assert routes.between(1, 3) == (routes.into[0, 3],)


def test_within_a_rank_nothing_is_sent() -> None:
    program = skips()
    plan = make_plan(program, Placement((0, 1, 0, 1)))
    _, _, routes = found(plan, 0)  # the coordinator is beside device 0
    assert written(routes) == [
        (INPUTS, 0, 1, ["x"]),
        (0, 0, 1, ["add"]),
        (1, 1, 0, ["relu"]),
        (2, 0, 1, ["mul"]),
        (3, 1, 0, ["sub"]),
    ]


def test_one_device_beside_the_front_has_nobody_to_talk_to() -> None:
    plan = make_plan(skips(), Placement((1, 1, 1, 1)))
    assert found(plan, 0)[2].payloads == ()


def test_the_front_hears_of_a_stage_that_nobody_reads() -> None:
    class Idle(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            values, _ = x.sort()
            x.argsort()
            return values

    program = program_from_module(Idle(), (torch.ones(2),))
    names = [op.name for op in program.graph.ops]
    if "argsort" not in names:
        pytest.skip("torch.export has dropped what nobody reads")
    plan = make_plan(program, Placement(tuple(int(name == "argsort") for name in names)))
    assert (names.index("argsort"), 2, 0, []) in written(found(plan, 1)[2])


def check_delivery(plan: Plan, layout: RankLayout, stages: Sequence[Stage], routes: Routes) -> None:
    """Follow a micro-batch through each copy: whoever reads a tensor has it, and hears of all that he waits for."""
    for copy in range(routes.n_copies):
        check_copy(plan, layout, stages, routes, copy)


def check_copy(plan: Plan, layout: RankLayout, stages: Sequence[Stage], routes: Routes, copy: int) -> None:
    """Follow the payloads of one micro-batch that goes through this copy of the network."""
    has: dict[int, set[str]] = {rank: set() for rank in range(len(layout.devices))}
    has[COORDINATOR] |= set(plan.graph.inputs)
    told: set[tuple[int, int]] = set()

    def deliver(stage: int) -> None:
        for payload in routes.behind.get(stage, ()):
            names = [tensor.name for tensor in payload.tensors]
            assert set(names) <= has[payload.src]
            assert has[payload.dst].isdisjoint(names)  # nothing comes twice
            has[payload.dst] |= set(names)
            told.add((stage, payload.dst))

    deliver(INPUTS - copy)
    outputs = outputs_of(plan.graph, stages)
    mine = {number: stage for number, stage in enumerate(stages) if stage.copy == copy}
    for number, stage in mine.items():  # their order is one in which they may run
        rank = layout.rank_of[stage.device]
        assert set(inputs_of(plan.graph, stage.ops)) <= has[rank]
        for needed in stage.needs:
            assert layout.rank_of[stages[needed].device] == rank or (needed, rank) in told
        has[rank] |= set(outputs[number])
        deliver(number)
    wanted = {name for name in plan.graph.outputs if any(name in op.outputs for op in plan.graph.ops)}
    assert wanted <= has[COORDINATOR]
    followed = {needed for stage in mine.values() for needed in stage.needs}
    for number in mine.keys() - followed:
        assert layout.rank_of[stages[number].device] == COORDINATOR or (number, COORDINATOR) in told


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "nothing"])
@pytest.mark.parametrize("extra", [0, 1])
@settings(max_examples=25)
@given(data=st.data())
def test_everybody_has_what_he_reads(name: str, extra: int, data: st.DataObject) -> None:
    program = program_of(name)
    placement = data.draw(placements(make_plan(program, alternating(program)).table, copies=3))
    plan = make_plan(program, placement)
    check_delivery(plan, *found(plan, extra))
