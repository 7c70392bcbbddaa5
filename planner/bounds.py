"""Lower bounds: what no placement can beat, and why there may be none at all.

Every bound is for one micro-batch in seconds, and leaves transfers out, so it holds for any cluster.
"""

from dataclasses import replace

import numpy as np

from costmodels.table import CostTable, Floats
from planner.problem import Goal, Problem
from planner.solvers.blocks import Blocks, merge_blocks

GIB = 2**30
_INFEASIBLE = 2  # scipy's status of an LP without a solution


def lower_bound(problem: Problem) -> float:
    """Seconds that no placement can beat; infinite if a fractional one already breaks the memory.

    Throughput: `load_bound`. Latency: that or `path_bound`, because a device with its load and a path with its
    operators both have to be worked through. Cost: `cost_bound`.
    """
    blocks = merge_blocks(problem.table)
    match problem.goal:
        case Goal.THROUGHPUT:
            return load_bound(blocks)
        case Goal.COST:
            return cost_bound(blocks)
        case Goal.LATENCY:
            return max(host_bound(blocks), path_bound(problem.table))
        case Goal.TRAINING:
            return training_bound(problem)


def infeasible_because(table: CostTable, bound_s: float) -> str:
    """One sentence: what keeps every placement from working and what to change; empty if nothing was found.

    Finds an operator that has no room anywhere, a tensor that cannot get to its readers, and too little memory in
    all or, where ``bound_s`` from `lower_bound` is infinite, where it is needed. An empty answer proves nothing:
    whether whole operators can be packed is left to the solvers.
    """
    blocks = merge_blocks(table)
    return _fits_nowhere(blocks) or _cut_off(blocks) or _too_large(blocks, bound_s)


def path_bound(table: CostTable) -> float:
    """The longest path through the graph with every operator on its fastest device."""
    fastest = table.forward_s.min(axis=1).tolist()
    finish = [0.0] * table.n_ops
    readers: list[list[int]] = [[] for _ in range(table.n_ops)]
    for writer, reader in table.edges:
        readers[writer].append(reader)
    for op, ready in enumerate(finish):  # reads what earlier rounds have written: readers come later
        finish[op] = ready + fastest[op]
        for reader in readers[op]:
            finish[reader] = max(finish[reader], finish[op])
    return max(finish, default=0.0)


def training_bound(problem: Problem) -> float:
    """All micro-batches, forward and backward, keep the devices busy; one of them takes its path there and back.

    Holds if ``held`` is at most what every device holds under the schedule, which is 1 at least.
    """
    table = problem.table
    both = replace(table, forward_s=table.forward_s + table.backward_s)
    return max(problem.step.micro_batches * load_bound(merge_blocks(both)), path_bound(both))


def cost_bound(blocks: Blocks) -> float:
    """Everything where it takes least; infinite where something fits nowhere."""
    return float(np.where(blocks.fits, blocks.forward_s, np.inf).min(axis=1, initial=np.inf).sum())


def host_bound(blocks: Blocks) -> float:
    """`load_bound`, unless there is a host that runs any number of operators at once."""
    offload = blocks.table.offload
    return load_bound(blocks) if offload is None or not offload.host.any() else 0.0


def load_bound(blocks: Blocks) -> float:
    """How busy the busiest device is at least, without transfers: the larger of `packing_bound` and `lp_bound`."""
    if not blocks.n:
        return 0.0
    if not blocks.fits.any(axis=1).all():
        return float("inf")
    return max(packing_bound(blocks), lp_bound(blocks))


def packing_bound(blocks: Blocks) -> float:
    """Blocks cannot be torn: of any ``m * k + 1`` blocks, some of the k devices has ``m + 1``.

    With the fastest times sorted descending, the busiest device has at least the ``m + 1`` smallest of the first
    ``m * k + 1``, for every m (Martello and Toth's pigeonhole bound for identical machines; fastest times make
    it hold for different ones).
    """
    usable = int(blocks.fits.any(axis=0).sum())
    fastest = np.where(blocks.fits, blocks.forward_s, np.inf).min(axis=1, initial=np.inf)
    sums = np.concatenate(([0.0], np.cumsum(-np.sort(-fastest))))
    last = np.arange(1, len(sums), max(usable, 1))  # m * k + 1
    return float((sums[last] - sums[last - 1 - np.arange(len(last))]).max(initial=0.0))


def lp_bound(blocks: Blocks) -> float:
    """The least busiest device if blocks could be divided: a linear program.

    ::

        min T    sum_d x[b, d] = 1                      for every block b
                 sum_b forward_s[b, d] * x[b, d] <= T    for every device d
                 sum_b n_bytes[b] * x[b, d] <= room[d]   for every device d
                 x >= 0, and x[b, d] = 0 where b does not fit on d

    The answer is computed again from the prices (the duals) p, q >= 0, sum_d p[d] = 1, of the two families:
    ``sum_b min_d (p[d] * forward_s[b, d] + q[d] * n_bytes[b]) - sum_d q[d] * room[d]`` is a bound for any
    prices (weak duality), so no tolerance of the LP solver can make it wrong. Infinite if the LP has no solution.
    """
    from scipy.optimize import linprog  # late: scipy takes a third of a second to load, and most commands never solve
    from scipy.sparse import csr_array, vstack

    n_blocks, n_devices = blocks.fits.shape
    block, device = np.nonzero(blocks.fits)
    scale = float(np.where(blocks.fits, blocks.forward_s, np.inf).min(axis=1).sum()) or 1.0
    room = np.clip(blocks.room_bytes, 0.0, blocks.n_bytes.sum())
    unit = np.where(room > 0, room, 1.0)  # without room only blocks of 0 bytes fit
    shape = (n_devices, len(block) + 1)
    column = np.arange(len(block))
    seconds = csr_array((blocks.forward_s[block, device] / scale, (device, column)), shape=shape)
    minus_busiest = csr_array((np.full(n_devices, -1.0), (np.arange(n_devices), np.full(n_devices, len(block)))), shape)
    n_bytes = csr_array((blocks.n_bytes[block] / unit[device], (device, column)), shape=shape)
    answer = linprog(
        c=np.append(np.zeros(len(block)), 1.0),
        A_ub=vstack([seconds + minus_busiest, n_bytes]),
        b_ub=np.append(np.zeros(n_devices), np.ones(n_devices)),
        A_eq=csr_array((np.ones(len(block)), (block, column)), shape=(n_blocks, len(block) + 1)),
        b_eq=np.ones(n_blocks),
        method="highs",
    )
    if answer.status == _INFEASIBLE:
        return float("inf")
    if answer.ineqlin.marginals is None:
        return 0.0
    time_price, byte_price = np.maximum(0.0, -answer.ineqlin.marginals).reshape(2, n_devices)
    return _price_bound(blocks, room, time_price, byte_price * scale / unit)


def _price_bound(blocks: Blocks, room: Floats, time_price: Floats, byte_price: Floats) -> float:
    """What the blocks pay at least, minus what the devices' memory earns; see `lp_bound`."""
    total = time_price.sum()
    if total <= 0:
        return 0.0
    pays = (np.where(blocks.fits, blocks.forward_s, 0.0) * time_price + blocks.n_bytes[:, None] * byte_price) / total
    earned = float((room * byte_price).sum() / total)
    return max(0.0, float(np.where(blocks.fits, pays, np.inf).min(axis=1).sum()) - earned)


def _fits_nowhere(blocks: Blocks) -> str:
    table = blocks.table
    for block in np.flatnonzero(~blocks.fits.any(axis=1)).tolist():
        members = blocks.members[block]
        who, need_it = f"operator '{table.ops[members[0]]}'", "needs"
        if len(members) > 1:
            who, need_it = f"{who} and {len(members) - 1} more that share its device", "need"
        able = np.flatnonzero(np.isfinite(blocks.forward_s[block]))
        if not len(able):
            return f"{who} have no device that can run them all; give them one, or take the group apart"
        need, room = blocks.n_bytes[block], max(0.0, float(blocks.room_bytes[able].max()))
        return (
            f"{who} {need_it} {_gib(need)}, but no device that can run it has more than {_gib(room)} for it; "
            "take a device with more memory, or smaller micro-batches"
        )
    return ""


def _cut_off(blocks: Blocks) -> str:
    table = blocks.table
    linked = table.linked
    for flow in table.flows:
        near = blocks.fits[blocks.block[flow.writer]] @ linked
        for reader in flow.readers:
            if not (near & blocks.fits[blocks.block[reader]]).any():
                ends = f"'{table.ops[flow.writer]}' to '{table.ops[reader]}'"
                return f"tensor '{flow.tensor}' must go from {ends}, but their devices have no link; add a [[link]]"
    return ""


def _too_large(blocks: Blocks, bound_s: float) -> str:
    need, room = float(blocks.n_bytes.sum()), float(np.maximum(0.0, blocks.room_bytes).sum())
    if need > room:
        return f"the operators need {_gib(need)} in all, the devices have {_gib(room)}; add memory or devices"
    if np.isinf(bound_s):
        return (
            f"the operators need {_gib(need)} in all and the devices have {_gib(room)}, but those that can run only "
            "on some devices do not fit there; add memory to those, or let more devices run them"
        )
    return ""


def _gib(n_bytes: float) -> str:
    return f"{n_bytes / GIB:,.2f} GiB" if n_bytes >= GIB / 100 else f"{n_bytes:,.0f} bytes"
