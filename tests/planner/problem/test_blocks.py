"""What solvers place, and which devices are alike."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodels.step_update import StepUpdate
from planner.problem.blocks import Net, merge_blocks
from planner.problem.devices import interchangeable, uniform_links
from tests.planner.problem.problems import make_table

INF = np.inf


def test_the_picture_in_the_docstring() -> None:
    table = make_table(
        [[1, 2]] * 4, [(0, (1,), 5), (1, (2,), 6), (2, (3,), 7)], op_bytes=[10, 20, 30, 40], together=((0, 3),)
    )
    blocks = merge_blocks(table)
    assert blocks.members == ((0, 3), (1,), (2,))
    assert blocks.nets == (Net(0, (1,), (0,)), Net(1, (2,), (1,)), Net(2, (0,), (2,)))
    assert blocks.forward_s.tolist() == [[1 + 1, 2 + 2], [1, 2], [1, 2]]
    assert blocks.n_bytes.tolist() == [10 + 40, 20, 30]
    assert blocks.spread([1, 0, 0]).device == (1, 0, 0, 1)
    assert blocks.devices_of(blocks.spread([1, 0, 0])).tolist() == [1, 0, 0]


def test_groups_that_overlap_are_one() -> None:
    blocks = merge_blocks(make_table([[1, 1]] * 5, together=((3, 4), (0, 3))), also=[(1, 2)])
    assert blocks.members == ((0, 3, 4), (1, 2))


def test_flows_between_the_same_blocks_are_one_net() -> None:
    # t0 and t1 both go from op0 to op1; t2 stays in the block of op1 and op2
    table = make_table([[1, 1]] * 3, [(0, (1,), 5), (0, (2,), 6), (1, (2,), 7)], 0.5, 2.0, together=((1, 2),))
    (net,) = merge_blocks(table).nets
    assert net == Net(0, (1,), (0, 1))
    assert net.seconds(table)[0, 1] == 2 * 0.5 + (5 + 6) * 2.0 == pytest.approx(table.transfer_s[:2, 0, 1].sum())


def test_a_block_fits_where_all_its_members_run_and_have_room_together() -> None:
    table = make_table(
        [[1, INF, 1], [1, 1, 1], [1, 1, 1]],
        op_bytes=[3, 3, 3],
        capacity_bytes=[8, 8, 6],
        working_bytes=1.0,
        together=((0, 1),),
    )
    assert merge_blocks(table).fits.tolist() == [[True, False, False], [True, True, True]]


def test_no_link_takes_forever() -> None:
    table = make_table([[1, 1]] * 2, [(0, (1,), 5)], [[0, 1], [INF, 0]])
    assert merge_blocks(table).nets[0].seconds(table).tolist() == [[0, 1 + 5], [INF, 0]]


def test_identical_devices_are_interchangeable() -> None:
    table = make_table([[1, 2, 1, 1]], capacity_bytes=[9, 9, 9, 8])
    assert interchangeable(table) == ((0, 2), (1,), (3,))


def test_devices_that_differ_alone_or_in_training_are_not_interchangeable() -> None:
    def classes(**fields: Any) -> tuple[tuple[int, ...], ...]:
        return interchangeable(make_table([[1] * 4], **fields))

    contention_group, ones = np.array([0, 0, 1, 1]), np.ones(4)
    assert classes(slowdown=np.array([[1.0, 1.0, 0.0, 1.0]])) == ((0, 1, 3), (2,))
    assert classes(slowdown=np.ones((1, 4)), contention_group=contention_group) == ((0, 1), (2, 3))
    assert classes(contention_group=contention_group) == ((0, 1, 2, 3),)
    assert classes(backward_s=np.array([[1.0, 2.0, 1.0, 1.0]])) == ((0, 2, 3), (1,))
    assert classes(update=StepUpdate(np.ones(1), np.array([1.0, 1.0, 1.0, 2.0]), ones, ones)) == ((0, 1, 2), (3,))
    assert classes(update=StepUpdate(np.ones(1), ones, ones, ones, np.array([0, 0, 1, 1]))) == ((0, 1), (2, 3))


def test_devices_of_two_hosts_are_interchangeable_within_their_host() -> None:
    slow = [[0, 1, 9, 9], [1, 0, 9, 9], [9, 9, 0, 1], [9, 9, 1, 0]]
    assert interchangeable(make_table([[1] * 4], per_byte=slow)) == ((0, 1), (2, 3))
    one_way = [[0, 1, 9, 9], [2, 0, 9, 9], [9, 9, 0, 1], [9, 9, 1, 0]]
    assert interchangeable(make_table([[1] * 4], per_byte=one_way)) == ((0,), (1,), (2, 3))


def test_a_shared_channel_tells_devices_apart() -> None:
    table = make_table([[1] * 3])
    channel = table.channel.copy()
    channel[0, 1] = channel[0, 2]  # dev0 sends through one port: dev1 and dev2 can still swap, with dev0 they cannot
    assert interchangeable(make_table([[1] * 3])) == ((0, 1, 2),)
    assert interchangeable(replace(table, channel=channel)) == ((0,), (1, 2))


def test_links_are_uniform_if_all_are_there_and_alike() -> None:
    assert uniform_links(make_table([[1] * 3], link_s=1.0, per_byte=2.0))
    assert uniform_links(make_table([[1]]))
    assert not uniform_links(make_table([[1] * 2], link_s=[[0, 1], [2, 0]]))
    assert not uniform_links(make_table([[1] * 2], per_byte=[[0, 1], [2, 0]]))
    assert not uniform_links(make_table([[1] * 2], link_s=[[0, INF], [INF, 0]]))
