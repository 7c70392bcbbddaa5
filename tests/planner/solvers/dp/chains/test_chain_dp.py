"""The DP over intervals by hand, its sums against their definitions, and its optimum against all intervals."""

from collections.abc import Sequence
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.table import CostTable
from graphs.common.arrays import Floats
from planner.problem.blocks import Net, merge_blocks
from planner.problem.bounds import lower_bound
from planner.problem.problem import Goal, Problem
from planner.solvers.base import Budget
from planner.solvers.dp.chains.chain import ENTERS, LEAVES, Chain, chains
from planner.solvers.dp.chains.chain_dp import ChainDP
from simulator.placement import Placement
from tests.planner.literature.placement.offloads import make_offload, offloads
from tests.planner.problem.problems import contiguous, make_table, tables, value


def best(table: CostTable) -> Placement | None:
    problem = Problem(table, Goal.THROUGHPUT)
    return ChainDP().search(problem, Budget(1e9, gap=0.0, bound_s=lower_bound(problem))).placement


def best_s(table: CostTable) -> float:
    placement = best(table)
    return inf if placement is None else value(Problem(table, Goal.THROUGHPUT), placement)


def line(*seconds: float) -> list[tuple[int, tuple[int, ...], float]]:
    """Flows along a line of operators."""
    return [(op, (op + 1,), size) for op, size in enumerate(seconds)]


def test_cuts_where_the_load_is_even() -> None:
    # 3 + 2 | 3 + 2 + 2 or 3 + 2 + 3 | 2 + 2: 7 is the best of two intervals
    table = make_table([[c] * 2 for c in (3, 2, 3, 2, 2)], line(0, 0, 0, 0), overlap=False)
    assert best_s(table) == 3 + 2 + 2


def test_cuts_where_little_is_sent() -> None:
    # even loads 4 | 4 would send 9 s; 2 | 6 sends 1 s: receiver 1 + 6
    table = make_table([[2, 2]] * 4, line(1, 9, 9), overlap=False)
    assert best(table) == Placement((0, 1, 1, 1))
    assert best_s(table) == 1 + 6
    # with overlap, the transfer is beside the work
    assert best_s(make_table([[2, 2]] * 4, line(1, 9, 9))) == 6


def test_uses_fewer_devices_if_sending_costs_more_than_it_gains() -> None:
    assert best_s(make_table([[2, 2, 2]] * 3, line(9, 9), overlap=False)) == 6


def test_the_faster_device_takes_more_wherever_it_is_in_the_list() -> None:
    # dev1 is three times as fast: it takes three of four, 3 * 1 against 1 * 3
    table = make_table([[3, 1]] * 4, line(0, 0, 0), overlap=False)
    assert best_s(table) == 3


def test_an_operator_stays_on_the_device_that_can_run_it() -> None:
    table = make_table([[1, 1], [1, 1], [1, inf], [1, 1]], line(0, 0, 0), overlap=False)
    placement = best(table)
    assert placement is not None
    assert placement.device[2] == 0
    assert best_s(table) == 2


def test_memory_moves_the_cut() -> None:
    rows, flows = [[1, 1]] * 4, line(0, 0, 0)
    assert best_s(make_table(rows, flows, op_bytes=[1, 1, 1, 7], capacity_bytes=[8, 8])) == 2
    assert best_s(make_table(rows, flows, op_bytes=[1, 1, 2, 7], capacity_bytes=[8, 8])) == 3
    assert best(make_table(rows, flows, op_bytes=[1, 6, 2, 7], capacity_bytes=[8, 8])) is None


def test_working_memory_counts_on_each_device() -> None:
    table = make_table([[1, 1]] * 4, line(0, 0, 0), op_bytes=[1] * 4, capacity_bytes=[3, 4], working_bytes=1.0)
    assert best_s(table) == 2
    assert (
        best_s(make_table([[1, 1]] * 4, line(0, 0, 0), op_bytes=[1] * 4, capacity_bytes=[2, 4], working_bytes=1.0)) == 3
    )


def test_tied_ends_share_a_device_without_swallowing_what_is_between() -> None:
    # op0 and op5 read one parameter: 1 + 1 + 2 | 2 + 2, the last one's input comes back to the first device
    table = make_table([[c] * 2 for c in (1, 2, 2, 2, 2, 1)], line(0, 0, 0, 0, 0), together=((0, 5),), overlap=False)
    placement = best(table)
    assert placement is not None
    assert placement.device[0] == placement.device[5]
    assert best_s(table) == 1 + 1 + 2 + 2 == 6


def test_constants_stay_with_their_readers() -> None:
    # op0 .. op3 are constants of the four steps op4 .. op7; in the graph's order every cut would send constants
    flows = [(op, (op + 4,), 9.0) for op in range(4)] + [(op, (op + 1,), 1.0) for op in range(4, 7)]
    table = make_table([[0, 0]] * 4 + [[5, 5]] * 4, flows, overlap=False)
    assert best_s(table) == 5 + 5 + 1


def test_slow_links_are_avoided() -> None:
    # dev0 ─1─ dev1 ─1─ dev2, and 9 a byte between dev0 and dev2
    table = make_table([[3, 3, 3]] * 3, line(1, 1), per_byte=[[0, 1, 9], [1, 0, 1], [9, 1, 0]], overlap=False)
    assert best_s(table) == 1 + 3 + 1
    placement = best(table)
    assert placement is not None
    assert placement.device[1] == 1


def test_a_star_of_links_is_followed_as_far_as_it_goes() -> None:
    # only dev0 is linked to the others, so a line has it in the middle: 2 + 2 + 1 | 1 + 2 + 1 | 1 + 2 + 2
    star: list[list[float]] = [[0, 1, 1, 1], [1, 0, inf, inf], [1, inf, 0, inf], [1, inf, inf, 0]]
    table = make_table([[2] * 4] * 5, line(0, 0, 0, 0), star, 0.0, overlap=False)
    assert best_s(table) == 2 + 2 + 1


def test_many_devices_with_unequal_links_are_walked_from_neighbour_to_neighbour() -> None:
    # a ring of six: a byte takes 1 s to a neighbour, 9 s to any other
    near: list[list[float]] = [
        [0.0 if a == b else 1.0 if (a - b) % 6 in (1, 5) else 9.0 for b in range(6)] for a in range(6)
    ]
    table = make_table([[4] * 6] * 6, line(1, 1, 1, 1, 1), per_byte=near, overlap=False)
    assert best_s(table) == 1 + 4 + 1


def test_out_of_time_the_first_line_is_cut_all_the_same() -> None:
    problem = Problem(make_table([[1, 1]] * 600, line(*[0.0] * 599)), Goal.THROUGHPUT)
    answer = ChainDP().search(problem, Budget(time_limit_s=0.0, incumbent=Placement((0,) * 600)))
    assert answer.placement == Placement((0,) * 300 + (1,) * 300)


def test_thousands_of_operators() -> None:
    rng = np.random.default_rng(0)
    seconds = rng.lognormal(size=3000)
    table = make_table(np.repeat(seconds[:, None], 8, axis=1), line(*[0.01] * 2999), overlap=False)
    assert best_s(table) <= 1.01 * seconds.sum() / 8


def test_what_is_stored_beside_a_host_is_stored_once() -> None:
    # op0 is read by op1 and op2 on two other devices: 1 + 4 to store it | 4 + 3 | 4 + 3; alone: 7; two devices: 4 + 6
    table = make_offload([[c] * 3 for c in (1, 3, 3)], [(0, (1, 2), 4.0)])
    assert best_s(table) == 4 + 3 == 1 + 3 + 3
    table = make_offload([[c] * 3 for c in (1, 5, 5)], [(0, (1, 2), 4.0)])
    assert best_s(table) == 4 + 5


def test_a_host_neither_stores_nor_fetches() -> None:
    # the accelerator alone: 3 + 3; with the host for op1: 3 + 1 to store | 5
    assert best_s(make_offload([[3, 5], [3, 5]], [(0, (1,), 1.0)], hosts=[1])) == 5


@given(tables(max_ops=6, uniform=True) | offloads(max_ops=6))
def test_the_traffic_of_an_interval_is_what_its_definition_says(table: CostTable) -> None:
    blocks = merge_blocks(table)
    for chain in chains(blocks):
        for each in (False, True):
            traffic = np.zeros((2, 1 + chain.tariffs[0].shape[1], blocks.n))
            for end, changes in enumerate(chain.changes(each)):
                for way, first, last, size in changes:
                    traffic[way, :, first:last] += size[:, None]
                for start in range(end):
                    inside = set(chain.line[start:end].tolist())
                    assert traffic[ENTERS, :, start].tolist() == entering(chain, inside)
                    assert traffic[LEAVES, :, start].tolist() == leaving(chain, inside, each)


def entering(chain: Chain, inside: set[int]) -> list[float]:
    nets = [net for net in chain.blocks.nets if net.writer not in inside and inside & set(net.readers)]
    return carried(chain.tariffs[ENTERS], [(net, 1) for net in nets])


def leaving(chain: Chain, inside: set[int], each: bool) -> list[float]:
    outside = [(net, len(set(net.readers) - inside)) for net in chain.blocks.nets if net.writer in inside]
    copies = [(net, count if each else min(count, 1)) for net, count in outside]
    return carried(chain.tariffs[LEAVES], copies)


def carried(tariffs: Floats, copies: Sequence[tuple[Net, int]]) -> list[float]:
    """How many messages, and seconds by each tariff."""
    seconds = [sum(n * sum(tariff[list(net.flows)]) for net, n in copies) for tariff in tariffs.T]
    return [sum(n * len(net.flows) for net, n in copies), *seconds]


def best_interval_s(table: CostTable) -> float:
    """The best of all placements that give each device one interval of a line that the solver tries."""
    blocks = merge_blocks(table)
    problem = Problem(table, Goal.THROUGHPUT)
    found = inf
    for chain in chains(blocks):
        for cut in contiguous(blocks.n, table.n_devices):
            found = min(found, value(problem, on_line(chain, cut)))
    return found


def on_line(chain: Chain, cut: Placement) -> Placement:
    device = np.zeros(chain.blocks.n, dtype=np.int64)
    device[chain.line] = cut.device
    return chain.blocks.spread(device)


@given(tables(max_ops=6, uniform=True, readers=1, overlap=False) | offloads(max_ops=6))
def test_it_is_the_best_of_all_intervals(table: CostTable) -> None:
    if lower_bound(Problem(table, Goal.THROUGHPUT)) < inf:
        assert best_s(table) == pytest.approx(best_interval_s(table))


@given(st.data())
def test_it_is_the_best_of_all_intervals_of_a_line_with_overlap(data: st.DataObject) -> None:
    # each interval gets its input from the one before it, over a channel of its own
    table = data.draw(tables(max_ops=6, uniform=True, readers=0, overlap=True))
    flows = line(*data.draw(st.lists(st.integers(0, 9), min_size=table.n_ops - 1, max_size=table.n_ops - 1)))
    table = make_table(table.forward_s, flows, capacity_bytes=table.capacity_bytes, op_bytes=table.op_bytes)
    if lower_bound(Problem(table, Goal.THROUGHPUT)) < inf:
        assert best_s(table) == pytest.approx(best_interval_s(table))


@given(tables(max_ops=6))
def test_whatever_the_links_its_answer_is_feasible(table: CostTable) -> None:
    problem = Problem(table, Goal.THROUGHPUT)
    if lower_bound(problem) < inf:
        placement = best(table)
        assert placement is None or value(problem, placement) < inf


def test_many_operators_are_cut_at_quiet_places() -> None:
    seconds = [1.0, 0.01, 0.01, 0.01] * 2000
    problem = Problem(make_table([[each] * 16 for each in seconds]), Goal.THROUGHPUT)
    answer = ChainDP().search(problem, Budget(60.0, bound_s=sum(seconds) / 16))
    assert answer.placement is not None
    assert value(problem, answer.placement) <= 1.02 * sum(seconds) / 16
