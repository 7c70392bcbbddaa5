"""The place of a rank among all."""

import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from costmodels.host.stores import HERE, served_store, visited_store
from graphs.common.errors import InputError
from planner.runtime.distributed.training import process_groups as groups
from planner.runtime.distributed.training.process_groups import ProcessGroups, break_off, check_ranks
from planner.runtime.distributed.transport import liveness
from planner.runtime.distributed.transport.connections import FOREVER
from planner.runtime.distributed.transport.failure_detector import FailureDetector
from planner.runtime.distributed.transport.layout import RankLayout
from planner.runtime.distributed.transport.rendezvous import join, peer_info_of
from planner.runtime.training.prepare import replica_count, stage_layout
from tests.planner.runtime.distributed.inference.test_launcher import plan_of
from tests.planner.runtime.distributed.pipelines import CONTEXT, Case, plan_for, program_for
from tests.planner.runtime.small import PATIENCE_S, begin

HALVES = Case("transformer", ("layers.1.first",))
PROGRAM = program_for(HALVES)


@pytest.mark.parametrize(("replicas", "n_ranks"), [(1, 2), (3, 6)])
def test_a_rank_for_each_device_of_each_replica(replicas: int, n_ranks: int) -> None:
    plan = plan_for(replace(HALVES, replicas=replicas), PROGRAM)
    assert replica_count(plan) == replicas
    check_ranks(plan, stage_layout(plan), n_ranks)
    with pytest.raises(InputError, match=f"and there are 4 ranks; start {n_ranks}, one for each"):
        check_ranks(plan, stage_layout(plan), 4)


def test_devices_of_two_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_for(HALVES, PROGRAM)
    layout = stage_layout(plan)
    mixed = replace(layout, devices=(layout.devices[0], replace(layout.devices[1], cores=(), cuda=0)))
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    with pytest.raises(InputError) as error:
        ProcessGroups.of(plan, mixed)
    assert str(error.value) == (
        "the plan trains on 'cpu0', a CPU, and 'cpu1', a GPU, and between them torch.distributed.pipelining sends "
        "nothing; use planner.train on one host, or plan for devices of one kind"
    )


WAITS: Mapping[str, Callable[[Any], Any]] = {
    "for a message": lambda group: group.recv([torch.empty(1)], 1, 0),
    "to send more than fits": lambda group: group.send([torch.empty(10_000_000)], 1, 0),
    "for a sum": lambda group: group.allreduce([torch.empty(1)]),
}


@pytest.mark.parametrize("waits", WAITS)
def test_what_waits_for_another_rank_is_broken_off(waits: str) -> None:
    """Another thread does it; the other rank does nothing, as one that is stopped."""
    store = served_store()
    joining = [begin(lambda rank=rank: join(visited_store(store.port), rank, 2, HERE)) for rank in range(2)]  # type: ignore[misc]
    first, second = (each.result(PATIENCE_S) for each in joining)
    begun = threading.Event()

    def wait() -> None:
        work = WAITS[waits](first)
        begun.set()
        work.wait(FOREVER)

    waiting = begin(wait)
    assert begun.wait(PATIENCE_S)
    time.sleep(0.1)  # it may wait, or be about to
    break_off([first])
    with pytest.raises(RuntimeError):
        waiting.result(PATIENCE_S)
    break_off([first])  # once more does no harm
    del second


def test_what_waits_is_broken_off_after_another_rank_has_left() -> None:
    """Its closed connection ends no other wait."""
    store = served_store()
    joining = [begin(lambda rank=rank: join(visited_store(store.port), rank, 3, HERE)) for rank in range(3)]  # type: ignore[misc]
    first, leaving, silent = (each.result(PATIENCE_S) for each in joining)
    break_off([leaving])
    with pytest.raises(RuntimeError):
        first.recv([torch.empty(1)], 1, 0).wait(FOREVER)  # until the first rank has noticed
    waiting = begin(lambda: first.recv([torch.empty(1)], 2, 0).wait(FOREVER))
    time.sleep(0.1)  # it may wait, or be about to
    break_off([first])
    with pytest.raises(RuntimeError):
        waiting.result(PATIENCE_S)
    del silent


CLOCKS = (("here", 0.0), ("here", 0.0), ("there", 1000.0), ("", -50.0))
"""Of four ranks: the name, and by how much it is ahead of the host's."""


def ahead_of(rank: int, port: int) -> float:
    """What a rank finds."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    name, shift_s = CLOCKS[rank]
    groups.clock_name = lambda: name  # type: ignore[attr-defined]  # this process is for nothing else
    shifted = SimpleNamespace(perf_counter=lambda: time.perf_counter() + shift_s)
    groups.time = liveness.time = shifted  # type: ignore[assignment, attr-defined]
    dist.init_process_group(
        "gloo", store=visited_store(port), rank=rank, world_size=len(CLOCKS), timeout=timedelta(seconds=60)
    )
    try:
        group = dist.group.WORLD
        assert group is not None
        with FailureDetector(
            group, RankLayout(((0,),), ("a",)), 0, [peer_info_of(plan_of())], lambda: None
        ) as over_nobody:
            return ProcessGroups(rank, over_nobody).ahead_s()
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_by_how_much_the_first_clock_is_ahead() -> None:
    store = served_store()
    with ProcessPoolExecutor(len(CLOCKS), CONTEXT) as pool:
        ranks = [pool.submit(ahead_of, rank, store.port) for rank in range(len(CLOCKS))]
        found = [rank.result(PATIENCE_S) for rank in ranks]
    assert found[:2] == [0.0, 0.0]  # one host has one clock
    assert found[2:] == pytest.approx([-1000.0, 50.0], abs=1.0)
