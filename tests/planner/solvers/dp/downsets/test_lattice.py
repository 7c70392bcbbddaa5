"""Downsets and intervals against their definitions; what is merged beforehand, and which windows stay open."""

from collections.abc import Iterator
from itertools import chain, combinations, product
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.table import CostTable
from planner.problem.blocks import merge_blocks
from planner.problem.problem import Goal, Problem
from planner.solvers.base import Budget
from planner.solvers.dp.downsets.kernel import extend
from planner.solvers.dp.downsets.lattice import Elements, Lattice, elements_of
from planner.solvers.dp.downsets.listing import Parts
from planner.solvers.dp.downsets.reduce import kinds_of, reduce, unordered
from planner.solvers.dp.downsets.sweep import DownsetSweep, SearchSpace, UnorderedBlocks, Windows
from tests.planner.literature.placement.offloads import contiguous_problems, make_offload, offloads
from tests.planner.problem.problems import brute_force, make_table, tables, value

EVERYTHING = np.asarray([[-inf, inf]])
NOTHING: frozenset[int] = frozenset()
ANY = 1_000_000  # downsets
PLENTY = Budget(1e9)
DIAMOND = [(0, (1, 2), 1.0), (1, (3,), 2.0), (2, (3,), 4.0)]


def elements(table: CostTable, inside: frozenset[int] | None = None, tracked: frozenset[int] = NOTHING) -> Elements:
    """The elements when only circles are merged: under a limit that nothing exceeds."""
    held = frozenset(range(table.n_ops)) if inside is None else inside
    kinds = kinds_of(table)
    return elements_of(reduce(table, held, kinds, inf), held, kinds, tracked)


def whole(found: Elements) -> Lattice:
    lattice = found.lattice(np.zeros(len(found.element)), EVERYTHING, ANY, PLENTY)
    assert lattice is not None
    return lattice


def rows(lattice: Lattice) -> set[tuple[int, ...]]:
    """The blocks of each downset."""
    return {tuple(sorted(lattice.elements.element[row].tolist())) for row in lattice.downsets}


# -- downsets ---------------------------------------------------------------------------------------------------------


def test_the_ideals_of_a_diamond() -> None:
    lattice = whole(elements(make_offload([[1, 1]] * 4, DIAMOND)))
    assert rows(lattice) == {(), (0,), (0, 1), (0, 2), (0, 1, 2), (0, 1, 2, 3)}
    assert not lattice.downsets[0].any()
    assert lattice.downsets[-1].all()


@given(tables(max_ops=6))
def test_ideals_are_the_sets_that_hold_what_comes_before(table: CostTable) -> None:
    found = elements(table)
    block = found.blocks.block.tolist()
    pairs = {(block[writer], block[reader]) for writer, reader in table.edges}
    sets = chain.from_iterable(combinations(range(found.blocks.n), size) for size in range(found.blocks.n + 1))
    expected = {some for some in sets if all(a in some or b not in some for a, b in pairs)}
    lattice = whole(found)
    assert rows(lattice) == expected
    assert lattice.n == len(expected)


@given(tables(max_ops=6), st.data())
def test_only_ideals_within_the_spans_are_listed(table: CostTable, data: st.DataObject) -> None:
    found = elements(table)
    n = len(found.element)
    pays = np.asarray(data.draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)), dtype=float)
    ends = data.draw(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=3))
    part = found.lattice(pays, np.asarray(ends, dtype=float), ANY, PLENTY)
    assert part is not None
    all_of_them = whole(found)
    (paid,) = all_of_them.sums(pays)
    expected = [any(low <= seconds <= high for low, high in ends) for seconds in paid]
    assert part.downsets.tolist() == all_of_them.downsets[expected].tolist()


def test_sums_and_words_of_ideals() -> None:
    lattice = whole(elements(make_offload([[1, 1]] * 70, [(op, (op + 1,), 0.0) for op in range(69)])))
    triangles, counts = lattice.sums(np.arange(70.0), np.ones(70))
    assert triangles.tolist() == [n * (n - 1) / 2 for n in range(71)]
    assert counts.tolist() == list(range(71))
    assert [sum(int(word).bit_count() for word in row) for row in lattice.words] == list(range(71))
    assert lattice.words.shape == (71, 2)


# -- intervals ---------------------------------------------------------------------------------------------------------


def charged_s(lattice: Lattice, kind: int) -> dict[tuple[int, int], float]:
    """What the compiled loop charges a device of a kind for the interval from one downset to another."""
    n, n_kinds = lattice.n, len(lattice.elements.kinds.devices)
    states = list(product(range(2), repeat=n_kinds))
    one = states.index(tuple(int(other == kind) for other in range(n_kinds)))
    found: dict[tuple[int, int], float] = {}
    for first in range(n):
        opened = np.ones((n, len(states)), dtype=bool)
        sweep = DownsetSweep(SearchSpace(lattice, states, opened, np.zeros(n), np.full(n_kinds, inf), 1e6))
        reached = sweep.reached
        reached.busiest_s[:] = inf
        reached.busiest_s[first, 0] = 0.0
        extend(
            sweep.field._replace(penalty=sweep.field.penalty._replace(room_bytes=np.full(n_kinds, inf))),
            sweep.sources,
            sweep.scratch,
            reached,
            0,
            2**60,
        )
        found |= {(first, last): float(reached.busiest_s[last, one]) for last in range(n)}
    return found


def defined_s(found: Elements, kind: int, inside: set[int]) -> float:
    """The same by definition, for a set of blocks and the best choice of unordered ones to join them."""
    blocks, device = found.blocks, found.kinds.first[kind]
    free = set(found.unordered.tolist())
    best_s = inf
    for chosen in product([False, True], repeat=len(free)):
        here = inside | {block for block, joins in zip(sorted(free), chosen, strict=True) if joins}
        seconds = sum(float(blocks.forward_s[block, device]) for block in here)
        for net in blocks.nets:
            enter_s, leave_s = (way[kind] for way in found.kinds.seconds(net.flows))
            if net.writer in here:
                seconds += 0.0 if here >= set(net.readers) else leave_s
            elif here & set(net.readers):
                seconds += enter_s
        best_s = min(best_s, seconds)
    return best_s


def pairs_within(lattice: Lattice) -> Iterator[tuple[int, int, set[int]]]:
    """Pairs of downsets, the first one smaller, and the blocks between them."""
    for first, last in product(range(lattice.n), repeat=2):
        if first != last and (lattice.downsets[first] <= lattice.downsets[last]).all():
            between = lattice.downsets[last] & ~lattice.downsets[first]
            yield first, last, set(lattice.elements.element[between].tolist())


@given(offloads(max_ops=5) | tables(max_ops=5, uniform=True))
def test_an_interval_costs_what_its_definition_says(table: CostTable) -> None:
    lattice = whole(elements(table))
    for kind in range(len(lattice.elements.kinds.devices)):
        if not lattice.elements.blocks.fits[:, lattice.elements.kinds.first[kind]].all():
            continue
        charged = charged_s(lattice, kind)
        for first, last, between in pairs_within(lattice):
            expected = defined_s(lattice.elements, kind, between)
            if expected < inf:  # else a device without a link; it is charged more than the limit
                assert charged[first, last] == pytest.approx(expected, abs=1e-6)


@given(contiguous_problems(offloads(max_ops=5, readers=1)))
def test_loose_blocks_are_never_counted_too_high(problem: Problem) -> None:
    lattice = whole(elements(problem.table, problem.contiguous))
    for kind in range(len(lattice.elements.kinds.devices)):
        if not lattice.elements.blocks.fits[:, lattice.elements.kinds.first[kind]].all():
            continue
        charged = charged_s(lattice, kind)
        for first, last, between in pairs_within(lattice):
            least_s, counted_s = defined_s(lattice.elements, kind, between), charged[first, last]
            assert counted_s <= least_s + 1e-6
            if len(lattice.elements.unordered) == 1:  # no nets between unordered blocks
                assert counted_s == pytest.approx(least_s, abs=1e-6)


def test_a_tracked_block_is_an_element() -> None:
    table = make_offload([[1, 1], [1, 1], [9, 9]], [(0, (1,), 1.0), (1, (2,), 1.0)])
    found = elements(table, frozenset({0, 1}))
    assert (found.element.tolist(), found.unordered.tolist()) == ([0, 1], [2])
    found = elements(table, frozenset({0, 1}), tracked=frozenset({2}))
    assert (sorted(found.element.tolist()), found.unordered.tolist()) == ([0, 1, 2], [])
    assert rows(whole(found)) == {(), (0,), (2,), (0, 1), (0, 2), (0, 1, 2)}


# -- kinds -------------------------------------------------------------------------------------------------------------


def test_devices_alike_are_of_one_kind() -> None:
    table = make_offload([[1, 1, 3, 1], [1, 1, 3, 1]], [(0, (1,), 2.0)], hosts=[3])
    assert kinds_of(table).devices == ((0, 1), (2,), (3,))  # a host is of a kind of its own
    assert kinds_of(make_offload([[1, 1, 1]], capacity_bytes=[1, 2, 1])).devices == ((0, 2), (1,))


def test_direct_links_are_charged_at_least_what_the_fastest_costs() -> None:
    # dev0 ─ 1 s a byte ─ dev1, 5 s a byte from and to dev2, and a overhead of 2 s on dev2; flows of 3 bytes
    slopes = [[0, 1, 5], [1, 0, 5], [5, 5, 0]]
    flows = [(0, (1,), 3.0)]
    kinds = kinds_of(make_table([[1] * 3] * 2, flows, per_byte=slopes, overhead_s=[0, 0, 2], overlap=False))
    assert kinds.devices == ((0, 1), (2,))
    assert kinds.enter_s.tolist() == kinds.leave_s.tolist() == [[3.0, 15.0 + 2.0]]
    kinds = kinds_of(make_table([[1] * 3] * 2, flows, per_byte=slopes, overhead_s=[0, 0, 2], overlap=True))
    assert kinds.enter_s.tolist() == kinds.leave_s.tolist() == [[0.0, 2.0]]


# -- what is merged ----------------------------------------------------------------------------------------------------


def merged(table: CostTable, inside: frozenset[int], limit_s: float) -> list[tuple[int, ...]]:
    return [some for some in reduce(table, inside, kinds_of(table), limit_s).members if len(some) > 1]


def test_what_is_between_a_group_joins_it() -> None:
    flows = [(op, (op + 1,), 0.0) for op in range(4)]
    table = make_offload([[1, 1]] * 5, flows, together=((1, 3),))
    assert merged(table, frozenset(range(5)), inf) == [(1, 2, 3)]
    assert merged(table, frozenset({0, 1, 3, 4}), inf) == [(1, 3)]


def test_what_is_too_dear_to_part_is_merged() -> None:
    # apart, op0 and op1 cost their devices 1 + 4 and 4 + 2, or one of them is on the host: 10 and 20 s there
    table = make_offload([[1, 1, 10], [2, 2, 20]], [(0, (1,), 4.0)], hosts=[2])
    inside = frozenset({0, 1})
    assert merged(table, inside, 6.0) == []
    assert merged(table, inside, 5.9) == [(0, 1)]
    # the host could take op0 after all, and op1's device would fetch for 4 s
    table = make_offload([[1, 1, 3], [2, 2, 20]], [(0, (1,), 4.0)], hosts=[2])
    assert merged(table, inside, 5.9) == [(0, 1)]
    assert merged(table, inside, 6.0) == []


def test_a_single_device_of_its_kind_cannot_take_both_of_two_that_are_apart() -> None:
    # op0 and op1 run on dev0 alone within 5 s; apart, one of them would be on dev1
    table = make_offload([[1, 9], [1, 9]], [(0, (1,), 0.0)])
    assert merged(table, frozenset({0, 1}), 5.0) == [(0, 1)]
    assert merged(table, frozenset({0, 1}), 9.0) == []


def test_what_one_device_alone_can_run_is_together() -> None:
    # op0 and op2 run on the host alone, or within 5 s; then op1 between them does, too
    flows = [(op, (op + 1,), 0.0) for op in range(3)]
    table = make_offload([[inf, 4], [1, 4], [inf, 4], [1, 4]], flows, hosts=[1])
    assert merged(table, frozenset(range(4)), inf) == [(0, 1, 2)]
    table = make_offload([[9, 1], [1, 1], [9, 1], [1, 1]], flows, hosts=[1])
    assert merged(table, frozenset(range(4)), 5.0) == [(0, 1, 2)]
    assert merged(table, frozenset(range(4)), 9.0) == []
    table = make_offload([[inf, 4, 4], [1, 4, 4], [inf, 4, 4], [1, 4, 4]], flows, hosts=[1, 2])
    assert merged(table, frozenset(range(4)), inf) == []


def test_a_loose_block_follows_where_it_saves_more_than_it_costs() -> None:
    # op1 computes for 1 s and has 3 + 3 s of transfers with op0: with it, op0 saves 6 s
    flows = [(0, (1,), 3.0), (1, (2,), 3.0)]
    table = make_offload([[1, 1]] * 3, flows, together=((0, 2),))
    assert merged(table, frozenset({0, 2}), inf) == [(0, 1, 2)]
    # it costs 7 s, so op0 may be better off without it
    table = make_offload([[1, 1], [7, 7], [1, 1]], flows, together=((0, 2),))
    assert merged(table, frozenset({0, 2}), inf) == [(0, 2)]


def test_a_loose_block_does_not_follow_to_a_host_or_where_memory_may_be_short() -> None:
    flows = [(0, (1,), 3.0)]
    assert merged(make_offload([[1, 1], [1, 1]], flows), frozenset({0}), inf) == [(0, 1)]
    assert merged(make_offload([[1, 9], [1, 9]], flows, hosts=[1]), frozenset({0}), inf) == []
    assert merged(make_offload([[1, 9], [1, 9]], flows, hosts=[1]), frozenset({0}), 8.0) == [(0, 1)]
    short: dict[str, Any] = {"op_bytes": [1, 1], "capacity_bytes": [1.5, 9]}
    assert merged(make_offload([[1, 1], [1, 1]], flows, **short), frozenset({0}), inf) == []


@given(contiguous_problems(offloads(max_ops=5)), st.integers(0, 4))
def test_merging_never_loses_the_best_placement(problem: Problem, slack: int) -> None:
    best_s = brute_force(problem)
    if best_s == inf:
        return
    blocks = reduce(problem.table, problem.contiguous, kinds_of(problem.table), best_s + slack)
    devices = product(range(problem.table.n_devices), repeat=blocks.n)
    assert min(value(problem, blocks.spread(some)) for some in devices) == best_s


# -- windows -----------------------------------------------------------------------------------------------------------


def test_a_window_leaves_what_the_others_cannot_do() -> None:
    # 2 + 3 + 2 + 3 s on two devices, at most 6 s each: the first one does 4 s at least, and cuts where it costs 1 s
    table = make_offload([[c, c] for c in (2, 3, 2, 3)], [(0, (1,), 1.0), (1, (2,), 1.0), (2, (3,), 1.0)])
    found = elements(table)
    windows = Windows(found, 6.0)
    lattice, opened = windows.open(whole(found))
    assert windows.states == [(0,), (1,), (2,)]
    (paid,) = lattice.sums(windows.pays)
    assert {state: paid[some].tolist() for state, some in zip(windows.states, opened.T, strict=True)} == {
        (0,): [0.0],
        (1,): [pytest.approx(0.5)],
        (2,): [pytest.approx(1.0)],
    }
    _, opened = Windows(found, 5.9).open(whole(found))
    assert opened.sum(axis=0).tolist() == [1, 0, 1]


def test_no_window_opens_for_what_cannot_run_within_the_limit() -> None:
    found = elements(make_offload([[2, 3], [5, 4]]))
    assert not Windows(found, 3.9).possible
    assert Windows(found, 4.0).possible


@given(contiguous_problems(offloads(max_ops=5)), st.integers(0, 4))
def test_the_windows_let_the_best_placement_through(problem: Problem, slack: int) -> None:
    table = problem.table
    problem = Problem(table, Goal.THROUGHPUT, frozenset(range(table.n_ops)))
    best_s = brute_force(problem)
    if best_s == inf:
        return
    found = elements(table)
    windows = Windows(found, best_s + slack)
    assert windows.possible
    part = found.lattice(windows.pays, windows.spans, ANY, PLENTY)
    assert part is not None
    lattice, opened = windows.open(part)
    allowed = {
        state: {downset.tobytes() for downset in lattice.downsets[some]}
        for state, some in zip(windows.states, opened.T, strict=True)
    }
    kind_of = {device: kind for kind, devices in enumerate(found.kinds.devices) for device in devices}
    for devices in product(range(table.n_devices), repeat=found.blocks.n):
        placement = found.blocks.spread(devices)
        if value(problem, placement) > best_s + slack:
            continue
        for downset in whole(found).downsets:
            used = {devices[block] for block in found.element[downset]}
            if used & {devices[block] for block in found.element[~downset]}:
                continue  # cuts through a device
            state = [0] * len(found.kinds.devices)
            for device in used:
                state[kind_of[device]] += 1
            assert downset.tobytes() in allowed[tuple(state)]


# -- unordered blocks -------------------------------------------------------------------------------------------------


def test_a_loose_block_settles_where_most_of_its_neighbours_are() -> None:
    # op3 reads op0, op1 and op2 at 2 s each; with op1 and op2 on dev1, it goes there
    table = make_offload([[1, 1]] * 4, [(op, (3,), 2.0) for op in range(3)])
    found = elements(table, frozenset({0, 1, 2}))
    device = np.asarray([0, 1, 1, 0])
    placed = UnorderedBlocks(found, device)
    placed.settle()
    assert device.tolist() == [0, 1, 1, 1]
    # dev0 pays 2 s, as counted; dev1 pays 2 s to fetch and 1 s to compute, as counted
    assert placed.counted_too_low() == -1
    device[3] = 0  # now dev0 pays 1 + 2 + 2 s, of which 2 s are counted, and dev1 2 + 2 s, of which 2 + 1 s are
    assert placed.counted_too_low() == 3
    assert placed.counted_too_low(least_s=2.9) == 3
    assert placed.counted_too_low(least_s=3.1) == -1


def test_a_loose_block_without_room_is_named_first() -> None:
    table = make_offload([[1, 1], [1, 1], [9, 9]], op_bytes=[4, 4, 4], capacity_bytes=[7, 9])
    found = elements(table, frozenset({0, 1}))
    assert UnorderedBlocks(found, np.asarray([0, 1, 0])).counted_too_low() == 2
    assert UnorderedBlocks(found, np.asarray([0, 1, 1])).counted_too_low(least_s=10.0) == -1


def test_the_block_counted_most_too_low_is_named() -> None:
    # op2 and op3 are unordered and the 9 s between them do not count; op4 has a tensor of 1 s with op1 alone
    flows = [(0, (2,), 20.0), (1, (3,), 20.0), (1, (4,), 1.0), (2, (3,), 9.0)]
    table = make_offload([[1, 1], [1, 1], [30, 30], [30, 30], [2, 2]], flows)
    found = elements(table, frozenset({0, 1}))
    assert found.unordered.tolist() == [2, 3, 4]
    device = np.asarray([0, 1, 0, 1, 1])
    assert UnorderedBlocks(found, device).counted_too_low() == 2


def test_without_loose_blocks_none_is_named() -> None:
    found = elements(make_offload([[1, 1]]))
    assert UnorderedBlocks(found, np.zeros(1, dtype=np.int64)).counted_too_low() == -1


def test_which_blocks_are_loose() -> None:
    table = make_offload([[1, 1]] * 4, together=((0, 3),))
    assert unordered(merge_blocks(table), frozenset({1, 3})).tolist() == [False, False, True]


def test_parts_of_nets() -> None:
    # op0 ─► op1, op2 and op1 ─► op2: {0} holds the writer of the first; {0, 1} one of two readers, too
    found = elements(make_offload([[1, 1]] * 3, [(0, (1, 2), 1.0), (1, (2,), 1.0)]))
    parts = whole(found).open_nets
    assert isinstance(parts, Parts)
    assert parts.start.tolist() == [0, 0, 1, 3, 3]
    assert parts.item.tolist() == [0, 0, 1]
    assert parts.status.tolist() == [[0, 1], [1, 1], [0, 1]]
