"""Placements: what they say about a table, and how each misfit is named."""

from dataclasses import replace

import numpy as np
import pytest

from graphs.errors import InputError
from simulator.placement import Placement
from tests.simulator.tables import chain, make_table

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
    wire, channel = TABLE.wire.copy(), TABLE.channel.copy()
    wire[0, 1] = channel[0, 1] = -1
    table = replace(TABLE, wire=wire, channel=channel)
    Placement((1, 0, 0)).check(table)  # the other direction is there
    with pytest.raises(InputError) as error:
        Placement((0, 1, 1)).check(table)
    assert str(error.value) == (
        "tensor 'a*' must go from '0' to '1', but there is no link; add a [[link]] to cluster.toml"
    )


def test_devices_that_exchange_nothing_need_no_link() -> None:
    table = make_table([1, 1], chain([1]))
    Placement((0, 1)).check(replace(table, wire=np.full((2, 2), -1), channel=np.full((2, 2), -1)))
