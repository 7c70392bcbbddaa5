"""The makespan of one micro-batch, compiled: the result of `simulate` in a fraction of a millisecond.

::

    cut       into the stages of `simulator.stages.split_stages`
    number    the steps as `simulator.simulate.lower` does: every stage, followed by its transfers
    run       by the greedy rule of `simulator.engine`, the smallest number first

Steps that hold the same resources wait in one line: the stages of a device in line ``device``, the transfers from one
device to another in line ``n_devices * (1 + src) + dst``. All sums are in the simulator's order, so that ties are
decided as in the simulator.
"""

import numpy as np

from graphs.common.arrays import Ints
from planner.solvers.compiled import compiled, inner
from planner.solvers.latency.makespan_data import MakespanCosts, Workspace

NOWHERE = np.inf  # the makespan of a placement without a link, or with an operator where it cannot run


@compiled
def makespan_s(costs: MakespanCosts, work: Workspace, device: Ints, order: Ints) -> float:
    """Return seconds from the start of the first step to the end of the last; `NOWHERE` for an impossible placement."""
    n_stages = _cut(costs, work, device, order)
    if n_stages < 0:
        return NOWHERE
    _number(costs, work, n_stages)
    return _run(costs, work, n_stages)


@inner
def _cut(costs: MakespanCosts, work: Workspace, device: Ints, order: Ints) -> int:
    """Cut a placement into stages; return their number, -1 if a link is missing or an operator cannot run."""
    work.clock[0] += 1
    clock = work.clock[0]
    work.latest[:] = -1
    n_stages = 0
    for op in order:
        own = device[op]
        seconds = costs.forward_s[op, own]
        if not np.isfinite(seconds):
            return -1
        received = 0
        for place in range(costs.in_start[op], costs.in_start[op + 1]):
            flow = costs.in_flow[place]
            src = device[costs.writer[flow]]
            if src != own and work.seen[flow, own] != clock:
                if costs.link_class[src, own] < 0:
                    return -1
                work.seen[flow, own] = clock
                work.taker[flow, own] = n_stages
                received += 1
        stage = work.latest[own]
        if stage < 0 or received > 0 or _leaves(costs, device, work.last_op[stage]):
            if stage >= 0:
                work.after[stage] = n_stages
            work.missing[n_stages] = received + (stage >= 0)
            stage = n_stages
            n_stages += 1
            work.latest[own] = stage
            work.stage_of[stage] = own
            work.first_op[stage] = op
            work.stage_s[stage] = 0.0
            work.received[stage] = received
            work.after[stage] = -1
        work.last_op[stage] = op
        work.stage_s[stage] += seconds
    return n_stages


@inner
def _leaves(costs: MakespanCosts, device: Ints, op: int) -> bool:
    """Return whether another device reads a flow that an operator writes."""
    for place in range(costs.out_start[op], costs.out_start[op + 1]):
        flow = costs.out_flow[place]
        for entry in range(costs.read_start[flow], costs.read_start[flow + 1]):
            if device[costs.reader[entry]] != device[op]:
                return True
    return False


@inner
def _number(costs: MakespanCosts, work: Workspace, n_stages: int) -> None:
    """Number the steps: each stage, then its transfers by flow and device."""
    clock, n_devices = work.clock[0], len(costs.overhead_s)
    step = 0
    for stage in range(n_stages):
        src, op, first = work.stage_of[stage], work.last_op[stage], step
        work.stage_step[stage], work.stage_at[first] = first, stage
        step += 1
        for place in range(costs.out_start[op], costs.out_start[op + 1]):
            flow = costs.out_flow[place]
            for dst in range(n_devices):
                if work.seen[flow, dst] == clock:
                    work.line[step] = n_devices * (1 + src) + dst
                    work.step_s[step] = costs.link_s[flow, costs.link_class[src, dst]]
                    work.follower[step] = work.taker[flow, dst]
                    work.sends[step] = -1
                    step += 1
        sends = step - first - 1
        work.line[first] = src
        work.step_s[first] = work.stage_s[stage] + costs.overhead_s[src] * (work.received[stage] + sends)
        work.follower[first] = work.after[stage]
        work.sends[first] = sends
    work.in_heap[:step] = False


@inner
def _run(costs: MakespanCosts, work: Workspace, n_stages: int) -> float:
    """Run the steps; return when the last one ends."""
    n_devices = len(costs.overhead_s)
    work.head[:] = -1
    work.tail[:] = -1
    work.busy[:] = False
    work.clock[1] = -1
    now, last, n_heap, n_running = 0.0, 0.0, 0, 0
    for stage in range(n_stages):
        if work.missing[stage] == 0:
            n_heap = _ready(work, work.stage_step[stage], -1, n_heap)
    while n_heap > 0:
        while n_heap > 0:
            step = _pop(work, n_heap)
            n_heap -= 1
            line = work.line[step]
            if work.head[line] != step or _blocked(costs, work, line, n_devices):
                continue
            _leave(work, line, step)
            if work.step_s[step] > 0:
                _hold(costs, work, line, n_devices, True)
                _start(work, n_running, now + work.step_s[step], step)
                n_running += 1
                if now + work.step_s[step] >= last:
                    last, work.clock[1] = now + work.step_s[step], step
            else:
                n_heap = _end(costs, work, step, n_heap)
        while n_running > 0 and (work.ends_s[n_running - 1] == now or n_heap == 0):
            n_running -= 1
            now, step = work.ends_s[n_running], work.running[n_running]
            _hold(costs, work, work.line[step], n_devices, False)
            n_heap = _end(costs, work, step, n_heap)
    return last


@inner
def _blocked(costs: MakespanCosts, work: Workspace, line: int, n_devices: int) -> bool:
    """Return whether a resource of a line is busy."""
    if line < n_devices:
        return bool(work.busy[line])
    src, dst = line // n_devices - 1, line % n_devices
    channel = costs.channel[src, dst]
    waits = channel >= 0 and work.busy[channel]
    return bool(waits or (not costs.overlap and (work.busy[src] or work.busy[dst])))


@inner
def _hold(costs: MakespanCosts, work: Workspace, line: int, n_devices: int, busy: bool) -> None:
    """Occupy the resources of a line, or free them."""
    if line < n_devices:
        work.busy[line] = busy
        return
    src, dst = line // n_devices - 1, line % n_devices
    if costs.channel[src, dst] >= 0:
        work.busy[costs.channel[src, dst]] = busy
    if not costs.overlap:
        work.busy[src] = busy
        work.busy[dst] = busy


@inner
def _end(costs: MakespanCosts, work: Workspace, step: int, n_heap: int) -> int:
    """End a step: push the heads of the lines that it may have unblocked, and the steps that waited for it."""
    n_devices, line = len(costs.overhead_s), work.line[step]
    if line < n_devices:
        n_heap = _look(costs, work, line, step, n_heap)
    else:
        src, dst = line // n_devices - 1, line % n_devices
        if costs.channel[src, dst] >= 0:
            n_heap = _look(costs, work, costs.channel[src, dst], step, n_heap)
        if not costs.overlap:
            n_heap = _look(costs, work, dst, step, _look(costs, work, src, step, n_heap))
    stage = work.follower[step]
    if stage >= 0:
        work.missing[stage] -= 1
        if work.missing[stage] == 0:
            n_heap = _ready(work, work.stage_step[stage], step, n_heap)
    for sent in range(step + 1, step + 1 + work.sends[step]):
        n_heap = _ready(work, sent, step, n_heap)
    return n_heap


@inner
def _look(costs: MakespanCosts, work: Workspace, resource: int, cause: int, n_heap: int) -> int:
    """Push the heads of the lines that hold a resource that a step has freed."""
    for place in range(costs.touch_start[resource], costs.touch_start[resource + 1]):
        step = work.head[costs.touch[place]]
        if step >= 0:
            n_heap = _push(work, step, cause, n_heap)
    return n_heap


@inner
def _ready(work: Workspace, step: int, cause: int, n_heap: int) -> int:
    """Insert a step into its line by number, from the tail, since most steps come last; then push the step."""
    line = work.line[step]
    before, behind = work.tail[line], -1
    while before > step:
        before, behind = work.before[before], before
    work.before[step], work.behind[step] = before, behind
    if before >= 0:
        work.behind[before] = step
    else:
        work.head[line] = step
    if behind >= 0:
        work.before[behind] = step
    else:
        work.tail[line] = step
    return _push(work, step, cause, n_heap)


@inner
def _leave(work: Workspace, line: int, step: int) -> None:
    """Remove the head of a line."""
    behind = work.behind[step]
    work.head[line] = behind
    if behind >= 0:
        work.before[behind] = -1
    else:
        work.tail[line] = -1


@inner
def _push(work: Workspace, step: int, cause: int, n_heap: int) -> int:
    """Push a step onto the heap, unless it is there; return the size of the heap."""
    work.cause[step] = cause
    if work.in_heap[step]:
        return n_heap
    work.in_heap[step] = True
    place = n_heap
    while place > 0:
        parent = (place - 1) // 2
        if work.heap[parent] <= step:
            break
        work.heap[place] = work.heap[parent]
        place = parent
    work.heap[place] = step
    return n_heap + 1


@inner
def _pop(work: Workspace, n_heap: int) -> int:
    """Pop the smallest step from the heap."""
    first, last = work.heap[0], work.heap[n_heap - 1]
    work.in_heap[first] = False
    place, child = 0, 1
    while child < n_heap - 1:
        if child + 1 < n_heap - 1 and work.heap[child + 1] < work.heap[child]:
            child += 1
        if last <= work.heap[child]:
            break
        work.heap[place] = work.heap[child]
        place, child = child, 2 * child + 1
    work.heap[place] = last
    return int(first)


@inner
def _start(work: Workspace, n_running: int, end_s: float, step: int) -> None:
    """Insert a step into the few running ones, which are sorted, the first end last."""
    place = n_running
    while place > 0 and work.ends_s[place - 1] < end_s:
        work.ends_s[place], work.running[place] = work.ends_s[place - 1], work.running[place - 1]
        place -= 1
    work.ends_s[place], work.running[place] = end_s, step
