"""The compiled part of branch and bound for latency: depth first through all schedules, in the order of their starts.

::

    op0 on dev0 ─┬─ op1 on dev0 ─┬─ ...        each level adds one operator after all others of its device, as early as
                 │               └─ ...        its inputs arrive; an operator that would start before the latest one
                 └─ op1 on dev1 ─── ...        belongs to another branch, so each schedule occurs once, sorted by starts

In this tree transfers never wait for each other, so no start is later than in the simulator. The times are lower
bounds, and only complete schedules are simulated.
"""

from typing import Annotated, NamedTuple

import numpy as np

from graphs.common.arrays import Floats, Ints
from planner.problem.blocks import Blocks
from planner.problem.devices import interchangeable
from planner.problem.linear_bounds import time_prices
from planner.solvers.compiled import compiled, inner, zeros
from planner.solvers.latency.makespan import makespan_s
from planner.solvers.latency.makespan_data import MakespanCosts, Workspace

BEST, OPEN = 0, 1  # places in `Branch.seconds`


class Branch(NamedTuple):
    """The state of the search. A level is the number of operators that are scheduled, [n_levels]."""

    depth: Annotated[Ints, 1]  # the level; -1 when the search is complete
    choice: Annotated[Ints, "n_levels"]  # what to try next at each level: ``op * n_devices + device``
    op: Annotated[Ints, "n_ops"]  # the scheduled operators by level
    at: Ints  # [n_ops], device of each operator, or -1
    start_s: Annotated[Floats, "n_ops"]  # of scheduled operators
    finish_s: Annotated[Floats, "n_ops"]  # of scheduled operators
    free_s: Annotated[Floats, "n_levels", "n_devices"]  # when each device is free at each level
    missing: Ints  # [n_ops], the number of an operator's inputs that are not scheduled
    reads: Annotated[Ints, "n_flows", "n_devices"]  # the number of a flow's readers that are scheduled on each device
    earliest_s: Annotated[Floats, "n_ops", "n_devices"]  # lower bounds on the starts of unscheduled operators
    tail_s: Floats  # [n_ops, n_devices], lower bounds on the time from an operator's start to the end
    price: Floats  # [n_devices], of a second, see `time_prices`
    pays_s: Floats  # [n_ops], what an operator pays at least
    block: Ints  # [n_ops]
    home: Ints  # [n_blocks], device of each block, or -1
    members: Annotated[Ints, "n_blocks"]  # the number of scheduled members
    n_bytes: Floats  # [n_blocks]
    room_bytes: Floats  # [n_devices], free bytes
    able: Ints  # [n_blocks, n_devices], 1 where a block can run and fits
    twin: Ints  # [n_devices], the previous interchangeable device, or -1
    used: Annotated[Ints, "n_devices"]  # the number of operators that are scheduled on each device
    seconds: Floats  # [2], the best makespan, and the least bound of a schedule that is slower in the simulator
    best_device: Annotated[Ints, "n_ops"]  # of the best makespan
    best_order: Annotated[Ints, "n_ops"]  # of the best makespan


def root(blocks: Blocks, costs: MakespanCosts, best_s: float) -> Branch:
    """Return the root of the tree, without scheduled operators; the search skips schedules of ``best_s`` or more."""
    n, k, n_flows = blocks.table.n_ops, blocks.table.n_devices, len(blocks.table.flows)
    twin = np.full(k, -1, dtype=np.int64)
    for devices in interchangeable(blocks.table):
        twin[list(devices[1:])] = devices[:-1]
    price, able = time_prices(blocks), blocks.fits[blocks.block]
    return zeros(
        Branch,
        {"n_ops": n, "n_levels": n + 1, "n_devices": k, "n_flows": n_flows, "n_blocks": blocks.n},
        at=np.full(n, -1),
        missing=np.diff(costs.in_start),
        tail_s=tails(blocks, costs),
        price=price,
        pays_s=np.where(able, np.where(able, costs.forward_s, 0.0) * price, np.inf).min(axis=1),
        block=blocks.block.copy(),
        home=np.full(blocks.n, -1),
        n_bytes=blocks.n_bytes.copy(),
        room_bytes=blocks.room_bytes.copy(),
        able=blocks.fits.astype(np.int64),
        twin=twin,
        seconds=np.asarray([best_s, np.inf]),
    )


def tails(blocks: Blocks, costs: MakespanCosts) -> Floats:
    """Return [n_ops, n_devices], lower bounds on the seconds from the start of an operator there to the end."""
    table = blocks.table
    tail_s = np.where(blocks.fits[blocks.block], table.forward_s, np.inf)
    for op in reversed(range(table.n_ops)):
        ahead_s = np.zeros(table.n_devices)
        for flow in costs.out_flow[costs.out_start[op] : costs.out_start[op + 1]].tolist():
            sends_s = table.seconds(table.link_s[flow])
            for reader in table.flows[flow].readers:
                ahead_s = np.maximum(ahead_s, (sends_s + tail_s[reader]).min(axis=1))
        tail_s[op] += ahead_s
    return tail_s


@compiled
def explore(costs: MakespanCosts, work: Workspace, tree: Branch, steps: int, contended: bool) -> None:
    """Continue the search for some steps, or until it is complete.

    Complete schedules are simulated if ``contended``; else transfers do not wait for each other there either.
    """
    n, k = len(tree.op), len(tree.twin)
    for _ in range(steps):
        depth = tree.depth[0]
        if depth < 0:
            return
        while tree.choice[depth] < n * k and not _may(costs, tree, tree.choice[depth] // k, tree.choice[depth] % k):
            tree.choice[depth] += 1
        if tree.choice[depth] == n * k:
            tree.depth[0] -= 1
            if depth > 0:
                _drop(costs, tree, tree.op[depth - 1])
            continue
        op, device = tree.choice[depth] // k, tree.choice[depth] % k
        tree.choice[depth] += 1
        _add(costs, tree, op, device)
        bound_s = _bound(costs, tree)
        if bound_s >= tree.seconds[BEST]:
            _drop(costs, tree, op)
        elif depth + 1 < n:
            tree.depth[0] += 1
            tree.choice[depth + 1] = 0
        else:
            _evaluate_leaf(costs, work, tree, bound_s, contended)
            _drop(costs, tree, op)


@inner
def _evaluate_leaf(costs: MakespanCosts, work: Workspace, tree: Branch, bound_s: float, contended: bool) -> None:
    """Compare a complete schedule with the best one."""
    seconds = makespan_s(costs, work, tree.at, tree.op) if contended else bound_s
    if seconds > bound_s:
        tree.seconds[OPEN] = min(tree.seconds[OPEN], bound_s)
    if seconds < tree.seconds[BEST]:
        tree.seconds[BEST] = seconds
        for op in range(len(tree.op)):
            tree.best_device[op], tree.best_order[op] = tree.at[op], tree.op[op]


@inner
def _may(costs: MakespanCosts, tree: Branch, op: int, device: int) -> bool:
    """Return whether an operator may be next on a device: ready, allowed, and not before the latest start."""
    if tree.at[op] >= 0 or tree.missing[op] > 0 or not _allowed(tree, op, device):
        return False
    if tree.twin[device] >= 0 and tree.used[device] == 0 and tree.used[tree.twin[device]] == 0:
        return False
    start_s = _ready_s(costs, tree, op, device)
    if start_s == np.inf:
        return False
    if tree.depth[0] == 0:
        return True
    latest = tree.op[tree.depth[0] - 1]
    if start_s > tree.start_s[latest]:
        return True
    # Of two operators that start at once on two devices, the smaller number is first, unless it reads from the other.
    same = start_s == tree.start_s[latest]
    return bool(same and (op > latest or device == tree.at[latest] or _reads(costs, op, latest)))


@inner
def _allowed(tree: Branch, op: int, device: int) -> bool:
    """Return whether a device can run an operator's block and has room for it."""
    block = tree.block[op]
    if tree.home[block] >= 0:
        return bool(tree.home[block] == device)
    return bool(tree.able[block, device] == 1 and tree.n_bytes[block] <= tree.room_bytes[device])


@inner
def _reads(costs: MakespanCosts, op: int, writer: int) -> bool:
    """Return whether an operator reads a flow of another one."""
    for place in range(costs.in_start[op], costs.in_start[op + 1]):
        if costs.writer[costs.in_flow[place]] == writer:
            return True
    return False


@inner
def _send_s(costs: MakespanCosts, flow: int, src: int, dst: int) -> float:
    """Return seconds to send a flow; infinite without a link."""
    if src == dst:
        return 0.0
    return float(costs.link_s[flow, costs.link_class[src, dst]]) if costs.link_class[src, dst] >= 0 else np.inf


@inner
def _ready_s(costs: MakespanCosts, tree: Branch, op: int, device: int) -> float:
    """When an operator can start on a device, after all operators there."""
    ready_s = tree.free_s[tree.depth[0], device]
    for place in range(costs.in_start[op], costs.in_start[op + 1]):
        flow = costs.in_flow[place]
        writer = costs.writer[flow]
        ready_s = max(ready_s, tree.finish_s[writer] + _send_s(costs, flow, tree.at[writer], device))
    return float(ready_s)


@inner
def _add(costs: MakespanCosts, tree: Branch, op: int, device: int) -> None:
    """Schedule an operator on a device."""
    depth, block = tree.depth[0], tree.block[op]
    received = 0
    start_s = _ready_s(costs, tree, op, device)
    for place in range(costs.in_start[op], costs.in_start[op + 1]):
        flow = costs.in_flow[place]
        received += tree.reads[flow, device] == 0 and tree.at[costs.writer[flow]] != device
        tree.reads[flow, device] += 1
    _count_missing(costs, tree, op, -1)
    tree.op[depth], tree.at[op], tree.start_s[op] = op, device, start_s
    tree.finish_s[op] = start_s + costs.forward_s[op, device] + received * costs.overhead_s[device]
    for other in range(len(tree.used)):
        tree.free_s[depth + 1, other] = tree.free_s[depth, other]
    tree.free_s[depth + 1, device] = tree.finish_s[op]
    tree.used[device] += 1
    tree.members[block] += 1
    if tree.home[block] < 0:
        tree.home[block] = device
        tree.room_bytes[device] -= tree.n_bytes[block]


@inner
def _drop(costs: MakespanCosts, tree: Branch, op: int) -> None:
    """Remove the latest operator from the schedule."""
    device, block = tree.at[op], tree.block[op]
    for place in range(costs.in_start[op], costs.in_start[op + 1]):
        tree.reads[costs.in_flow[place], device] -= 1
    _count_missing(costs, tree, op, 1)
    tree.at[op] = -1
    tree.used[device] -= 1
    tree.members[block] -= 1
    if tree.members[block] == 0:
        tree.home[block] = -1
        tree.room_bytes[device] += tree.n_bytes[block]


@inner
def _count_missing(costs: MakespanCosts, tree: Branch, op: int, change: int) -> None:
    """Change the number of missing inputs of an operator's readers."""
    for place in range(costs.out_start[op], costs.out_start[op + 1]):
        flow = costs.out_flow[place]
        for entry in range(costs.read_start[flow], costs.read_start[flow + 1]):
            tree.missing[costs.reader[entry]] += change


@inner
def _bound(costs: MakespanCosts, tree: Branch) -> float:
    """Return a lower bound of schedules that begin like this one: the longest path, or the priced work of devices."""
    level, k = tree.depth[0] + 1, len(tree.twin)
    now = tree.start_s[tree.op[level - 1]]
    bound_s, work_s = 0.0, 0.0
    for device in range(k):
        bound_s = max(bound_s, tree.free_s[level, device])
        work_s += tree.price[device] * max(now, tree.free_s[level, device])
    for op in range(len(tree.op)):
        if tree.at[op] >= 0:
            continue
        least_s = np.inf
        for device in range(k):
            tree.earliest_s[op, device] = np.inf
            if _allowed(tree, op, device):
                tree.earliest_s[op, device] = _earliest_s(costs, tree, op, device, max(now, tree.free_s[level, device]))
            least_s = min(least_s, tree.earliest_s[op, device] + tree.tail_s[op, device])
        bound_s = max(bound_s, least_s)
        if bound_s >= tree.seconds[BEST]:
            return float(bound_s)
        work_s += tree.pays_s[op]
    return float(max(bound_s, work_s))


@inner
def _earliest_s(costs: MakespanCosts, tree: Branch, op: int, device: int, free_s: float) -> float:
    """Return a lower bound on the start of an operator on a device, with its writers on the best devices for it."""
    for place in range(costs.in_start[op], costs.in_start[op + 1]):
        flow = costs.in_flow[place]
        writer = costs.writer[flow]
        if tree.at[writer] >= 0:
            arrives_s = tree.finish_s[writer] + _send_s(costs, flow, tree.at[writer], device)
        else:
            arrives_s = np.inf
            for src in range(len(tree.twin)):
                done_s = tree.earliest_s[writer, src] + costs.forward_s[writer, src]
                arrives_s = min(arrives_s, done_s + _send_s(costs, flow, src, device))
        free_s = max(free_s, arrives_s)
    return free_s
