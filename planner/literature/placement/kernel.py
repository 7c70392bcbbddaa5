"""The inner loop of `planner.literature.placement.offload_latency`; compiled: annealing for a host with accelerators.

The latency of each placement, as in `simulator.simulate`, takes microseconds.
"""

from math import exp, inf, log
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphs.common.arrays import Floats, Ints
from planner.solvers.compiled import Seed, below, compiled, inner, random, zeros


class OffloadCosts(NamedTuple):
    """The operators, the flows and their costs as flat arrays. An edge is a flow and one of its readers."""

    forward_s: Floats  # [n_ops, n_devices], infinite where an operator cannot run
    store_s: Floats  # [n_flows, n_devices]
    fetch_s: Floats  # [n_flows, n_devices]
    host: NDArray[np.bool_]  # [n_devices]
    flow_start: Ints  # [n_ops + 1], where an operator's flows begin; flows are sorted by their writers
    edge_start: Ints  # [n_flows + 1], where a flow's readers begin
    readers: Ints  # [n_edges], operators
    block: Ints  # [n_ops], the block of an operator
    member_start: Ints  # [n_blocks + 1], where a block's operators begin
    members: Ints  # [n_ops], operators
    n_bytes: Floats  # [n_blocks]
    room_bytes: Floats  # [n_devices]
    fits: NDArray[np.bool_]  # [n_blocks, n_devices], whether a block can run on a device
    near_start: Ints  # [n_blocks + 1], where a block's neighbours begin
    near_after: Ints  # [n_blocks], where the neighbours begin that read from the block, after those that it reads from
    near: Ints  # [n_pairs], blocks
    chain: Ints  # [n_blocks], a number that all blocks of a chain without forks share
    tail_s: Floats  # [n_ops], seconds from the start of an operator to the end at least


class LatencyScratch(NamedTuple):
    """Scratch arrays of one evaluation. A unit, [n_units], is an accelerator (first) or an operator on the host."""

    load_s: Annotated[Floats, "n_devices"]
    ready_s: Annotated[Floats, "n_units"]  # when all inputs of a unit are there
    missing: Annotated[Ints, "n_units"]  # the number of edges that a unit waits for
    stack: Annotated[Ints, "n_units"]  # units that may start
    first: Annotated[Ints, "n_devices"]  # the first operator in the linked list of a device, or -1
    following: Annotated[Ints, "n_ops"]  # the next operator in the list, or -1
    fetched: Annotated[Ints, "n_devices"]  # the flow that a device has fetched last


@compiled
def latency_s(costs: OffloadCosts, device: Ints, room: LatencyScratch) -> float:
    """Return the seconds until the last operator of a placement, [n_ops], ends; infinite if accelerators deadlock.

    The device of an operator that is not placed yet is -1. Such operators delay no others, and operators after them
    take their least time, so the result is a lower bound for any placement of the rest.
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
                if device[reader] < 0:
                    last_s = max(last_s, finish_s + costs.tail_s[reader])
                    continue
                after = k + reader if costs.host[device[reader]] else device[reader]
                if after != unit:
                    room.ready_s[after] = max(room.ready_s[after], finish_s)
                    room.missing[after] -= 1
                    if room.missing[after] == 0:
                        room.stack[top] = after
                        top += 1
            op = room.following[op] if unit < k else -1
    return inf if waiting else last_s


@inner
def _count(costs: OffloadCosts, device: Ints, room: LatencyScratch) -> int:
    """Fill in the loads and operators of devices and the edges that units wait for; return the number of units."""
    k = len(costs.host)
    for unit in range(len(room.ready_s)):
        room.ready_s[unit], room.missing[unit] = 0.0, 0
    for d in range(k):
        room.load_s[d], room.first[d], room.fetched[d] = 0.0, -1, -1
    units = 0
    for op in range(len(device)):
        d = device[op]
        if d < 0:
            continue
        units += costs.host[d] or room.first[d] < 0
        room.load_s[d] += costs.forward_s[op, d]
        room.following[op] = room.first[d]
        room.first[d] = op
        for flow in range(costs.flow_start[op], costs.flow_start[op + 1]):
            stored = False
            for edge in range(costs.edge_start[flow], costs.edge_start[flow + 1]):
                reader = costs.readers[edge]
                to = device[reader]
                if to < 0:
                    continue
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


@inner
def _start(costs: OffloadCosts, device: Ints, room: LatencyScratch) -> int:
    """Stack the units that wait for nothing; return their number."""
    k, top = len(costs.host), 0
    for d in range(k):
        if room.first[d] >= 0 and not costs.host[d] and room.missing[d] == 0:
            room.stack[top] = d
            top += 1
    for op in range(len(device)):
        if device[op] >= 0 and costs.host[device[op]] and room.missing[k + op] == 0:
            room.stack[top] = k + op
            top += 1
    return top


ALONE, BEFORE, AFTER, NEAR, CHAIN, RUN = range(6)  # which blocks move with a block, see `_gather`
KINDS = 6
ANY = -1
SAME_DEVICE = 0.9  # probability that only blocks of the same device move together
TO_NEIGHBOUR = 0.8  # probability that they move to the device of a neighbour, rather than to any device


class OffloadState(NamedTuple):
    """The state of the search."""

    device: Annotated[Ints, "n_ops"]
    home: Ints  # [n_blocks], the device of each block; -1 before it is placed
    best: Annotated[Ints, "n_blocks"]  # the best placement so far
    used_bytes: Annotated[Floats, "n_devices"]
    seed: Seed  # [1]


class Move(NamedTuple):
    """Blocks that go to another device together."""

    blocks: Annotated[Ints, "n_blocks"]  # the blocks that move, in the first ``size`` places
    source: Annotated[Ints, "n_blocks"]  # the devices that they leave
    barred: NDArray[np.bool_]  # [n_blocks], blocks that move already or lie outside the window
    size: Annotated[Ints, 1]  # the number of blocks that move


class Workplace(NamedTuple):
    """All arrays that the kernel writes to."""

    state: OffloadState
    move: Move
    room: LatencyScratch


def workplace(costs: OffloadCosts) -> Workplace:
    """Return the arrays for a problem, without a placement."""
    n_blocks, sizes = len(costs.n_bytes), {"n_ops": len(costs.block), "n_devices": len(costs.host)}
    sizes |= {"n_blocks": n_blocks, "n_units": sum(sizes.values())}
    state = zeros(OffloadState, sizes, home=np.full(n_blocks, -1), seed=np.ones(1, dtype=np.uint64))
    return Workplace(state, zeros(Move, sizes, barred=np.ones(n_blocks, dtype=bool)), zeros(LatencyScratch, sizes))


@compiled
def place(costs: OffloadCosts, start: Ints, state: OffloadState) -> None:
    """Start at a placement, [n_blocks]."""
    for block in range(len(start)):
        put(costs, state, block, start[block])
        state.best[block] = start[block]


@compiled
def anneal_offload(costs: OffloadCosts, window: tuple[int, int], heat_s: Floats, work: Workplace) -> None:
    """Anneal from a feasible placement on (Kirkpatrick et al., Science 1983), and keep the best placement.

    Blocks from ``window[0]`` to below ``window[1]`` may move. A rise by the temperature ``heat_s``, [n_steps], is
    accepted with probability 1 / e.
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
            put(costs, state, move.blocks[i], target)
        trial_s = latency_s(costs, state.device, room)
        if trial_s <= current_s - heat_s[step] * log(1.0 - random(state.seed)):
            current_s = trial_s
            if trial_s < best_s:
                best_s = trial_s
                for block in range(len(state.home)):
                    state.best[block] = state.home[block]
        else:
            for i in range(move.size[0]):
                put(costs, state, move.blocks[i], move.source[i])


@inner
def _gather(costs: OffloadCosts, state: OffloadState, window: tuple[int, int], move: Move) -> None:
    """Choose blocks that move together.

    ::

        a ─► b ─► [c] ─► d ─► e ─► f       BEFORE  a b c g    blocks that c needs, directly or not
                   ▲           ▲           AFTER   c d e f    blocks that need c
        g ─────────┘           │           NEAR    all blocks around c
        h ─────────────────────┘           CHAIN   c d        blocks of one chain without forks
                                           RUN     c d e      the next blocks in their order

    All sets but chains may stop at a random number of blocks, more often at a small one.
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


@inner
def _gather_near(
    costs: OffloadCosts, state: OffloadState, window: tuple[int, int], move: Move, reach: tuple[int, int, int]
) -> None:
    """Add neighbours breadth first; ``reach`` is their kind, the most blocks in all, and their device or `ANY`."""
    kind, most, device = reach
    for other in range(window[0], window[1]):
        move.barred[other] = False
    count, at, chain = 1, 0, costs.chain[move.blocks[0]]
    move.barred[move.blocks[0]] = True
    while at < count and count < most:
        block = move.blocks[at]
        at += 1
        first = costs.near_after[block] if kind == AFTER else costs.near_start[block]
        last = costs.near_after[block] if kind == BEFORE else costs.near_start[block + 1]
        for edge in range(first, last):
            other = costs.near[edge]
            same = (device == ANY or device == state.home[other]) and (kind != CHAIN or costs.chain[other] == chain)
            if same and not move.barred[other] and count < most:
                move.barred[other] = True
                move.blocks[count] = other
                count += 1
    move.size[0] = count


@inner
def _target(costs: OffloadCosts, state: OffloadState, move: Move) -> int:
    """Return a random device to move to, often that of a neighbour."""
    block = move.blocks[below(state.seed, move.size[0])]
    first, last = costs.near_start[block], costs.near_start[block + 1]
    if last > first and random(state.seed) < TO_NEIGHBOUR:
        return int(state.home[costs.near[first + below(state.seed, last - first)]])
    return below(state.seed, len(costs.host))


@inner
def _allowed(costs: OffloadCosts, state: OffloadState, move: Move, target: int) -> bool:
    """Return whether a block moves at all, and the target can run all of them and has room."""
    n_bytes, moves = state.used_bytes[target], False
    for i in range(move.size[0]):
        block = move.blocks[i]
        if state.home[block] != target:
            if not costs.fits[block, target]:
                return False
            moves = True
            n_bytes += costs.n_bytes[block]
    return bool(moves and n_bytes <= costs.room_bytes[target])


@inner
def put(costs: OffloadCosts, state: OffloadState, block: int, target: int) -> None:
    """Move one block from wherever it is to a device, or off all devices (-1)."""
    if state.home[block] >= 0:
        state.used_bytes[state.home[block]] -= costs.n_bytes[block]
    if target >= 0:
        state.used_bytes[target] += costs.n_bytes[block]
    state.home[block] = target
    for i in range(costs.member_start[block], costs.member_start[block + 1]):
        state.device[costs.members[i]] = target
