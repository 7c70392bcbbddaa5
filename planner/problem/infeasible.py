"""Why a problem has no placement, or why a placement uses no more devices, and what to change."""

import numpy as np
from numpy.typing import NDArray

from costmodels.table import CostTable
from planner.problem.blocks import Blocks, merge_blocks
from planner.problem.linear_bounds import lp_bound
from simulator.placement import Placement

GIB = 2**30


def infeasible_because(table: CostTable, bound_s: float) -> str:
    """Return what rules out every placement and what to change, as a sentence; empty if nothing is found.

    It finds devices without room to work, an operator without room anywhere, a tensor that cannot get to its readers,
    and too little memory, either in all or, if ``bound_s`` from `lower_bound` is infinite, on the devices that can run
    some operators. An empty answer proves nothing: whether whole operators can be packed is left to the solvers.
    """
    blocks = merge_blocks(table)
    return _no_room_to_work(blocks) or _fits_nowhere(blocks) or _cut_off(blocks) or _too_large(blocks, bound_s)


def _no_room_to_work(blocks: Blocks) -> str:
    if not blocks.n or blocks.room_bytes.max() >= 0:
        return ""
    need, largest = float(blocks.table.working_bytes), float(blocks.table.capacity_bytes.max())
    return (
        f"every device needs {_gib(need)} to work with, and the largest has {_gib(largest)}; "
        "take devices with more memory, smaller micro-batches, or fewer of them in flight"
    )


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
    if linked.all():
        return ""
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
    if np.isinf(bound_s) and blocks.table.training and lp_bound(blocks) < np.inf:
        return (
            f"the operators need {_gib(need)} in all with the activations of one micro-batch and the devices have "
            f"{_gib(room)}, but the first stages hold several micro-batches at once; add memory or devices, or take "
            "smaller micro-batches, recomputation or another schedule"
        )
    if np.isinf(bound_s):
        return (
            f"the operators need {_gib(need)} in all and the devices have {_gib(room)}, but those that can run only "
            "on some devices do not fit there; add memory to those, or let more devices run them"
        )
    return ""


def _gib(n_bytes: float) -> str:
    return f"{n_bytes / GIB:,.2f} GiB" if n_bytes >= GIB / 100 else f"{n_bytes:,.0f} bytes"


NAMED = 3  # devices that a message names; it counts the others


def out_of_reach(table: CostTable, placement: Placement) -> str:
    """Return which devices no link joins to those in use, and what to change, as a sentence; empty if none.

    Links in either direction join devices, directly or through other devices, where operators on the way may be.
    """
    near = table.linked | table.linked.T
    reached = np.isin(np.arange(table.n_devices), placement.used)
    names = _listed(table, reached)
    for _ in range(table.n_devices):
        reached = np.asarray(near[reached].any(axis=0))
    if reached.all() or not table.flows:
        return ""
    return f"no link joins {names} to {_listed(table, ~reached)}, so nothing runs there; add a [[link]] to cluster.toml"


def _listed(table: CostTable, chosen: NDArray[np.bool_]) -> str:
    names = [f"'{table.devices[device]}'" for device in np.flatnonzero(chosen)]
    if len(names) > NAMED:
        return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"
    return " and ".join(names)
