"""The compiled part of the local search for latency: annealing over placements and their orders.

::

    move a piece       neighbouring blocks of one device go to another device, often to that of a neighbour
    exchange           two blocks take each other's devices, which keeps devices busy where moving one does not
    shift              an operator goes to another place in the order, between its writers and its readers

Half of the moves begin at the critical path: from the last step back, each step whose end lets the next one start.
Other moves do not shorten the makespan, but make room.

Source: Kirkpatrick, Gelatt and Vecchi, Optimization by Simulated Annealing, Science 1983.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphs.common.arrays import Floats, Ints
from planner.problem.blocks import Blocks
from planner.solvers.compiled import Seed, below, compiled, flat, inner, random
from planner.solvers.latency.makespan import makespan_s
from planner.solvers.latency.makespan_data import MakespanCosts, Workspace
from simulator.placement import Placement

EXCHANGE = -1  # in place of the number of blocks that move
MOST_PIECES = 12  # blocks that move at once
SHIFTS = 0.4  # share of the moves that shift an operator
EXCHANGES = 0.2  # share of the moves that exchange two blocks
CRITICAL = 0.5  # probability that a move begins at the critical path
WALK = 0.5  # probability that a piece goes to the device of a neighbour


class Walk(NamedTuple):
    """The state of the search."""

    device: Ints  # [n_ops]
    order: Ints  # [n_ops], a topological order
    rank: Ints  # [n_ops], the place of each operator in the order
    best_device: Ints  # [n_ops], of the best makespan
    best_order: Ints  # [n_ops], of the best makespan
    seconds: Floats  # [2], the present makespan and the best one
    block: Ints  # [n_ops], operators of a block move together
    member_start: Ints  # [n_blocks + 1], where the members of each block begin in ``member``
    member: Ints  # [n_ops]
    n_bytes: Floats  # [n_blocks]
    free_bytes: Floats  # [n_devices]
    fits: NDArray[np.bool_]  # [n_blocks, n_devices]
    piece: Ints  # [MOST_PIECES], the blocks that move
    critical: Ints  # [2 * n_ops + 1], a count, then that many operators at the ends of stages on the critical path


class Heat(NamedTuple):
    """The temperatures of a round, in seconds: they fall by the same factor at each step."""

    first_s: float  # at step 0
    last_s: float  # at the last step
    steps: int  # of the round


def start_walk(blocks: Blocks, placement: Placement, seconds: float) -> Walk:
    """Return the state at a feasible placement with this makespan."""
    device, order = (np.asarray(ops, dtype=np.int64) for ops in (placement.device, placement.order))
    member_start, member = flat(blocks.members)
    free_bytes = blocks.room_bytes.copy()
    np.subtract.at(free_bytes, blocks.devices_of(placement), blocks.n_bytes)
    return Walk(
        device=device,
        order=order,
        rank=np.asarray(placement.rank, dtype=np.int64),
        best_device=device.copy(),
        best_order=order.copy(),
        seconds=np.full(2, seconds),
        block=blocks.block.copy(),
        member_start=member_start,
        member=member,
        n_bytes=blocks.n_bytes.copy(),
        free_bytes=free_bytes,
        fits=blocks.fits.copy(),
        piece=np.zeros(MOST_PIECES, dtype=np.int64),
        critical=np.zeros(2 * len(device) + 1, dtype=np.int64),
    )


@compiled
def anneal(costs: MakespanCosts, work: Workspace, walk: Walk, heat: Heat, span: tuple[int, int], seed: Seed) -> None:
    """Take the steps of a round from ``span[0]`` to below ``span[1]``."""
    cooling = np.log(heat.last_s / heat.first_s) / max(1, heat.steps - 1)
    for step in range(span[0], span[1]):
        n_moved, to, at = 0, 0, 0
        kind = random(seed)
        if kind < SHIFTS:
            at, to = _propose_shift(costs, walk, seed)
            if at == to:
                continue
            _shift(walk, at, to)
        elif kind < SHIFTS + EXCHANGES:
            if not _propose_exchange(walk, seed):
                continue
            n_moved = EXCHANGE
            _exchange(walk)
        else:
            n_moved, to = _propose_piece(costs, walk, seed)
            if n_moved == 0:
                continue
            at = walk.device[walk.member[walk.member_start[walk.piece[0]]]]
            _move(walk, n_moved, to)
        seconds = makespan_s(costs, work, walk.device, walk.order)
        rise = seconds - walk.seconds[0]
        if rise <= 0 or random(seed) < np.exp(-rise / (heat.first_s * np.exp(cooling * step))):
            walk.seconds[0] = seconds
            _trace(work, walk)
            if seconds < walk.seconds[1]:
                walk.seconds[1] = seconds
                for op in range(len(walk.device)):
                    walk.best_device[op], walk.best_order[op] = walk.device[op], walk.order[op]
        elif n_moved == EXCHANGE:
            _exchange(walk)
        elif n_moved > 0:
            _move(walk, n_moved, at)
        else:
            _shift(walk, to, at)


@inner
def _trace(work: Workspace, walk: Walk) -> None:
    """Write down the critical path of the placement that was evaluated last."""
    count, step = 0, work.clock[1]
    while step >= 0:
        if work.sends[step] >= 0:
            stage = work.stage_at[step]
            walk.critical[count + 1], walk.critical[count + 2] = work.first_op[stage], work.last_op[stage]
            count += 2
        step = work.cause[step]
    walk.critical[0] = count


@inner
def _pick(walk: Walk, seed: Seed) -> int:
    """Return a random operator to begin a move with, often on the critical path."""
    if walk.critical[0] > 0 and random(seed) < CRITICAL:
        return int(walk.critical[1 + below(seed, walk.critical[0])])
    return below(seed, len(walk.device))


@inner
def _propose_piece(costs: MakespanCosts, walk: Walk, seed: Seed) -> tuple[int, int]:
    """Write blocks of one device into ``piece``; return their number and their new device, or 0 if they do not fit."""
    n_devices = len(walk.free_bytes)
    op = _pick(walk, seed)
    at = walk.device[op]
    most = 1 if random(seed) < 0.5 else 2 + below(seed, MOST_PIECES - 1)
    walk.piece[0] = walk.block[op]
    n_moved = 1
    for _ in range(2 * (most - 1)):
        block = walk.piece[below(seed, n_moved)]
        members = walk.member_start[block + 1] - walk.member_start[block]
        other = _neighbour(costs, walk.member[walk.member_start[block] + below(seed, members)], seed)
        if n_moved < most and walk.device[other] == at and not _inside(walk, n_moved, walk.block[other]):
            walk.piece[n_moved] = walk.block[other]
            n_moved += 1
    to = walk.device[_neighbour(costs, op, seed)]
    if to == at or random(seed) > WALK:
        to = below(seed, n_devices)
    if to == at:
        return 0, 0
    n_bytes = 0.0
    for place in range(n_moved):
        n_bytes += walk.n_bytes[walk.piece[place]]
        if not walk.fits[walk.piece[place], to]:
            return 0, 0
    return (n_moved, to) if n_bytes <= walk.free_bytes[to] else (0, 0)


@inner
def _inside(walk: Walk, n_moved: int, block: int) -> bool:
    """Return whether a block is in the piece already."""
    for place in range(n_moved):  # noqa: SIM110  # numba compiles no generator here
        if walk.piece[place] == block:
            return True
    return False


@inner
def _neighbour(costs: MakespanCosts, op: int, seed: Seed) -> int:
    """Return a random writer or reader of an operator; the operator itself if it has none."""
    n_in, n_out = costs.in_start[op + 1] - costs.in_start[op], costs.out_start[op + 1] - costs.out_start[op]
    if n_in + n_out == 0:
        return op
    chosen = below(seed, n_in + n_out)
    if chosen < n_in:
        return int(costs.writer[costs.in_flow[costs.in_start[op] + chosen]])
    flow = costs.out_flow[costs.out_start[op] + chosen - n_in]
    readers = costs.read_start[flow + 1] - costs.read_start[flow]
    return int(costs.reader[costs.read_start[flow] + below(seed, readers)]) if readers > 0 else op


@inner
def _move(walk: Walk, n_moved: int, to: int) -> None:
    """Move the blocks of the piece to a device."""
    for place in range(n_moved):
        block = walk.piece[place]
        first = walk.member_start[block]
        walk.free_bytes[walk.device[walk.member[first]]] += walk.n_bytes[block]
        walk.free_bytes[to] -= walk.n_bytes[block]
        for entry in range(first, walk.member_start[block + 1]):
            walk.device[walk.member[entry]] = to


@inner
def _propose_exchange(walk: Walk, seed: Seed) -> bool:
    """Write two blocks into ``piece``; whether they are on two devices, and each fits on that of the other."""
    for place in range(2):
        walk.piece[place] = walk.block[_pick(walk, seed) if place == 0 else below(seed, len(walk.device))]
    one, other = walk.piece[0], walk.piece[1]
    here, there = walk.device[walk.member[walk.member_start[one]]], walk.device[walk.member[walk.member_start[other]]]
    more = walk.n_bytes[other] - walk.n_bytes[one]
    return bool(
        here != there
        and walk.fits[one, there]
        and walk.fits[other, here]
        and -walk.free_bytes[there] <= more <= walk.free_bytes[here]
    )


@inner
def _exchange(walk: Walk) -> None:
    """Let the two blocks of the piece take each other's devices."""
    one, other = walk.piece[0], walk.piece[1]
    here, there = walk.device[walk.member[walk.member_start[one]]], walk.device[walk.member[walk.member_start[other]]]
    more = walk.n_bytes[other] - walk.n_bytes[one]
    walk.free_bytes[here] -= more
    walk.free_bytes[there] += more
    for entry in range(walk.member_start[one], walk.member_start[one + 1]):
        walk.device[walk.member[entry]] = there
    for entry in range(walk.member_start[other], walk.member_start[other + 1]):
        walk.device[walk.member[entry]] = here


@inner
def _propose_shift(costs: MakespanCosts, walk: Walk, seed: Seed) -> tuple[int, int]:
    """Return an operator's place in the order and its new place, which are equal if it cannot move."""
    op = _pick(walk, seed)
    low, high = 0, len(walk.device) - 1
    for place in range(costs.in_start[op], costs.in_start[op + 1]):
        low = max(low, walk.rank[costs.writer[costs.in_flow[place]]] + 1)
    for place in range(costs.out_start[op], costs.out_start[op + 1]):
        flow = costs.out_flow[place]
        for entry in range(costs.read_start[flow], costs.read_start[flow + 1]):
            high = min(high, walk.rank[costs.reader[entry]] - 1)
    return walk.rank[op], low + below(seed, high - low + 1)


@inner
def _shift(walk: Walk, at: int, to: int) -> None:
    """Move the operator at one place of the order to another place, and those in between by one place."""
    op = walk.order[at]
    step = 1 if to > at else -1
    for place in range(at, to, step):
        walk.order[place] = walk.order[place + step]
        walk.rank[walk.order[place]] = place
    walk.order[to] = op
    walk.rank[op] = to
