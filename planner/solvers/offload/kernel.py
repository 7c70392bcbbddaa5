"""The inner loop of `planner.solvers.offload.offload_latency`: annealing of placements beside a host; compiled."""

from math import exp, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.table import Floats, Ints
from planner.solvers.compiled import Seed, below, compiled, random
from planner.solvers.offload.calls import OffloadCosts, Scratch, latency_s, scratch

ALONE, BEFORE, AFTER, NEAR, CHAIN, RUN = range(6)  # which blocks move with a block, see `_gather`
KINDS = 6
ANY = -1
SAME_DEVICE = 0.9  # probability that only blocks of the same device move together
TO_NEIGHBOUR = 0.8  # probability that they move to the device of a neighbour, rather than to any device


class OffloadState(NamedTuple):
    """The state of the search."""

    device: Ints  # [n_ops]
    home: Ints  # [n_blocks], the device of each block; -1 before it is placed
    best: Ints  # [n_blocks], the best placement so far
    used_bytes: Floats  # [n_devices]
    seed: Seed  # [1]


class Move(NamedTuple):
    """Blocks that go to another device together."""

    blocks: Ints  # [n_blocks], the blocks that move, in the first ``size`` places
    source: Ints  # [n_blocks], the devices that they leave
    barred: NDArray[np.bool_]  # [n_blocks], blocks that move already or lie outside the window
    size: Ints  # [1], the number of blocks that move


class Workplace(NamedTuple):
    """All arrays that the kernel writes to."""

    state: OffloadState
    move: Move
    room: Scratch


def workplace(costs: OffloadCosts) -> Workplace:
    """The arrays for a problem, without a placement."""
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
    """Start at a placement, [n_blocks]."""
    for block in range(len(start)):
        _put(costs, state, block, start[block])
        state.best[block] = start[block]


@compiled
def anneal(costs: OffloadCosts, window: tuple[int, int], heat_s: Floats, work: Workplace) -> None:
    """Anneal from a feasible placement on (Kirkpatrick et al., Science 1983), and keep the best placement.

    Args:
        costs: of the problem.
        window: the first block that may move, and one after the last.
        heat_s: [n_steps], the temperature: a rise by it is accepted with probability 1 / e.
        work: its placement must be feasible; its best placement is overwritten.
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
        trial_s = latency_s(costs, state.device, room)
        if trial_s <= current_s - heat_s[step] * log(1.0 - random(state.seed)):
            current_s = trial_s
            if trial_s < best_s:
                best_s = trial_s
                for block in range(len(state.home)):
                    state.best[block] = state.home[block]
        else:
            for i in range(move.size[0]):
                _put(costs, state, move.blocks[i], move.source[i])


@compiled
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


@compiled
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


@compiled
def _target(costs: OffloadCosts, state: OffloadState, move: Move) -> int:
    """A random device to move to, often that of a neighbour."""
    block = move.blocks[below(state.seed, move.size[0])]
    first, last = costs.near_start[block], costs.near_start[block + 1]
    if last > first and random(state.seed) < TO_NEIGHBOUR:
        return int(state.home[costs.near[first + below(state.seed, last - first)]])
    return below(state.seed, len(costs.host))


@compiled
def _allowed(costs: OffloadCosts, state: OffloadState, move: Move, target: int) -> bool:
    """Whether a block moves at all, and the target can run all of them and has room."""
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
    """Move one block from wherever it is to a device."""
    if state.home[block] >= 0:
        state.used_bytes[state.home[block]] -= costs.n_bytes[block]
    state.used_bytes[target] += costs.n_bytes[block]
    state.home[block] = target
    for i in range(costs.member_start[block], costs.member_start[block + 1]):
        state.device[costs.members[i]] = target
