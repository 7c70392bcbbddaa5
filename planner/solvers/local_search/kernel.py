"""What a move changes: a placement of cells with its loads, kept up to date move by move, compiled.

::

    begin      forget the changes of the last move
    price      collect what it changes on each resource, from the nets of the moved cell alone
    commit     make these changes, or do not and price another move
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.table import Floats, Ints
from planner.solvers.compiled import Seed, compiled
from planner.solvers.netlist import Netlist

MOST_PIECES = 12  # cells that move at once

TOUCHED, MISSING, MISSING_CHANGE, MOVE, MARK, WORK = range(6)  # places in `State.tally`


class State(NamedTuple):
    """A placement of cells and all that follows from it."""

    device: Ints  # [n_cells]
    reading: NDArray[np.int32]  # [n_nets, n_devices], how many readers of a net are on a device
    remote: NDArray[np.int32]  # [n_nets], how many devices read a net besides the writer's
    load_s: Floats  # [n_resources]
    n_bytes: Floats  # [n_devices]
    change_s: Floats  # [n_resources], what the priced move changes, where ``moved`` names it
    touched: Ints  # [n_resources], the resources that the priced move changes, the first ``tally[TOUCHED]``
    moved: Ints  # [n_resources], number of the move that touched a resource last
    seen: Ints  # [n_devices], the mark under which a device was met last
    pieces: Ints  # [MOST_PIECES, 2], cells and devices of a move of several
    seed: Seed  # the dice, see `compiled`
    # [6], resources touched; transfers without a link; how many more with the priced move; number of the move; last
    # mark; pins looked at so far
    tally: Ints


def new_state(nets: Netlist, device: Ints, seed: Seed) -> State:
    """The state of a placement, [n_cells]; it draws its random numbers from ``seed``, which goes on."""
    n_nets, k, n_resources = len(nets.start) - 1, nets.n_devices, nets.n_resources
    state = State(
        device=np.array(device, dtype=np.int64),
        reading=np.zeros((n_nets, k), dtype=np.int32),
        remote=np.zeros(n_nets, dtype=np.int32),
        load_s=np.zeros(n_resources),
        n_bytes=np.zeros(k),
        change_s=np.zeros(n_resources),
        touched=np.zeros(n_resources, dtype=np.int64),
        moved=np.zeros(n_resources, dtype=np.int64),
        seen=np.zeros(k, dtype=np.int64),
        pieces=np.zeros((MOST_PIECES, 2), dtype=np.int64),
        seed=seed,
        tally=np.zeros(6, dtype=np.int64),
    )
    _fill(nets, state)
    return state


@compiled
def _fill(nets: Netlist, state: State) -> None:
    """Work out a fresh state from the devices of the cells."""
    for cell in range(len(nets.n_bytes)):
        state.load_s[state.device[cell]] += nets.seconds[cell, state.device[cell]]
        state.n_bytes[state.device[cell]] += nets.n_bytes[cell]
    for net in range(len(nets.start) - 1):
        src = state.device[nets.pin[nets.start[net]]]
        begin(state)
        for place in range(nets.start[net] + 1, nets.start[net + 1]):
            dst = state.device[nets.pin[place]]
            state.reading[net, dst] += 1
            if dst != src and state.reading[net, dst] == 1:
                state.remote[net] += 1
                _send(nets, state, net, src, dst)
        if state.remote[net] > 0:
            _touch(state, src, nets.once_out_s[net, src])
        _settle(state)


@compiled
def begin(state: State) -> None:
    """Begin to collect changes."""
    state.tally[TOUCHED] = 0
    state.tally[MISSING_CHANGE] = 0
    state.tally[MOVE] += 1


@compiled
def _settle(state: State) -> None:
    """Make the collected changes of loads and links."""
    for place in range(state.tally[TOUCHED]):
        resource = state.touched[place]
        state.load_s[resource] += state.change_s[resource]
    state.tally[MISSING] += state.tally[MISSING_CHANGE]


@compiled
def _touch(state: State, resource: int, seconds: float) -> None:
    """Collect a change of a load."""
    if state.moved[resource] == state.tally[MOVE]:
        state.change_s[resource] += seconds
        return
    state.moved[resource] = state.tally[MOVE]
    state.change_s[resource] = seconds
    state.touched[state.tally[TOUCHED]] = resource
    state.tally[TOUCHED] += 1


@compiled
def _send(nets: Netlist, state: State, net: int, src: int, dst: int) -> None:
    """Collect what a net costs between two devices."""
    link_class = nets.link_class[src, dst]
    if link_class < 0:
        state.tally[MISSING_CHANGE] += 1
        return
    seconds = nets.link_s[net, link_class]
    shared_s = seconds if nets.busy else 0.0
    _touch(state, src, nets.each_out_s[net, src] + shared_s)
    _touch(state, dst, nets.each_in_s[net, dst] + shared_s)
    if nets.channel[src, dst] >= 0:
        _touch(state, nets.channel[src, dst], seconds)


@compiled
def _unsend(nets: Netlist, state: State, net: int, src: int, dst: int) -> None:
    """Collect that `_send` is undone."""
    link_class = nets.link_class[src, dst]
    if link_class < 0:
        state.tally[MISSING_CHANGE] -= 1
        return
    seconds = nets.link_s[net, link_class]
    shared_s = seconds if nets.busy else 0.0
    _touch(state, src, -nets.each_out_s[net, src] - shared_s)
    _touch(state, dst, -nets.each_in_s[net, dst] - shared_s)
    if nets.channel[src, dst] >= 0:
        _touch(state, nets.channel[src, dst], -seconds)


@compiled
def price(nets: Netlist, state: State, cell: int, to: int) -> None:
    """Collect what moving a cell to another device changes."""
    at = state.device[cell]
    begin(state)
    _touch(state, at, -nets.seconds[cell, at])
    _touch(state, to, nets.seconds[cell, to])
    state.tally[WORK] += 8 + nets.first_net[cell + 1] - nets.first_net[cell]
    for place in range(nets.first_net[cell], nets.first_net[cell + 1]):
        net = nets.net[place]
        writer = nets.pin[nets.start[net]]
        if writer == cell:
            _price_writer(nets, state, net, at, to)
            continue
        src = state.device[writer]
        remote = state.remote[net]
        if src != at and state.reading[net, at] == 1:
            _unsend(nets, state, net, src, at)
            remote -= 1
        if src != to and state.reading[net, to] == 0:
            _send(nets, state, net, src, to)
            remote += 1
        if remote > 0 and state.remote[net] == 0:
            _touch(state, src, nets.once_out_s[net, src])
        elif remote == 0 and state.remote[net] > 0:
            _touch(state, src, -nets.once_out_s[net, src])


@compiled
def _price_writer(nets: Netlist, state: State, net: int, at: int, to: int) -> None:
    """The part of `price` for a net that the cell writes."""
    if state.remote[net] > 0:
        _touch(state, at, -nets.once_out_s[net, at])
    if state.remote[net] + (state.reading[net, at] > 0) - (state.reading[net, to] > 0) > 0:
        _touch(state, to, nets.once_out_s[net, to])
    state.tally[MARK] += 1
    state.tally[WORK] += nets.start[net + 1] - nets.start[net]
    for place in range(nets.start[net] + 1, nets.start[net + 1]):
        dst = state.device[nets.pin[place]]
        if state.seen[dst] == state.tally[MARK]:
            continue
        state.seen[dst] = state.tally[MARK]
        if dst != at:
            _unsend(nets, state, net, at, dst)
        if dst != to:
            _send(nets, state, net, to, dst)


@compiled
def commit(nets: Netlist, state: State, cell: int, to: int) -> None:
    """Make the move that was priced last."""
    at = state.device[cell]
    _settle(state)
    for place in range(nets.first_net[cell], nets.first_net[cell + 1]):
        net = nets.net[place]
        writer = nets.pin[nets.start[net]]
        if writer == cell:
            state.remote[net] += (state.reading[net, at] > 0) - (state.reading[net, to] > 0)
            continue
        src = state.device[writer]
        state.reading[net, at] -= 1
        state.reading[net, to] += 1
        state.remote[net] -= src != at and state.reading[net, at] == 0
        state.remote[net] += src != to and state.reading[net, to] == 1
    state.n_bytes[at] -= nets.n_bytes[cell]
    state.n_bytes[to] += nets.n_bytes[cell]
    state.device[cell] = to
