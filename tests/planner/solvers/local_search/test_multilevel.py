"""Coarsening keeps to kinds and sizes; cycles keep what they start from."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.table import CostTable
from planner.problem.blocks import merge_blocks
from planner.problem.problem import Goal
from planner.solvers.local_search.kernel import new_state
from planner.solvers.local_search.multilevel import SearchEffort, cluster_cells, cycle
from planner.solvers.netlist import Netlist, netlist
from tests.planner.problem.problems import make_table

EFFORT = SearchEffort(work=200_000, enough_s=0.0, stop=lambda: False)


def seed(number: int = 1) -> np.ndarray:
    return np.asarray([number], dtype=np.uint64)


def chain(n: int, k: int = 2) -> CostTable:
    """One operator after the other, a second each, and another to send a byte from each to the next."""
    return make_table([[1.0] * k] * n, [(op, (op + 1,), 1.0) for op in range(n - 1)], overlap=False)


def nets_of(table: CostTable) -> Netlist:
    return netlist(merge_blocks(table), Goal.THROUGHPUT)


@given(st.lists(st.integers(0, 1), min_size=20, max_size=20), st.integers(1, 2**31), st.sampled_from([2.0, 5.0, 10.0]))
def test_clusters_are_of_one_kind_and_small_and_numbered(kinds: list[int], number: int, parts: float) -> None:
    kind = np.asarray(kinds, dtype=np.int64)
    cluster = cluster_cells(nets_of(chain(20)), kind, parts, seed(number))
    assert sorted(set(cluster.tolist())) == list(range(int(cluster.max()) + 1))
    for members in (np.flatnonzero(cluster == number) for number in range(int(cluster.max()) + 1)):
        assert len(set(kind[members].tolist())) == 1
        assert len(members) <= 20 / parts


def test_the_most_expensive_nets_go_first() -> None:
    table = make_table([[1.0, 1.0]] * 4, [(0, (1,), 100.0), (1, (2,), 1.0), (2, (3,), 100.0)])
    for number in range(1, 20):
        assert cluster_cells(nets_of(table), np.zeros(4, dtype=np.int64), 2.0, seed(number)).tolist() in (
            [0, 0, 1, 1],
            [1, 1, 0, 0],
        )


def test_nets_with_many_pins_join_nobody() -> None:
    table = make_table([[1.0, 1.0]] * 60, [(0, tuple(range(1, 60)), 1.0)])
    assert cluster_cells(nets_of(table), np.zeros(60, dtype=np.int64), 2.0, seed()).max() == 59


def test_a_cycle_finds_the_halves_of_a_chain() -> None:
    nets = nets_of(chain(40))
    cycles = [cycle(nets, Goal.THROUGHPUT, None, EFFORT, seed(number + 1)) for number in range(8)]
    found = min(cycles, key=lambda found: found.value_s)
    assert found.value_s == 21.0  # 20 operators and one transfer each
    assert np.count_nonzero(np.diff(found.device)) == 1


@settings(max_examples=30)
@given(st.lists(st.integers(0, 2), min_size=30, max_size=30))
def test_a_cycle_is_no_worse_than_its_start(devices: list[int]) -> None:
    nets = nets_of(chain(30, 3))
    start = np.asarray(devices, dtype=np.int64)
    before_s = float(new_state(nets, start, seed()).load_s.max())
    found = cycle(nets, Goal.THROUGHPUT, start, EFFORT._replace(work=20_000), seed())
    assert found.value_s <= before_s
    assert found.value_s == new_state(nets, found.device, seed()).load_s.max()


def test_a_cycle_stops_when_it_is_told_to() -> None:
    nets = nets_of(chain(40))
    found = cycle(nets, Goal.THROUGHPUT, None, EFFORT._replace(stop=lambda: True), seed())
    assert found.work < EFFORT.work / 4
    assert found.device.shape == (40,)


def test_a_cycle_stops_when_it_is_good_enough() -> None:
    nets = nets_of(chain(40))
    found = cycle(nets, Goal.THROUGHPUT, None, EFFORT._replace(enough_s=40.0), seed())
    assert found.value_s <= 40
    assert found.work < EFFORT.work / 4


def test_one_device_is_no_endless_search() -> None:
    found = cycle(nets_of(chain(5, 1)), Goal.THROUGHPUT, None, EFFORT, seed())
    assert found.value_s == 5.0


def test_the_same_seed_gives_the_same_devices() -> None:
    nets = nets_of(chain(50, 4))
    one, other = (cycle(nets, Goal.THROUGHPUT, None, EFFORT, seed()) for _ in range(2))
    assert one.device.tolist() == other.device.tolist()
