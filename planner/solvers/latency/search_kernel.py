"""The compiled part of the local search for latency: annealing over placements and their orders.

::

    move a piece       neighbouring blocks of one device go to another one, often to that of a neighbour
    shift              an operator goes to another place in the order, no further than its writers and readers allow

Half of the moves begin at the critical path: the steps that start as soon as the one before has ended, back from the
last one. Other moves cannot shorten the makespan, but make room.

Source: Kirkpatrick, Gelatt and Vecchi, Optimization by Simulated Annealing, Science 1983.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.table import Floats, Ints
from planner.problem.blocks import Blocks
from planner.solvers.compiled import Seed, below, compiled, random
from planner.solvers.latency.makespan import makespan_s
from planner.solvers.latency.makespan_data import MakespanCosts, Workspace
from simulator.placement import Placement

MOST_PIECES = 12  # blocks that move at once
SHIFTS = 0.4  # share of the moves that shift an operator
CRITICAL = 0.5  # how often a move begins at the critical path
WALK = 0.5  # how often a piece goes to the device of a neighbour


class Walk(NamedTuple):
    """Where the search is."""

    device: Ints  # [n_ops]
    order: Ints  # [n_ops], a topological order
    rank: Ints  # [n_ops], place of each operator in it
    best_device: Ints  # [n_ops], the best so far
    best_order: Ints  # [n_ops], the best so far
    seconds: Floats  # [2], the makespan here and the best one
    block: Ints  # [n_ops], what moves together
    member_start: Ints  # [n_blocks + 1], where the members of each block begin in ``member``
    member: Ints  # [n_ops]
    n_bytes: Floats  # [n_blocks]
    free_bytes: Floats  # [n_devices]
    fits: NDArray[np.bool_]  # [n_blocks, n_devices]
    piece: Ints  # [MOST_PIECES], the blocks that move
    critical: Ints  # [2 * n_ops + 1], operators at the ends of the stages of the critical path, behind their number


class Heat(NamedTuple):
    """The temperatures of a round, in seconds: they fall by the same factor at each step."""

    first_s: float  # at step 0
    last_s: float  # at the last step
    steps: int  # how many there are


def start_walk(blocks: Blocks, placement: Placement, seconds: float) -> Walk:
    """Begin at a feasible placement."""
    device, order = (np.asarray(ops, dtype=np.int64) for ops in (placement.device, placement.order))
    sizes = [len(members) for members in blocks.members]
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
        member_start=np.cumsum([0, *sizes]).astype(np.int64),
        member=np.asarray([op for members in blocks.members for op in members], dtype=np.int64),
        n_bytes=blocks.n_bytes.copy(),
        free_bytes=free_bytes,
        fits=blocks.fits.copy(),
        piece=np.zeros(MOST_PIECES, dtype=np.int64),
        critical=np.zeros(2 * len(device) + 1, dtype=np.int64),
    )


@compiled
def anneal(costs: MakespanCosts, work: Workspace, walk: Walk, heat: Heat, span: tuple[int, int], seed: Seed) -> int:
    """Try the steps of a round from ``span[0]`` to below ``span[1]``, and say how many placements were evaluated."""
    evaluations = 0
    cooling = np.log(heat.last_s / heat.first_s) / max(1, heat.steps - 1)
    for step in range(span[0], span[1]):
        found, to, at = 0, 0, 0
        if random(seed) < SHIFTS:
            at, to = _propose_shift(costs, walk, seed)
            if at == to:
                continue
            _shift(walk, at, to)
        else:
            found, to = _propose_piece(costs, walk, seed)
            if found == 0:
                continue
            at = walk.device[walk.member[walk.member_start[walk.piece[0]]]]
            _move(walk, found, to)
        evaluations += 1
        seconds = makespan_s(costs, work, walk.device, walk.order)
        rise = seconds - walk.seconds[0]
        if rise <= 0 or random(seed) < np.exp(-rise / (heat.first_s * np.exp(cooling * step))):
            walk.seconds[0] = seconds
            _trace(work, walk)
            if seconds < walk.seconds[1]:
                walk.seconds[1] = seconds
                for op in range(len(walk.device)):
                    walk.best_device[op], walk.best_order[op] = walk.device[op], walk.order[op]
        elif found > 0:
            _move(walk, found, at)
        else:
            _shift(walk, to, at)
    return evaluations


@compiled
def _trace(work: Workspace, walk: Walk) -> None:
    """Remember the critical path of what was evaluated last."""
    count, step = 0, work.clock[1]
    while step >= 0:
        if work.sends[step] >= 0:
            stage = work.stage_at[step]
            walk.critical[count + 1], walk.critical[count + 2] = work.first_op[stage], work.last_op[stage]
            count += 2
        step = work.cause[step]
    walk.critical[0] = count


@compiled
def _pick(walk: Walk, seed: Seed) -> int:
    """An operator to begin with."""
    if walk.critical[0] > 0 and random(seed) < CRITICAL:
        return int(walk.critical[1 + below(seed, walk.critical[0])])
    return below(seed, len(walk.device))


@compiled
def _propose_piece(costs: MakespanCosts, walk: Walk, seed: Seed) -> tuple[int, int]:
    """How many blocks of one device to move (they are in ``piece``), and where to; none if they do not fit there."""
    n_devices = len(walk.free_bytes)
    op = _pick(walk, seed)
    at = walk.device[op]
    most = 1 if random(seed) < 0.5 else 2 + below(seed, MOST_PIECES - 1)
    walk.piece[0] = walk.block[op]
    found = 1
    for _ in range(2 * (most - 1)):
        block = walk.piece[below(seed, found)]
        members = walk.member_start[block + 1] - walk.member_start[block]
        other = _neighbour(costs, walk.member[walk.member_start[block] + below(seed, members)], seed)
        if found < most and walk.device[other] == at and not _inside(walk, found, walk.block[other]):
            walk.piece[found] = walk.block[other]
            found += 1
    to = walk.device[_neighbour(costs, op, seed)]
    if to == at or random(seed) > WALK:
        to = below(seed, n_devices)
    if to == at:
        return 0, 0
    n_bytes = 0.0
    for place in range(found):
        n_bytes += walk.n_bytes[walk.piece[place]]
        if not walk.fits[walk.piece[place], to]:
            return 0, 0
    return (found, to) if n_bytes <= walk.free_bytes[to] else (0, 0)


@compiled
def _inside(walk: Walk, found: int, block: int) -> bool:
    """Whether a block is in the piece already."""
    for place in range(found):  # noqa: SIM110  # a generator would have to be compiled too
        if walk.piece[place] == block:
            return True
    return False


@compiled
def _neighbour(costs: MakespanCosts, op: int, seed: Seed) -> int:
    """An operator that writes what this one reads, or reads what it writes; itself if there is none."""
    n_in, n_out = costs.in_start[op + 1] - costs.in_start[op], costs.out_start[op + 1] - costs.out_start[op]
    if n_in + n_out == 0:
        return op
    chosen = below(seed, n_in + n_out)
    if chosen < n_in:
        return int(costs.writer[costs.in_flow[costs.in_start[op] + chosen]])
    flow = costs.out_flow[costs.out_start[op] + chosen - n_in]
    readers = costs.read_start[flow + 1] - costs.read_start[flow]
    return int(costs.reader[costs.read_start[flow] + below(seed, readers)]) if readers > 0 else op


@compiled
def _move(walk: Walk, found: int, to: int) -> None:
    """Move the blocks of the piece to a device."""
    for place in range(found):
        block = walk.piece[place]
        first = walk.member_start[block]
        walk.free_bytes[walk.device[walk.member[first]]] += walk.n_bytes[block]
        walk.free_bytes[to] -= walk.n_bytes[block]
        for entry in range(first, walk.member_start[block + 1]):
            walk.device[walk.member[entry]] = to


@compiled
def _propose_shift(costs: MakespanCosts, walk: Walk, seed: Seed) -> tuple[int, int]:
    """From which place in the order to which; the same twice if the operator cannot move."""
    op = _pick(walk, seed)
    low, high = 0, len(walk.device) - 1
    for place in range(costs.in_start[op], costs.in_start[op + 1]):
        low = max(low, walk.rank[costs.writer[costs.in_flow[place]]] + 1)
    for place in range(costs.out_start[op], costs.out_start[op + 1]):
        flow = costs.out_flow[place]
        for entry in range(costs.read_start[flow], costs.read_start[flow + 1]):
            high = min(high, walk.rank[costs.reader[entry]] - 1)
    return walk.rank[op], low + below(seed, high - low + 1)


@compiled
def _shift(walk: Walk, at: int, to: int) -> None:
    """Move the operator at one place of the order to another place; those in between close up."""
    op = walk.order[at]
    step = 1 if to > at else -1
    for place in range(at, to, step):
        walk.order[place] = walk.order[place + step]
        walk.rank[walk.order[place]] = place
    walk.order[to] = op
    walk.rank[op] = to
