"""The inner loop of `planner.solvers.latency.offload_latency`: annealing over placements on accelerators beside a host.

Plain functions of arrays, compiled by numba. The latency is that of `simulator.offload`; here it takes microseconds.
"""

from math import exp, inf, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.table import Floats, Ints
from planner.solvers.compiled import Seed, below, compiled, random

ALONE, BEFORE, AFTER, NEAR, CHAIN, RUN = range(6)  # what moves with a block; drawn in `_gather`
KINDS = 6
ANY = -1
SAME_DEVICE = 0.9  # how often only blocks of the same device move together
TO_NEIGHBOUR = 0.8  # how often they move to the device of a neighbour, rather than to any


class Costs(NamedTuple):
    """What is placed and what it costs. An edge is a flow and one of its readers.

    Attributes:
        forward_s: [n_ops, n_devices], infinite where an operator cannot run.
        store_s: [n_flows, n_devices].
        fetch_s: [n_flows, n_devices].
        host: [n_devices].
        flow_start: [n_ops + 1], where an operator's flows begin; flows are sorted by their writers.
        edge_start: [n_flows + 1], where a flow's readers begin.
        readers: [n_edges], operators.
        block: [n_ops], the block of an operator.
        member_start: [n_blocks + 1], where a block's operators begin.
        members: [n_ops], operators.
        n_bytes: [n_blocks].
        room_bytes: [n_devices].
        fits: [n_blocks, n_devices], whether a block can run on a device.
        near_start: [n_blocks + 1], where a block's neighbours begin.
        near_after: [n_blocks], where those neighbours begin that read what the block writes.
        near: [n_pairs], blocks.
        chain: [n_blocks], a number that blocks have in common if there is one way through them, without forks.
    """

    forward_s: Floats
    store_s: Floats
    fetch_s: Floats
    host: NDArray[np.bool_]
    flow_start: Ints
    edge_start: Ints
    readers: Ints
    block: Ints
    member_start: Ints
    members: Ints
    n_bytes: Floats
    room_bytes: Floats
    fits: NDArray[np.bool_]
    near_start: Ints
    near_after: Ints
    near: Ints
    chain: Ints


class State(NamedTuple):
    """Where the search is.

    Attributes:
        device: [n_ops].
        home: [n_blocks], the same for blocks; -1 for one that has not been placed yet.
        best: [n_blocks], the best placement so far.
        used_bytes: [n_devices].
        seed: [1].
    """

    device: Ints
    home: Ints
    best: Ints
    used_bytes: Floats
    seed: Seed


class Move(NamedTuple):
    """Blocks that go to another device together.

    Attributes:
        blocks: [n_blocks], of which the first few move.
        source: [n_blocks], where each of them comes from.
        barred: [n_blocks], those that cannot be added: they move already, or lie outside the window.
        size: [1], how many move.
    """

    blocks: Ints
    source: Ints
    barred: NDArray[np.bool_]
    size: Ints


class Scratch(NamedTuple):
    """Room for one evaluation. Units are devices, then operators: on the host, each of them is one of its own.

    Attributes:
        load_s: [n_devices].
        ready_s: [n_devices + n_ops], when all that a unit needs is there.
        missing: [n_devices + n_ops], how many edges a unit waits for.
        stack: [n_devices + n_ops], units that may start.
        first: [n_devices], an operator of a device, from where ``following`` leads to the others; -1 for none.
        following: [n_ops].
        fetched: [n_devices], the flow that a device has fetched last.
    """

    load_s: Floats
    ready_s: Floats
    missing: Ints
    stack: Ints
    first: Ints
    following: Ints
    fetched: Ints


class Workplace(NamedTuple):
    """All that the kernel writes to."""

    state: State
    move: Move
    room: Scratch


def workplace(costs: Costs) -> Workplace:
    """Arrays for a problem, with nothing placed."""
    n_ops, n_blocks, n_devices = len(costs.block), len(costs.n_bytes), len(costs.host)
    units = n_ops + n_devices

    def ints(count: int, value: int = 0) -> Ints:
        return np.full(count, value, dtype=np.int64)

    return Workplace(
        State(ints(n_ops), ints(n_blocks, -1), ints(n_blocks), np.zeros(n_devices), np.ones(1, dtype=np.uint64)),
        Move(ints(n_blocks), ints(n_blocks), np.ones(n_blocks, dtype=bool), ints(1)),
        Scratch(
            np.zeros(n_devices),
            np.zeros(units),
            ints(units),
            ints(units),
            ints(n_devices),
            ints(n_ops),
            ints(n_devices),
        ),
    )


@compiled
def latency_s(costs: Costs, device: Ints, room: Scratch) -> float:
    """When the last operator finishes; infinite if accelerators wait for each other in a circle.

    Args:
        costs: of the problem.
        device: [n_ops].
        room: overwritten.
    """
    waiting = _count(costs, device, room)
    k = len(costs.host)
    top, last_s = _start(costs, device, room), 0.0
    while top:
        top -= 1
        unit = room.stack[top]
        waiting -= 1
        op = room.first[unit] if unit < k else unit - k
        finish_s = room.ready_s[unit] + (room.load_s[unit] if unit < k else costs.forward_s[op, device[op]])
        last_s = max(last_s, finish_s)
        while op >= 0:
            for edge in range(costs.edge_start[costs.flow_start[op]], costs.edge_start[costs.flow_start[op + 1]]):
                reader = costs.readers[edge]
                after = k + reader if costs.host[device[reader]] else device[reader]
                if after != unit:
                    room.ready_s[after] = max(room.ready_s[after], finish_s)
                    room.missing[after] -= 1
                    if room.missing[after] == 0:
                        room.stack[top] = after
                        top += 1
            op = room.following[op] if unit < k else -1
    return inf if waiting else last_s


@compiled
def _count(costs: Costs, device: Ints, room: Scratch) -> int:
    """Fill in loads, operators of each device and what every unit waits for; returns how many units there are."""
    k = len(costs.host)
    for unit in range(len(room.ready_s)):
        room.ready_s[unit], room.missing[unit] = 0.0, 0
    for d in range(k):
        room.load_s[d], room.first[d], room.fetched[d] = 0.0, -1, -1
    units = 0
    for op in range(len(device)):
        d = device[op]
        units += costs.host[d] or room.first[d] < 0
        room.load_s[d] += costs.forward_s[op, d]
        room.following[op] = room.first[d]
        room.first[d] = op
        for flow in range(costs.flow_start[op], costs.flow_start[op + 1]):
            stored = False
            for edge in range(costs.edge_start[flow], costs.edge_start[flow + 1]):
                reader = costs.readers[edge]
                to = device[reader]
                if to != d and room.fetched[to] != flow:
                    room.fetched[to] = flow
                    room.load_s[to] += costs.fetch_s[flow, to]
                    stored = True
                if costs.host[to]:
                    room.missing[k + reader] += 1
                elif to != d:
                    room.missing[to] += 1
            if stored:
                room.load_s[d] += costs.store_s[flow, d]
    return units


@compiled
def _start(costs: Costs, device: Ints, room: Scratch) -> int:
    """Stack the units that wait for nothing; returns how many."""
    k, top = len(costs.host), 0
    for d in range(k):
        if room.first[d] >= 0 and not costs.host[d] and room.missing[d] == 0:
            room.stack[top] = d
            top += 1
    for op in range(len(device)):
        if costs.host[device[op]] and room.missing[k + op] == 0:
            room.stack[top] = k + op
            top += 1
    return top


@compiled
def place(costs: Costs, start: Ints, state: State) -> None:
    """Begin with a placement, [n_blocks]."""
    for block in range(len(start)):
        _put(costs, state, block, start[block])
        state.best[block] = start[block]


@compiled
def anneal(costs: Costs, window: tuple[int, int], heat_s: Floats, work: Workplace) -> None:
    """Go from a placement to neighbouring ones, uphill less and less (Kirkpatrick et al., Science 1983).

    Args:
        costs: of the problem.
        window: only blocks from the first to before the second move.
        heat_s: [n_steps], what a step may go uphill with the probability 1 / e.
        work: its placement must be feasible; its best one becomes the best that is met here.
    """
    state, move, room = work
    best_s = current_s = latency_s(costs, state.device, room)
    for block in range(len(state.home)):
        state.best[block] = state.home[block]
    for step in range(len(heat_s)):
        _gather(costs, state, window, move)
        target = _target(costs, state, move)
        if not _allowed(costs, state, move, target):
            continue
        for i in range(move.size[0]):
            move.source[i] = state.home[move.blocks[i]]
            _put(costs, state, move.blocks[i], target)
        found_s = latency_s(costs, state.device, room)
        if found_s <= current_s - heat_s[step] * log(1.0 - random(state.seed)):
            current_s = found_s
            if found_s < best_s:
                best_s = found_s
                for block in range(len(state.home)):
                    state.best[block] = state.home[block]
        else:
            for i in range(move.size[0]):
                _put(costs, state, move.blocks[i], move.source[i])


@compiled
def _gather(costs: Costs, state: State, window: tuple[int, int], move: Move) -> None:
    """Choose blocks that move together.

    ::

        a ─► b ─► [c] ─► d ─► e ─► f       BEFORE  a b c      what c needs, directly or not
                   ▲           ▲           AFTER   c d e f    what needs c
        g ─────────┘           │           NEAR    any of those and g and h
        h ─────────────────────┘           CHAIN   c d        one way through, without forks
                                           RUN     c d e      the next ones in the order of blocks

    All but chains may be cut off at a random number of blocks, small ones more often.
    """
    lowest, end = window
    block, kind = lowest + below(state.seed, end - lowest), below(state.seed, KINDS)
    most, device = end - lowest, state.home[block]
    move.blocks[0], move.size[0] = block, 1
    if kind == ALONE:
        return
    if kind in (NEAR, RUN) or (kind != CHAIN and random(state.seed) < 0.5):
        most = 1 + int(exp(random(state.seed) * log(most)))
    if kind != CHAIN and random(state.seed) >= SAME_DEVICE:
        device = ANY
    if kind != RUN:
        _gather_near(costs, state, window, move, (kind, most, device))
        return
    for other in range(block + 1, min(end, block + most)):
        if device == ANY or device == state.home[other]:
            move.blocks[move.size[0]] = other
            move.size[0] += 1


@compiled
def _gather_near(costs: Costs, state: State, window: tuple[int, int], move: Move, reach: tuple[int, int, int]) -> None:
    """Add neighbours, and theirs: which kind, up to so many, and of which device."""
    kind, most, device = reach
    for other in range(window[0], window[1]):
        move.barred[other] = False
    count, at, chain = 1, 0, costs.chain[move.blocks[0]]
    move.barred[move.blocks[0]] = True
    while at < count and count < most:
        here = move.blocks[at]
        at += 1
        first = costs.near_after[here] if kind == AFTER else costs.near_start[here]
        last = costs.near_after[here] if kind == BEFORE else costs.near_start[here + 1]
        for edge in range(first, last):
            other = costs.near[edge]
            same = (device == ANY or device == state.home[other]) and (kind != CHAIN or costs.chain[other] == chain)
            if same and not move.barred[other] and count < most:
                move.barred[other] = True
                move.blocks[count] = other
                count += 1
    move.size[0] = count


@compiled
def _target(costs: Costs, state: State, move: Move) -> int:
    """A device to move to."""
    block = move.blocks[below(state.seed, move.size[0])]
    first, last = costs.near_start[block], costs.near_start[block + 1]
    if last > first and random(state.seed) < TO_NEIGHBOUR:
        return int(state.home[costs.near[first + below(state.seed, last - first)]])
    return below(state.seed, len(costs.host))


@compiled
def _allowed(costs: Costs, state: State, move: Move, target: int) -> bool:
    """Whether something moves at all, it can run there, and there is room."""
    n_bytes, moves = state.used_bytes[target], False
    for i in range(move.size[0]):
        block = move.blocks[i]
        if state.home[block] != target:
            if not costs.fits[block, target]:
                return False
            moves = True
            n_bytes += costs.n_bytes[block]
    return bool(moves and n_bytes <= costs.room_bytes[target])


@compiled
def _put(costs: Costs, state: State, block: int, target: int) -> None:
    """Move one block, wherever it is."""
    if state.home[block] >= 0:
        state.used_bytes[state.home[block]] -= costs.n_bytes[block]
    state.used_bytes[target] += costs.n_bytes[block]
    state.home[block] = target
    for i in range(costs.member_start[block], costs.member_start[block + 1]):
        state.device[costs.members[i]] = target
