"""Placements: what they say about a table, and how each misfit is named."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.table import CostTable
from graphs.common.errors import InputError
from simulator.placement import Placement
from tests.costmodels.parts import table_with
from tests.simulator.tables import chain, make_table, placements

# a ─► b ─► c, and a ─► c
TABLE = make_table([1, 2, 4], [(0, (1, 2), 8), (1, (2,), 16)], n_devices=3)


def test_the_order_is_the_graphs_own_if_left_out() -> None:
    assert Placement((0, 1, 0)).order == (0, 1, 2)


def test_the_rank_is_the_inverse_of_the_order() -> None:
    assert Placement((0, 0, 0), (2, 0, 1)).rank == (1, 2, 0)


def test_a_flow_is_cut_once_for_each_device_that_reads_it() -> None:
    assert list(Placement((0, 0, 0)).cuts(TABLE)) == []
    assert list(Placement((0, 1, 1)).cuts(TABLE)) == [(0, 0, 1)]
    assert list(Placement((0, 2, 1)).cuts(TABLE)) == [(0, 0, 1), (0, 0, 2), (1, 2, 1)]


def test_a_device_is_busy_for_the_sum_of_its_operators() -> None:
    np.testing.assert_array_equal(Placement((2, 0, 2)).busy_s(TABLE), [2, 0, 1 + 4])


@st.composite
def crowds(draw: st.DrawFn) -> CostTable:
    """Operators on two devices, slower by different shares under contention."""
    seconds = draw(st.lists(st.floats(0.125, 8), min_size=1, max_size=8))
    table = make_table(seconds)
    slowdown, copies = (np.array([[draw(st.floats(0, 2)) for _ in table.devices] for _ in seconds]) for _ in range(2))
    return table_with(table, slowdown=slowdown, copies_slowdown=copies)


@given(crowds(), st.data())
def test_a_streaming_device_is_slowed_down_until_the_others_pause(table: CostTable, data: st.DataObject) -> None:
    placement = data.draw(placements(table, copies=3))
    contended_s, alone_s = placement.busy_s(table.contended), placement.busy_s(table)
    pause_s = min(contended_s)  # both compute until then, each at its slower pace
    left = 1 - pause_s / np.where(contended_s > 0, contended_s, np.inf)
    expected_s = np.where(contended_s > 0, pause_s + left * alone_s, 0.0)
    if sorted(sorted(set(copy.device)) for copy in placement.copies) == [[0], [1]]:
        expected_s = placement.busy_s(table.in_copies)
    found = placement.costs(table, streaming=True)
    np.testing.assert_allclose(placement.busy_s(found), expected_s)
    assert not found.slowdown.any()
    np.testing.assert_array_equal(placement.costs(found, streaming=True).forward_s, found.forward_s)


def test_company_is_an_average_over_the_group() -> None:
    table = table_with(
        make_table([2, 0.5, 1, 4.5], n_devices=4), slowdown=np.ones((4, 4)), contention_group=np.array([7, 7, 7, 8])
    )
    assert Placement((0, 1, 2, 3)).contended_share(table).tolist() == [(1 / 4 + 2 / 4) / 2, 1, (1 + 1 / 2) / 2, 0]
    costs = Placement((0, 1, 2, 3)).costs(table, streaming=True)
    assert Placement((0, 1, 2, 3)).busy_s(costs).tolist() == [2 + 2 * 3 / 8, 1, 1 + 1 * 3 / 4, 9 / 2]


@pytest.mark.parametrize("streaming", [True, False])
def test_on_one_device_the_others_are_idle(streaming: bool) -> None:
    table = table_with(make_table([4, 2]), slowdown=np.array([[1.0, 0.0], [3.0, 0.0]]))
    costs = Placement((0, 0)).costs(table, streaming)
    assert costs.forward_s[:, 0].tolist() == [4, 2]
    assert not costs.slowdown.any()
    assert Placement((0, 0)).costs(table.contended, streaming) is table.contended


def test_what_does_not_stream_is_in_company_all_the_time() -> None:
    table = table_with(make_table([4, 1]), slowdown=np.ones((2, 2)))
    costs = Placement((0, 1)).costs(table, streaming=False)
    np.testing.assert_array_equal(costs.forward_s, 2 * table.forward_s)
    assert not costs.slowdown.any()


def test_copies_on_devices_of_one_group_take_what_copies_take() -> None:
    table = table_with(
        make_table([4, 1], n_devices=4),
        slowdown=np.ones((2, 4)),
        copies_slowdown=np.full((2, 4), 0.75),
        contention_group=np.array([0, 0, 0, 1]),
    )

    def taken_s(*homes: int, streaming: bool = True) -> float:
        placement = Placement((homes[0],) * 2, others=tuple(Placement((home,) * 2) for home in homes[1:]))
        return float(placement.costs(table, streaming).forward_s[0, 0])

    assert taken_s(0, 1, 2) == taken_s(0, 1) == 4 * 1.75
    assert taken_s(0, 3) == 4  # those of another group do not slow anyone down
    assert taken_s(0, 0, 1) == 4 * 1.25  # half of its work is done while one of both others computes
    assert taken_s(0, 1, streaming=False) == 4  # a micro-batch alone has one copy, and the other devices are idle
    divided = Placement((0, 1), others=(Placement((1, 0)),))
    assert divided.costs(table, streaming=True).forward_s[0, 0] == 4 * 1.5


def test_a_fitting_placement_passes() -> None:
    Placement((0, 1, 2)).check(TABLE)


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        (Placement((0, 0)), "the placement has 2 operators, the graph has 3"),
        (Placement((0, 3, 0)), "operator 'b' is on device 3; there are 3 devices"),
        (Placement((0, -1, 0)), "operator 'b' is on device -1; there are 3 devices"),
        (Placement((0, 0, 0), (0, 1, 1)), "the placement's order must name every operator exactly once"),
        (Placement((0, 0, 0), (0, 1)), "the placement's order must name every operator exactly once"),
        (Placement((0, 0, 0), (0, 2, 1)), "the placement's order runs 'c' before 'b', which writes its input"),
    ],
)
def test_misfits_are_named(placement: Placement, message: str) -> None:
    with pytest.raises(InputError) as error:
        placement.check(TABLE)
    assert str(error.value) == message


def test_an_operator_that_cannot_run_there_is_named() -> None:
    forward_s = TABLE.forward_s.copy()
    forward_s[1, 2] = np.inf
    with pytest.raises(InputError) as error:
        Placement((0, 2, 0)).check(replace(TABLE, forward_s=forward_s))
    assert str(error.value) == "operator 'b' cannot run on '2'"


def test_a_missing_link_is_named() -> None:
    link_class, channel = TABLE.link_class.copy(), TABLE.channel.copy()
    link_class[0, 1] = channel[0, 1] = -1
    table = replace(TABLE, link_class=link_class, channel=channel)
    Placement((1, 0, 0)).check(table)  # the other direction is there
    with pytest.raises(InputError) as error:
        Placement((0, 1, 1)).check(table)
    assert str(error.value) == (
        "tensor 'a*' must go from '0' to '1', but there is no link; add a [[link]] to cluster.toml"
    )


def test_devices_that_exchange_nothing_need_no_link() -> None:
    table = make_table([1, 1], chain([1]))
    Placement((0, 1)).check(replace(table, link_class=np.full((2, 2), -1), channel=np.full((2, 2), -1)))
