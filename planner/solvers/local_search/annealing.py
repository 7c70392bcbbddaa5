"""Annealing of a placement by moves of one cell, of two cells that swap, or of connected cells; compiled.

::

    energy          sum of (load / scale) ** 2 ** doublings, and a penalty for memory and links that are missing
    accept a move   always if the energy falls, else with probability exp(-rise / temperature)

A sum of high powers is nearly the largest power, but every load has a part in it: a move that relieves the second
busiest device lowers the energy too.

Source: Kirkpatrick, Gelatt and Vecchi, Optimization by Simulated Annealing, Science 1983.
"""

from typing import NamedTuple

import numpy as np

from graphs.common.arrays import Ints
from planner.solvers.compiled import below, compiled, inner, random
from planner.solvers.local_search.kernel import (
    MISSING,
    MISSING_CHANGE,
    MOST_PIECES,
    TOUCHED,
    WORK,
    State,
    commit,
    price,
)
from planner.solvers.netlist import Netlist

LINK_PENALTY = 4.0  # energy of each transfer without a link
MEMORY_PENALTY = 4.0  # energy of each device without enough memory, and once more for each time its memory is missing
SWAPS, GROUPS = 0.2, 0.3  # shares of the moves
TRIES = 3  # times the number of devices: how many cells are looked at to make room
FEW_RESOURCES = 16  # up to this number, the search looks up the busiest resource after every move
ROUNDED = 1024  # moves between two computations of the energy, because roundings add up


class AnnealingSchedule(NamedTuple):
    """The parameters of an annealing."""

    work: int  # at which to end, as `State.tally` counts work
    hot: float  # temperature at the start, in units of the energy
    cold: float  # temperature at the end; it falls geometrically
    scale_s: float  # seconds whose energy is 1
    doublings: int  # the energy is a sum of powers of 2 ** doublings; 0 for a plain sum


@compiled
def anneal_placement(nets: Netlist, state: State, best: Ints, schedule: AnnealingSchedule) -> float:
    """Anneal from a state on; write the best placement into ``best``, [n_cells], and return its `value_of`."""
    few = len(state.load_s) <= FEW_RESOURCES
    temperature, ratio = schedule.hot, schedule.cold / schedule.hot
    first, step = state.tally[WORK], 0
    _copy(state.device, best)
    value = value_of(nets, state, schedule)
    energy = lowest = energy_of(nets, state, schedule)
    while state.tally[WORK] < schedule.work:
        if step % ROUNDED == 0:
            temperature = schedule.hot * ratio ** ((state.tally[WORK] - first) / (schedule.work - first))
            energy = energy_of(nets, state, schedule)
        step += 1
        n_moved = _propose(nets, state)
        rise = _try_all(nets, state, schedule, n_moved)
        if n_moved == 0 or (rise > 0 and random(state.seed) >= np.exp(-rise / temperature)):
            _take_back(nets, state, n_moved - 1)
            continue
        commit(nets, state, state.pieces[n_moved - 1, 0], state.pieces[n_moved - 1, 1])
        energy += rise
        if few or energy < lowest:
            lowest = min(lowest, energy)
            now = value_of(nets, state, schedule)
            if now < value:
                value = now
                _copy(state.device, best)
    return value


@inner
def _try_all(nets: Netlist, state: State, schedule: AnnealingSchedule, n_moved: int) -> float:
    """Make all proposed moves except the last one, which is only priced; return the rise of the energy."""
    rise = 0.0
    for piece in range(n_moved):
        cell, to = state.pieces[piece, 0], state.pieces[piece, 1]
        price(nets, state, cell, to)
        rise += _rise(nets, state, cell, to, schedule)
        if piece < n_moved - 1:
            state.pieces[piece, 1] = state.device[cell]
            commit(nets, state, cell, to)
    return rise


@inner
def _take_back(nets: Netlist, state: State, made: int) -> None:
    """Undo the moves that `_try_all` has made."""
    for piece in range(made - 1, -1, -1):
        price(nets, state, state.pieces[piece, 0], state.pieces[piece, 1])
        commit(nets, state, state.pieces[piece, 0], state.pieces[piece, 1])


@inner
def _propose(nets: Netlist, state: State) -> int:
    """Write cells and their new devices into ``state.pieces``; return their number, 0 if the move is impossible."""
    cell = below(state.seed, len(nets.n_bytes))
    state.pieces[0, 0] = cell
    state.tally[WORK] += 1
    kind = random(state.seed)
    if kind < SWAPS:
        return _propose_swap(nets, state)
    n_moved = _grow(nets, state, 2 + below(state.seed, MOST_PIECES - 1)) if kind < SWAPS + GROUPS else 1
    near = _neighbour(nets, state, state.pieces[below(state.seed, n_moved), 0])
    to = state.device[near]
    if to == state.device[cell]:
        to = below(state.seed, len(nets.room_bytes))
    if to == state.device[cell]:
        return 0
    for piece in range(n_moved):
        state.pieces[piece, 1] = to
        if not np.isfinite(nets.seconds[state.pieces[piece, 0], to]):
            return 0
    return _make_room(nets, state, n_moved)


@inner
def _make_room(nets: Netlist, state: State, n_moved: int) -> int:
    """Add cells that go the other way until the device that others move to has room; return the number of cells."""
    at, to = state.device[state.pieces[0, 0]], state.pieces[0, 1]
    free_bytes = nets.room_bytes[to] - state.n_bytes[to]
    if free_bytes < 0:
        return n_moved
    for piece in range(n_moved):
        free_bytes -= nets.n_bytes[state.pieces[piece, 0]]
    for _ in range(TRIES * len(nets.room_bytes)):
        if free_bytes >= 0 or n_moved == MOST_PIECES:
            break
        other = below(state.seed, len(nets.n_bytes))
        fresh = state.device[other] == to and nets.n_bytes[other] > 0 and np.isfinite(nets.seconds[other, at])
        for piece in range(n_moved):
            fresh &= state.pieces[piece, 0] != other
        if fresh:
            state.pieces[n_moved, 0], state.pieces[n_moved, 1] = other, at
            free_bytes += nets.n_bytes[other]
            n_moved += 1
    return n_moved


@inner
def _propose_swap(nets: Netlist, state: State) -> int:
    """As `_propose`, for two cells that swap devices; the first one is chosen already."""
    first, second = state.pieces[0, 0], below(state.seed, len(nets.n_bytes))
    at, to = state.device[first], state.device[second]
    state.pieces[0, 1], state.pieces[1, 0], state.pieces[1, 1] = to, second, at
    can = at != to and np.isfinite(nets.seconds[first, to]) and np.isfinite(nets.seconds[second, at])
    return 2 if can else 0


@inner
def _grow(nets: Netlist, state: State, most: int) -> int:
    """Add connected cells of the same device to the first one; return the number of cells."""
    at, n_moved = state.device[state.pieces[0, 0]], 1
    for _ in range(2 * most):
        if n_moved == most:
            break
        other = _neighbour(nets, state, state.pieces[below(state.seed, n_moved), 0])
        fresh = state.device[other] == at
        for piece in range(n_moved):
            fresh &= state.pieces[piece, 0] != other
        if fresh:
            state.pieces[n_moved, 0] = other
            n_moved += 1
    return n_moved


@inner
def _neighbour(nets: Netlist, state: State, cell: int) -> int:
    """Return a random cell on a random net of a cell; it may be the cell itself."""
    first, end = nets.first_net[cell], nets.first_net[cell + 1]
    if first == end:
        return cell
    net = nets.net[first + below(state.seed, end - first)]
    return int(nets.pin[nets.start[net] + below(state.seed, nets.start[net + 1] - nets.start[net])])


@compiled
def value_of(nets: Netlist, state: State, schedule: AnnealingSchedule) -> float:
    """Return seconds of the busiest resource, or of all if the power is 1; infinite if memory or links are missing."""
    total_s = largest_s = 0.0
    for resource in range(len(state.load_s)):
        total_s += state.load_s[resource]
        largest_s = max(largest_s, state.load_s[resource])
    for device in range(len(nets.room_bytes)):
        if _memory_penalty(nets, device, state.n_bytes[device]) > 0:
            return np.inf
    if state.tally[MISSING] > 0:
        return np.inf
    return largest_s if schedule.doublings > 0 else total_s


@inner
def energy_of(nets: Netlist, state: State, schedule: AnnealingSchedule) -> float:
    """Return the energy of a placement."""
    energy = LINK_PENALTY * state.tally[MISSING]
    for resource in range(len(state.load_s)):
        energy += _power(state.load_s[resource] / schedule.scale_s, schedule.doublings)
    for device in range(len(nets.room_bytes)):
        energy += _memory_penalty(nets, device, state.n_bytes[device])
    return float(energy)


@inner
def _rise(nets: Netlist, state: State, cell: int, to: int, schedule: AnnealingSchedule) -> float:
    """Return the rise of the energy by the move that was priced last."""
    rise = LINK_PENALTY * state.tally[MISSING_CHANGE]
    for place in range(state.tally[TOUCHED]):
        resource = state.touched[place]
        before = state.load_s[resource] / schedule.scale_s
        after = before + state.change_s[resource] / schedule.scale_s
        rise += _power(after, schedule.doublings) - _power(before, schedule.doublings)
    at, n_bytes = state.device[cell], nets.n_bytes[cell]
    rise += _memory_penalty(nets, at, state.n_bytes[at] - n_bytes) - _memory_penalty(nets, at, state.n_bytes[at])
    rise += _memory_penalty(nets, to, state.n_bytes[to] + n_bytes) - _memory_penalty(nets, to, state.n_bytes[to])
    return float(rise)


@inner
def _memory_penalty(nets: Netlist, device: int, n_bytes: float) -> float:
    """Return the energy of the memory that a device lacks."""
    room_bytes = nets.room_bytes[device]
    if n_bytes <= max(room_bytes, 0.0):  # an unused device may have negative room
        return 0.0
    return float(MEMORY_PENALTY * (1 + (n_bytes - room_bytes) / max(room_bytes, 1.0)))


@inner
def _power(value: float, doublings: int) -> float:
    for _ in range(doublings):
        value *= value
    return value


@inner
def _copy(source: Ints, target: Ints) -> None:
    for place in range(len(source)):
        target[place] = source[place]
