"""The flat arrays say what the table says, and the compiled search keeps loads as `evaluate` counts them."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.table import CostTable
from graphs.common.arrays import Ints
from planner.literature.placement.offload import Offload, OffloadTable
from planner.problem.blocks import merge_blocks
from planner.problem.evaluate import loads
from planner.problem.problem import Goal, Problem
from planner.solvers.local_search.annealing import AnnealingSchedule, value_of
from planner.solvers.local_search.kernel import MISSING, State, commit, new_state, price
from planner.solvers.netlist import Netlist, netlist
from tests.planner.literature.placement.offloads import with_offload
from tests.planner.problem.problems import make_table, tables, value

THROUGHPUT = AnnealingSchedule(work=0, hot=1.0, cold=0.1, scale_s=1.0, doublings=3)
COST = AnnealingSchedule(work=0, hot=1.0, cold=0.1, scale_s=1.0, doublings=0)


def seed() -> np.ndarray:
    return np.asarray([1], dtype=np.uint64)


@st.composite
def all_tables(draw: st.DrawFn) -> CostTable:
    """Tables with direct transfers, and with accelerators next to a host."""
    table = draw(tables())
    if draw(st.booleans()):
        return table
    size = st.lists(st.integers(0, 5).map(float), min_size=table.n_devices, max_size=table.n_devices)
    store_s, fetch_s = (
        np.asarray([draw(size) for _ in table.flows], dtype=float).reshape(-1, table.n_devices) for _ in range(2)
    )
    host = np.arange(table.n_devices) == 0
    return with_offload(table, Offload(store_s, fetch_s, host))


def random_devices(nets: Netlist, data: st.DataObject) -> Ints:
    """Devices on which the cells can run."""
    can = [np.flatnonzero(np.isfinite(row)).tolist() for row in nets.seconds]
    return np.asarray([data.draw(st.sampled_from(devices)) for devices in can], dtype=np.int64)


def assert_same(one: State, other: State) -> None:
    """Whole seconds and bytes have no rounding, so everything is equal."""
    for name in ("device", "reading", "remote", "load_s", "n_bytes"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert one.tally[MISSING] == other.tally[MISSING]


def test_the_arrays_of_a_small_problem() -> None:
    table = make_table(
        [[1, 2], [3, 4], [5, np.inf], [6, 7]],
        [(0, (1, 2), 10), (0, (1, 2), 1), (1, (3,), 4), (2, (3,), 5)],
        link_s=2.0,
        together=((0, 3),),
        op_bytes=[1, 2, 3, 4],
        capacity_bytes=[100, 4],
    )
    nets = netlist(merge_blocks(table), Goal.THROUGHPUT)
    inf = np.inf
    assert nets.seconds.tolist() == [[7, inf], [3, 4], [5, inf]]  # cell 0 is ops 0 and 3: 5 bytes, too large for dev1
    assert nets.n_bytes.tolist() == [5, 2, 3]
    assert [nets.pin[a:b].tolist() for a, b in pairwise(nets.start)] == [[0, 1, 2], [1, 0], [2, 0]]
    assert nets.link_s.tolist() == [[15], [6], [7]]  # 2 + 10 and 2 + 1, one net of two flows; 2 + 4; 2 + 5
    assert [nets.net[a:b].tolist() for a, b in pairwise(nets.first_net)] == [[0, 1, 2], [0, 1], [0, 2]]


def test_what_is_between_cells_of_one_cluster_is_gone() -> None:
    table = make_table([[1.0]] * 4, [(0, (1, 2), 1), (1, (3,), 1), (2, (3,), 1), (0, (3,), 1)])
    nets = netlist(merge_blocks(table), Goal.THROUGHPUT).merge(np.asarray([0, 0, 1, 1]))
    assert nets.seconds.tolist() == [[2], [2]]
    assert nets.pin.tolist() == [0, 1]  # all three nets from {0, 1} to {2, 3} are one


@given(all_tables(), st.data())
def test_loads_are_those_of_the_judge(table: CostTable, data: st.DataObject) -> None:
    blocks = merge_blocks(table)
    if not blocks.fits.any(axis=1).all():
        return
    nets = netlist(blocks, Goal.THROUGHPUT)
    state = new_state(nets, random_devices(nets, data), seed())
    placement = blocks.spread(state.device)
    judged_s = value(Problem(table, Goal.THROUGHPUT), placement)
    assert value_of(nets, state, THROUGHPUT) == judged_s
    if np.isfinite(judged_s):
        device_s, channel_s = loads(table, placement)
        assert state.load_s[: table.n_devices].tolist() == device_s.tolist()
        if not isinstance(table, OffloadTable) and table.sharing != "unlimited":
            assert state.load_s[table.n_devices :].tolist() == channel_s.tolist()


@given(all_tables(), st.data())
def test_the_cost_is_that_of_the_judge(table: CostTable, data: st.DataObject) -> None:
    blocks = merge_blocks(table)
    if not blocks.fits.any(axis=1).all():
        return
    nets = netlist(blocks, Goal.COST)
    state = new_state(nets, random_devices(nets, data), seed())
    assert value_of(nets, state, COST) == value(Problem(table, Goal.COST), blocks.spread(state.device))


@given(all_tables(), st.data())
def test_moves_keep_everything_up_to_date(table: CostTable, data: st.DataObject) -> None:
    blocks = merge_blocks(table)
    if not blocks.fits.any(axis=1).all():
        return
    nets = netlist(blocks, data.draw(st.sampled_from([Goal.THROUGHPUT, Goal.COST])))
    state = new_state(nets, random_devices(nets, data), seed())
    for _ in range(4):
        cell = data.draw(st.integers(0, nets.n_cells - 1))
        to = int(random_devices(nets, data)[cell])
        if to == state.device[cell]:
            continue
        price(nets, state, cell, to)
        commit(nets, state, cell, to)
        assert_same(state, new_state(nets, state.device, seed()))


@given(all_tables(), st.data())
def test_clusters_are_worth_what_their_cells_are(table: CostTable, data: st.DataObject) -> None:
    blocks = merge_blocks(table)
    if not blocks.fits.any(axis=1).all():
        return
    nets = netlist(blocks, Goal.THROUGHPUT)
    drawn = [data.draw(st.integers(0, 2)) for _ in range(nets.n_cells)]
    cluster = np.unique(drawn, return_inverse=True)[1]
    coarse = nets.merge(cluster)
    if not np.isfinite(coarse.seconds).any(axis=1).all():
        return
    device = random_devices(coarse, data)
    above, below = new_state(coarse, device, seed()), new_state(nets, device[cluster], seed())
    assert above.load_s.tolist() == below.load_s.tolist()
    assert above.n_bytes.tolist() == below.n_bytes.tolist()
    assert (above.tally[MISSING] > 0) == (below.tally[MISSING] > 0)


def test_a_missing_link_and_too_little_memory_are_worth_nothing() -> None:
    table = make_table([[1, 1], [1, 1]], [(0, (1,), 1)], link_s=np.inf, op_bytes=[3, 3], capacity_bytes=[5, 9])
    nets = netlist(merge_blocks(table), Goal.THROUGHPUT)
    assert value_of(nets, new_state(nets, np.asarray([0, 1]), seed()), THROUGHPUT) == np.inf
    assert value_of(nets, new_state(nets, np.asarray([0, 0]), seed()), THROUGHPUT) == np.inf
    assert value_of(nets, new_state(nets, np.asarray([1, 1]), seed()), THROUGHPUT) == 2.0


@pytest.mark.parametrize("goal", [Goal.THROUGHPUT, Goal.COST])
def test_a_problem_without_flows(goal: Goal) -> None:
    table = make_table([[1, 2], [3, 4]])
    nets = netlist(merge_blocks(table), goal)
    state = new_state(nets, np.asarray([0, 1]), seed())
    assert state.load_s.tolist() == [1, 4, 0, 0]  # two devices, and a channel each way
