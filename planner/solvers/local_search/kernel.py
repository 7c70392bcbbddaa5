"""The state of a local search: a placement of cells with its loads, which moves keep up to date; compiled.

::

    price      collect the changes of a move to each resource, from the nets of the moved cell alone
    commit     make these changes; without it, the next price forgets them
"""

from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphs.common.arrays import Floats, Ints
from planner.solvers.compiled import Seed, compiled, inner, zeros
from planner.solvers.netlist import Netlist

MOST_PIECES = 12  # cells that move at once

TOUCHED, MISSING, MISSING_CHANGE, MOVE, MARK, WORK = range(6)  # places in `State.tally`


class State(NamedTuple):
    """A placement of cells, its loads, and the changes that the priced move would make."""

    device: Ints  # [n_cells]
    reading: Annotated[NDArray[np.int32], "n_nets", "n_devices"]  # the number of a net's readers on a device
    remote: Annotated[NDArray[np.int32], "n_nets"]  # the number of devices that read a net, without the writer's
    load_s: Annotated[Floats, "n_resources"]
    n_bytes: Annotated[Floats, "n_devices"]
    change_s: Annotated[Floats, "n_resources"]  # the change by the priced move, valid where ``moved`` has its number
    touched: Annotated[Ints, "n_resources"]  # what the priced move changes, in the first ``tally[TOUCHED]`` places
    moved: Annotated[Ints, "n_resources"]  # the number of the move that touched a resource last
    seen: Annotated[Ints, "n_devices"]  # the mark of the latest visit to a device
    pieces: Annotated[Ints, MOST_PIECES, 2]  # the cells that move together, and their devices
    seed: Seed
    # resources touched; transfers without a link; their change by the priced move; number of the move; latest mark;
    # pins visited so far
    tally: Annotated[Ints, 6]


def new_state(nets: Netlist, device: Ints, seed: Seed) -> State:
    """Return the state of a placement, [n_cells]; it draws its random numbers from ``seed`` and advances it."""
    sizes = {"n_nets": len(nets.start) - 1, "n_devices": nets.n_devices, "n_resources": nets.n_resources}
    state = zeros(State, sizes, device=np.array(device, dtype=np.int64), seed=seed)
    _fill(nets, state)
    return state


@compiled
def _fill(nets: Netlist, state: State) -> None:
    """Compute a new state from the devices of the cells."""
    for cell in range(len(nets.n_bytes)):
        state.load_s[state.device[cell]] += nets.seconds[cell, state.device[cell]]
        state.n_bytes[state.device[cell]] += nets.n_bytes[cell]
    for net in range(len(nets.start) - 1):
        src = state.device[nets.pin[nets.start[net]]]
        _begin(state)
        for place in range(nets.start[net] + 1, nets.start[net + 1]):
            dst = state.device[nets.pin[place]]
            state.reading[net, dst] += 1
            if dst != src and state.reading[net, dst] == 1:
                state.remote[net] += 1
                _send(nets, state, net, src, dst, 1)
        if state.remote[net] > 0:
            _touch(state, src, nets.once_out_s[net, src])
        _settle(state)


@inner
def _begin(state: State) -> None:
    """Forget the collected changes."""
    state.tally[TOUCHED] = 0
    state.tally[MISSING_CHANGE] = 0
    state.tally[MOVE] += 1


@inner
def _settle(state: State) -> None:
    """Make the collected changes of loads and links."""
    for place in range(state.tally[TOUCHED]):
        resource = state.touched[place]
        state.load_s[resource] += state.change_s[resource]
    state.tally[MISSING] += state.tally[MISSING_CHANGE]


@inner
def _touch(state: State, resource: int, seconds: float) -> None:
    """Collect a change to the load of a resource."""
    if state.moved[resource] == state.tally[MOVE]:
        state.change_s[resource] += seconds
        return
    state.moved[resource] = state.tally[MOVE]
    state.change_s[resource] = seconds
    state.touched[state.tally[TOUCHED]] = resource
    state.tally[TOUCHED] += 1


@inner
def _send(nets: Netlist, state: State, net: int, src: int, dst: int, sign: int) -> None:
    """Collect the cost of a net between two devices; with the sign -1, that it ends."""
    link_class = nets.link_class[src, dst]
    if link_class < 0:
        state.tally[MISSING_CHANGE] += sign
        return
    seconds = nets.link_s[net, link_class]
    shared_s = seconds if nets.busy else 0.0
    _touch(state, src, sign * (nets.each_out_s[net, src] + shared_s))
    _touch(state, dst, sign * (nets.each_in_s[net, dst] + shared_s))
    if nets.channel[src, dst] >= 0:
        _touch(state, nets.channel[src, dst], sign * seconds)


@compiled
def price(nets: Netlist, state: State, cell: int, to: int) -> None:
    """Collect the changes that moving a cell to another device makes."""
    at = state.device[cell]
    _begin(state)
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
            _send(nets, state, net, src, at, -1)
            remote -= 1
        if src != to and state.reading[net, to] == 0:
            _send(nets, state, net, src, to, 1)
            remote += 1
        if remote > 0 and state.remote[net] == 0:
            _touch(state, src, nets.once_out_s[net, src])
        elif remote == 0 and state.remote[net] > 0:
            _touch(state, src, -nets.once_out_s[net, src])


@inner
def _price_writer(nets: Netlist, state: State, net: int, at: int, to: int) -> None:
    """Collect the changes to a net that the moved cell writes."""
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
            _send(nets, state, net, at, dst, -1)
        if dst != to:
            _send(nets, state, net, to, dst, 1)


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
