"""The place of a rank among all."""

from dataclasses import replace

import pytest
import torch.distributed as dist

from graphs.errors import InputError
from planner.runtime.processes.team import Team, check_ranks, replicas_of
from planner.runtime.training.prepare import layout_of
from tests.planner.runtime.processes.pipelines import Case, plan_for, program_for

HALVES = Case("transformer", ("layers.1.first",))
PROGRAM = program_for(HALVES)


@pytest.mark.parametrize(("replicas", "n_ranks"), [(1, 2), (3, 6)])
def test_a_rank_for_each_device_of_each_replica(replicas: int, n_ranks: int) -> None:
    plan = plan_for(replace(HALVES, replicas=replicas), PROGRAM)
    assert replicas_of(plan) == replicas
    check_ranks(plan, layout_of(plan), n_ranks)
    with pytest.raises(InputError, match=f"and there are 4 ranks; start {n_ranks}, one for each"):
        check_ranks(plan, layout_of(plan), 4)


def test_devices_of_two_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_for(HALVES, PROGRAM)
    layout = layout_of(plan)
    mixed = replace(layout, devices=(layout.devices[0], replace(layout.devices[1], cores=(), cuda=0)))
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    with pytest.raises(InputError) as error:
        Team.of(plan, mixed)
    assert str(error.value) == (
        "the plan trains on 'cpu0', a CPU, and 'cpu1', a GPU, and between them torch.distributed.pipelining sends "
        "nothing; use planner.train on one host, or plan for devices of one kind"
    )
