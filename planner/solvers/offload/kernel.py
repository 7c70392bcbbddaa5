"""The inner loop of `planner.solvers.offload.offload_latency`: annealing over placements on accelerators beside a host.

Plain functions of arrays, compiled by numba.
"""

from math import exp, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.table import Floats, Ints
from planner.solvers.compiled import Seed, below, compiled, random
from planner.solvers.offload.calls import OffloadCosts, Scratch, latency_s, scratch

ALONE, BEFORE, AFTER, NEAR, CHAIN, RUN = range(6)  # what moves with a block; drawn in `_gather`
KINDS = 6
ANY = -1
SAME_DEVICE = 0.9  # how often only blocks of the same device move together
TO_NEIGHBOUR = 0.8  # how often they move to the device of a neighbour, rather than to any


class OffloadState(NamedTuple):
    """Where the search is."""

    device: Ints  # [n_ops]
    home: Ints  # [n_blocks], the same for blocks; -1 for one that has not been placed yet
    best: Ints  # [n_blocks], the best placement so far
    used_bytes: Floats  # [n_devices]
    seed: Seed  # [1]


class Move(NamedTuple):
    """Blocks that go to another device together."""

    blocks: Ints  # [n_blocks], of which the first few move
    source: Ints  # [n_blocks], where each of them comes from
    barred: NDArray[np.bool_]  # [n_blocks], those that cannot be added: they move already, or lie outside the window
    size: Ints  # [1], how many move


class Workplace(NamedTuple):
    """All that the kernel writes to."""

    state: OffloadState
    move: Move
    room: Scratch


def workplace(costs: OffloadCosts) -> Workplace:
    """Arrays for a problem, with nothing placed."""
    n_ops, n_blocks, n_devices = len(costs.block), len(costs.n_bytes), len(costs.host)

    def ints(count: int, value: int = 0) -> Ints:
        return np.full(count, value, dtype=np.int64)

    return Workplace(
        OffloadState(ints(n_ops), ints(n_blocks, -1), ints(n_blocks), np.zeros(n_devices), np.ones(1, dtype=np.uint64)),
        Move(ints(n_blocks), ints(n_blocks), np.ones(n_blocks, dtype=bool), ints(1)),
        scratch(n_ops, n_devices),
    )


@compiled
def place(costs: OffloadCosts, start: Ints, state: OffloadState) -> None:
    """Begin with a placement, [n_blocks]."""
    for block in range(len(start)):
        _put(costs, state, block, start[block])
        state.best[block] = start[block]


@compiled
def anneal(costs: OffloadCosts, window: tuple[int, int], heat_s: Floats, work: Workplace) -> None:
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
def _gather(costs: OffloadCosts, state: OffloadState, window: tuple[int, int], move: Move) -> None:
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
def _gather_near(
    costs: OffloadCosts, state: OffloadState, window: tuple[int, int], move: Move, reach: tuple[int, int, int]
) -> None:
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
def _target(costs: OffloadCosts, state: OffloadState, move: Move) -> int:
    """A device to move to."""
    block = move.blocks[below(state.seed, move.size[0])]
    first, last = costs.near_start[block], costs.near_start[block + 1]
    if last > first and random(state.seed) < TO_NEIGHBOUR:
        return int(state.home[costs.near[first + below(state.seed, last - first)]])
    return below(state.seed, len(costs.host))


@compiled
def _allowed(costs: OffloadCosts, state: OffloadState, move: Move, target: int) -> bool:
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
def _put(costs: OffloadCosts, state: OffloadState, block: int, target: int) -> None:
    """Move one block, wherever it is."""
    if state.home[block] >= 0:
        state.used_bytes[state.home[block]] -= costs.n_bytes[block]
    state.used_bytes[target] += costs.n_bytes[block]
    state.home[block] = target
    for i in range(costs.member_start[block], costs.member_start[block + 1]):
        state.device[costs.members[i]] = target
