"""The number of processes says who has what."""

from dataclasses import replace

import pytest

from graphs.common.errors import InputError
from planner.runtime.distributed.transport.layout import RankLayout, rank_layout, training_layout
from simulator.placement import Placement
from tests.planner.runtime.distributed.pipelines import Case, plan_for, program_for
from tests.planner.runtime.small import make_plan, program_of

PROGRAM = program_of("tied")
PLAN = make_plan(PROGRAM, Placement((0, 2, 0, 2)))  # cpu1 has nothing to do


def test_devices_that_are_used() -> None:
    assert PLAN.placement.used == (0, 2)


def test_the_front_beside_the_first_device() -> None:
    layout = rank_layout(PLAN, 2)
    assert layout == RankLayout(((0,), (2,)), ("cpu0", "cpu1", "cpu2"))
    assert layout.rank_of == {0: 0, 2: 1}
    assert layout.others == (1,)
    assert [layout.title(rank) for rank in range(2)] == ["rank 0 ('cpu0')", "rank 1 ('cpu2')"]


def test_the_front_alone() -> None:
    layout = rank_layout(PLAN, 3)
    assert layout.devices == ((), (0,), (2,))
    assert layout.rank_of == {0: 1, 2: 2}
    assert layout.others == (1, 2)
    assert layout.title(0) == "rank 0 (the coordinator)"


@pytest.mark.parametrize("n_ranks", [0, 1, 4])
def test_any_other_number_is_refused(n_ranks: int) -> None:
    with pytest.raises(InputError) as error:
        rank_layout(PLAN, n_ranks)
    assert str(error.value) == (
        f"the plan uses 2 devices, there are {n_ranks} ranks; start one rank for each device "
        "(torchrun --nproc-per-node=2), or one more for the caller alone"
    )


def test_a_rank_for_each_device_of_each_replica() -> None:
    """In the order in which the stages begin, whatever that of the cluster."""
    halves = Case("transformer", ("layers.1.first",), replicas=2)
    plan = plan_for(halves, program_for(halves))
    assert training_layout(plan) == RankLayout(((0,), (1,), (0,), (1,)), ("cpu0", "cpu1"))
    turned = replace(plan, placement=Placement(tuple(1 - device for device in plan.placement.device)))
    alone = replace(turned, cluster=replace(turned.cluster, replicas=None))
    assert training_layout(alone, coordinator=True) == RankLayout(((), (1,), (0,)), ("cpu0", "cpu1"))
