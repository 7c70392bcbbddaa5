"""Ranks meet or say why not."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from costmodels.host.stores import HERE, served_store, visited_store
from graphs.common.errors import InputError
from planner.plans.plan import Plan
from planner.runtime.distributed.transport.layout import rank_layout
from planner.runtime.distributed.transport.rendezvous import (
    PeerInfo,
    join,
    meet,
    own_address,
    peer_info_of,
    tell_trouble,
)
from planner.runtime.errors import RankError, RemoteError, failure_from_text, failure_to_text
from simulator.placement import Placement
from tests.planner.runtime.small import PATIENCE_S, begin, cpu, make_plan, program_of, with_device

PLAN = make_plan(program_of("tied"), Placement((0, 1, 2, 1)))
LAYOUT = rank_layout(PLAN, 3)


def test_all_come_and_get_each_others_cards() -> None:
    store = served_store()
    peer_infos = [replace(peer_info_of(PLAN), pid=100 + rank) for rank in range(3)]
    stores = [visited_store(store.port) for _ in range(3)]
    met = [begin(lambda rank=rank: meet(stores[rank], LAYOUT, rank, peer_infos[rank])) for rank in range(3)]  # type: ignore[misc]
    assert [list(each.result(PATIENCE_S)) for each in met] == [peer_infos] * 3


def test_one_that_does_not_come_is_named() -> None:
    store = served_store()
    begin(lambda: meet(visited_store(store.port), LAYOUT, 1, peer_info_of(PLAN), timeout_s=0.1))
    with pytest.raises(RankError) as error:
        meet(store, LAYOUT, 0, peer_info_of(PLAN), timeout_s=0.3)
    assert str(error.value) == (
        "rank 2 ('cpu2') did not come within 0 s; see that its process runs and can reach the others, and start again"
    )


def test_one_that_comes_damaged_is_named() -> None:
    store = served_store()
    store.set("rank 1", "00000000 {}")
    with pytest.raises(RankError, match=r"^rank 1 \('cpu1'\) has come with bytes that are damaged; start again$"):
        meet(store, LAYOUT, 0, peer_info_of(PLAN))


def test_one_that_ended_is_not_waited_for() -> None:
    start_s = time.monotonic()
    with pytest.raises(RankError, match=r"^it is gone$"):
        meet(served_store(), LAYOUT, 0, peer_info_of(PLAN), ended=lambda: "it is gone")
    assert time.monotonic() - start_s < PATIENCE_S / 2


def test_trouble_is_passed_on() -> None:
    store = served_store()
    tell_trouble(visited_store(store.port), 1, "device 'cpu1' is bound to core 7, which this process may not use")
    with pytest.raises(InputError) as error:
        meet(store, LAYOUT, 0, peer_info_of(PLAN))
    assert str(error.value) == (
        "rank 1 ('cpu1') cannot start: device 'cpu1' is bound to core 7, which this process may not use"
    )


def test_trouble_is_passed_on_when_a_rank_ends_while_others_are_waited_for() -> None:
    store = served_store()

    def ended() -> str:
        tell_trouble(visited_store(store.port), 2, "it has no such device")
        return "rank 2 ended before it came"

    with pytest.raises(InputError, match=r"^rank 2 \('cpu2'\) cannot start: it has no such device$"):
        meet(store, LAYOUT, 0, peer_info_of(PLAN), ended=ended)


@pytest.mark.parametrize(
    "other",
    [
        make_plan(program_of("tied"), Placement((0, 1, 2, 2))),
        make_plan(program_of("tied"), Placement((0, 1, 2, 1)), in_flight=5),
        make_plan(program_of("branches"), Placement((0,) * len(program_of("branches").graph.ops))),
        with_device(PLAN, 1, cpu("cpu1", cores=(0, 1))),
    ],
)
def test_another_plan_is_refused(other: Plan) -> None:
    store = served_store()
    ours, theirs = peer_info_of(PLAN), peer_info_of(other)
    assert peer_info_of(PLAN).plan == ours.plan != theirs.plan
    begin(lambda: meet(visited_store(store.port), LAYOUT, 1, theirs, timeout_s=0.5))
    with pytest.raises(InputError) as error:
        meet(store, LAYOUT, 0, ours)
    assert str(error.value) == (
        f"rank 1 ('cpu1') has come with another plan ({theirs.plan}, here it is {ours.plan}); "
        "give every rank the same one"
    )


def test_another_torch_is_refused() -> None:
    store = served_store()
    peer_info = peer_info_of(PLAN)
    begin(lambda: meet(visited_store(store.port), LAYOUT, 1, replace(peer_info, torch="1.0"), timeout_s=0.5))
    with pytest.raises(InputError) as error:
        meet(store, LAYOUT, 0, peer_info)
    assert str(error.value) == (
        f"rank 1 ('cpu1') has torch 1.0, here it is {torch.__version__}; install the same everywhere"
    )


def test_a_card_is_what_json_can_hold() -> None:
    assert isinstance(peer_info_of(PLAN), PeerInfo)
    assert peer_info_of(PLAN).trouble == ""


def test_our_own_address_is_the_one_on_the_way() -> None:
    assert own_address("127.0.0.1") == own_address("localhost") == "127.0.0.1"


def test_those_who_cannot_connect_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.runtime.distributed.transport.rendezvous.JOIN_S", 0.5)
    with pytest.raises(RankError, match=r"the ranks met but could not connect: .*; see that every host reaches every "):
        join(served_store(), 0, 2, HERE)


def raised(make: Callable[[], object]) -> Exception:
    try:
        make()
    except Exception as error:
        return error
    raise AssertionError


def test_a_failure_keeps_its_text_and_its_traceback() -> None:
    failure = RuntimeError("stage 3 on 'cpu1' failed")
    failure.__cause__ = raised(lambda: [][1])
    again = failure_from_text(failure_to_text(failure))
    assert str(again) == "stage 3 on 'cpu1' failed"
    assert isinstance(again.__cause__, RemoteError)
    assert str(again.__cause__).endswith("IndexError: list index out of range\n")
    assert "test_rendezvous.py" in str(again.__cause__)
    # told on, it is still the first one's
    assert str(failure_from_text(failure_to_text(again)).__cause__).strip() == str(again.__cause__).strip()
