"""What solvers place."""

import numpy as np
import pytest

from planner.problem.blocks import Net, merge_blocks
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
