"""The compiled part of branch and bound for latency: depth first through all schedules, in the order of their starts.

::

    op0 on dev0 ─┬─ op1 on dev0 ─┬─ ...        each level adds one operator behind all others of its device, as early
                 │               └─ ...        as its inputs arrive; one that would start before the latest is tried
                 └─ op1 on dev1 ─── ...        in another branch: every schedule is met once, sorted by its starts

Here transfers never wait for each other, which makes no start later than it is in the simulator. So these times are
lower bounds, and only a schedule that is complete is simulated.
"""

from typing import NamedTuple

import numpy as np

from costmodels.table import Floats, Ints
from planner.problem.blocks import Blocks
from planner.solvers.compiled import compiled
from planner.solvers.devices import interchangeable
from planner.solvers.latency.makespan import makespan_s
from planner.solvers.latency.makespan_data import MakespanCosts, Workspace

DEPTH, BEST, OPEN = 0, 0, 1


class Branch(NamedTuple):
    """Where the search is. A level is the number of operators that are scheduled."""

    depth: Ints  # [1], the level; -1 when everything was searched
    choice: Ints  # [n_ops + 1], of each level: which operator and device to try next, as ``op * n_devices + device``
    op: Ints  # [n_ops], the operators that are scheduled, by level
    at: Ints  # [n_ops], device of each operator, or -1
    start_s: Floats  # [n_ops], seconds, of those that are scheduled
    finish_s: Floats  # [n_ops], seconds, of those that are scheduled
    free_s: Floats  # [n_ops + 1, n_devices], of each level: when each device is free
    missing: Ints  # [n_ops], how many inputs of an operator are not scheduled
    reads: Ints  # [n_flows, n_devices], how many readers of a flow are scheduled on each device
    earliest_s: Floats  # [n_ops, n_devices], when the other operators can start, at least
    tail_s: Floats  # [n_ops, n_devices], from the start of an operator to the end of everything, at least
    fastest_s: Floats  # [n_ops], an operator where it takes least
    block: Ints  # [n_ops]
    home: Ints  # [n_blocks], device of each block, or -1
    members: Ints  # [n_blocks], how many members are scheduled
    n_bytes: Floats  # [n_blocks]
    room_bytes: Floats  # [n_devices], what is free
    able: Ints  # [n_blocks, n_devices], 1 where a block can go
    twin: Ints  # [n_devices], a device before this one that is interchangeable with it, or -1
    used: Ints  # [n_devices], how many operators are scheduled on each device
    # [2], the best makespan, and the least bound of a complete schedule that is slower in the simulator
    seconds: Floats
    best_device: Ints  # [n_ops], of the best makespan
    best_order: Ints  # [n_ops], of the best makespan


def root(blocks: Blocks, costs: MakespanCosts, best_s: float) -> Branch:
    """Nothing is scheduled; what takes ``best_s`` or more is not looked for."""
    n, k, n_flows = blocks.table.n_ops, blocks.table.n_devices, len(blocks.table.flows)
    twin = np.full(k, -1, dtype=np.int64)
    for devices in interchangeable(blocks.table):
        twin[list(devices[1:])] = devices[:-1]

    def ints(*shape: int, value: int = 0) -> Ints:
        return np.full(shape, value, dtype=np.int64)

    return Branch(
        depth=ints(1),
        choice=ints(n + 1),
        op=ints(n),
        at=ints(n, value=-1),
        start_s=np.zeros(n),
        finish_s=np.zeros(n),
        free_s=np.zeros((n + 1, k)),
        missing=np.diff(costs.in_start),
        reads=ints(n_flows, k),
        earliest_s=np.zeros((n, k)),
        tail_s=tails(blocks, costs),
        fastest_s=np.where(blocks.fits[blocks.block], costs.forward_s, np.inf).min(axis=1),
        block=blocks.block.copy(),
        home=ints(blocks.n, value=-1),
        members=ints(blocks.n),
        n_bytes=blocks.n_bytes.copy(),
        room_bytes=blocks.room_bytes.copy(),
        able=blocks.fits.astype(np.int64),
        twin=twin,
        used=ints(k),
        seconds=np.asarray([best_s, np.inf]),
        best_device=ints(n),
        best_order=ints(n),
    )


def tails(blocks: Blocks, costs: MakespanCosts) -> Floats:
    """[n_ops, n_devices], seconds from the start of an operator there to the end of everything, at least."""
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
def branch(costs: MakespanCosts, work: Workspace, tree: Branch, steps: int, contended: bool) -> int:
    """Go on for so many steps, and say how many were used: fewer if everything was searched.

    Args:
        costs: the table.
        work: for the simulation of complete schedules.
        tree: where the search is.
        steps: partial schedules to look at.
        contended: whether complete schedules are simulated; else transfers do not wait for each other there either.
    """
    n, k = len(tree.op), len(tree.twin)
    for step in range(steps):
        depth = tree.depth[0]
        if depth < 0:
            return step
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
    return steps


@compiled
def _evaluate_leaf(costs: MakespanCosts, work: Workspace, tree: Branch, bound_s: float, contended: bool) -> None:
    """What a complete schedule takes."""
    seconds = makespan_s(costs, work, tree.at, tree.op) if contended else bound_s
    if seconds > bound_s:
        tree.seconds[OPEN] = min(tree.seconds[OPEN], bound_s)
    if seconds < tree.seconds[BEST]:
        tree.seconds[BEST] = seconds
        for op in range(len(tree.op)):
            tree.best_device[op], tree.best_order[op] = tree.at[op], tree.op[op]


@compiled
def _may(costs: MakespanCosts, tree: Branch, op: int, device: int) -> bool:
    """Whether an operator may come next on a device: ready, allowed, and not before the latest one."""
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
    # Of two that start at once on two devices, the smaller number first, unless it needs the other.
    same = start_s == tree.start_s[latest]
    return bool(same and (op > latest or device == tree.at[latest] or _reads(costs, op, latest)))


@compiled
def _allowed(tree: Branch, op: int, device: int) -> bool:
    """Whether an operator's block can be on a device."""
    block = tree.block[op]
    if tree.home[block] >= 0:
        return bool(tree.home[block] == device)
    return bool(tree.able[block, device] == 1 and tree.n_bytes[block] <= tree.room_bytes[device])


@compiled
def _reads(costs: MakespanCosts, op: int, writer: int) -> bool:
    """Whether an operator reads what another one writes."""
    for place in range(costs.in_start[op], costs.in_start[op + 1]):
        if costs.writer[costs.in_flow[place]] == writer:
            return True
    return False


@compiled
def _send_s(costs: MakespanCosts, flow: int, src: int, dst: int) -> float:
    """Seconds to send a flow; infinite without a link."""
    if src == dst:
        return 0.0
    return float(costs.link_s[flow, costs.link_class[src, dst]]) if costs.link_class[src, dst] >= 0 else np.inf


@compiled
def _ready_s(costs: MakespanCosts, tree: Branch, op: int, device: int) -> float:
    """When an operator can start on a device, behind all that is there."""
    ready_s = tree.free_s[tree.depth[0], device]
    for place in range(costs.in_start[op], costs.in_start[op + 1]):
        flow = costs.in_flow[place]
        writer = costs.writer[flow]
        ready_s = max(ready_s, tree.finish_s[writer] + _send_s(costs, flow, tree.at[writer], device))
    return float(ready_s)


@compiled
def _add(costs: MakespanCosts, tree: Branch, op: int, device: int) -> None:
    """Schedule an operator."""
    depth, block = tree.depth[0], tree.block[op]
    received = 0
    start_s = _ready_s(costs, tree, op, device)
    for place in range(costs.in_start[op], costs.in_start[op + 1]):
        flow = costs.in_flow[place]
        received += tree.reads[flow, device] == 0 and tree.at[costs.writer[flow]] != device
        tree.reads[flow, device] += 1
    for place in range(costs.out_start[op], costs.out_start[op + 1]):
        flow = costs.out_flow[place]
        for entry in range(costs.read_start[flow], costs.read_start[flow + 1]):
            tree.missing[costs.reader[entry]] -= 1
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


@compiled
def _drop(costs: MakespanCosts, tree: Branch, op: int) -> None:
    """Take the latest operator out again."""
    device, block = tree.at[op], tree.block[op]
    for place in range(costs.in_start[op], costs.in_start[op + 1]):
        tree.reads[costs.in_flow[place], device] -= 1
    for place in range(costs.out_start[op], costs.out_start[op + 1]):
        flow = costs.out_flow[place]
        for entry in range(costs.read_start[flow], costs.read_start[flow + 1]):
            tree.missing[costs.reader[entry]] += 1
    tree.at[op] = -1
    tree.used[device] -= 1
    tree.members[block] -= 1
    if tree.members[block] == 0:
        tree.home[block] = -1
        tree.room_bytes[device] += tree.n_bytes[block]


@compiled
def _bound(costs: MakespanCosts, tree: Branch) -> float:
    """Seconds that no schedule which begins like this one can beat: the longest way on, or all work."""
    level, k = tree.depth[0] + 1, len(tree.twin)
    now = tree.start_s[tree.op[level - 1]]
    bound_s, work_s = 0.0, 0.0
    for device in range(k):
        bound_s = max(bound_s, tree.free_s[level, device])
        work_s += max(now, tree.free_s[level, device])
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
        work_s += tree.fastest_s[op]
    return float(max(bound_s, work_s / k))


@compiled
def _earliest_s(costs: MakespanCosts, tree: Branch, op: int, device: int, free_s: float) -> float:
    """When an operator can start on a device at least, if its writers are wherever that is soonest."""
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
