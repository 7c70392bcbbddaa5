"""The latency of placements on accelerators beside a host, as in `simulator.offload`; compiled.

It takes microseconds, so that a search (`planner.solvers.offload.kernel`) can compute it at each step.
"""

from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.table import Floats, Ints
from planner.solvers.compiled import compiled


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


class Scratch(NamedTuple):
    """Scratch arrays of one evaluation. A unit is an accelerator, or an operator on the host; devices come first."""

    load_s: Floats  # [n_devices]
    ready_s: Floats  # [n_devices + n_ops], when all inputs of a unit are there
    missing: Ints  # [n_devices + n_ops], the number of edges that a unit waits for
    stack: Ints  # [n_devices + n_ops], units that may start
    first: Ints  # [n_devices], the first operator in the linked list of a device, or -1
    following: Ints  # [n_ops], the next operator in the list, or -1
    fetched: Ints  # [n_devices], the flow that a device has fetched last


def scratch(n_ops: int, n_devices: int) -> Scratch:
    """Scratch arrays for placements of some operators on some devices."""

    def ints(count: int) -> Ints:
        return np.zeros(count, dtype=np.int64)

    units = n_ops + n_devices
    return Scratch(
        np.zeros(n_devices), np.zeros(units), ints(units), ints(units), ints(n_devices), ints(n_ops), ints(n_devices)
    )


@compiled
def latency_s(costs: OffloadCosts, device: Ints, room: Scratch) -> float:
    """Seconds of a placement, [n_ops], until the last operator finishes; infinite if accelerators wait in a circle."""
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
def _count(costs: OffloadCosts, device: Ints, room: Scratch) -> int:
    """Fill in the loads and operators of devices and the edges that units wait for; return the number of units."""
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
def _start(costs: OffloadCosts, device: Ints, room: Scratch) -> int:
    """Stack the units that wait for nothing; return their number."""
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
