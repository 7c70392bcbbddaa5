"""The inner loop of `planner.literature.placement.offload_branch`; compiled: depth first through all placements.

::

    block 0 on dev0 ─┬─ block 1 on dev0 ─── ...      each level places one more block; what is not placed yet counts
                     └─ block 1 on dev1 ─── ...      its quickest way to the end, and nothing on any device
    block 0 on dev1 ─── ...                          of devices alike, the next one is used only if the first ones are
"""

from typing import Annotated, NamedTuple

from graphs.common.arrays import Floats, Ints
from planner.literature.placement.kernel import OffloadCosts, Workplace, latency_s, put
from planner.solvers.compiled import compiled, inner


class OffloadTree(NamedTuple):
    """The state of the search; the devices of placed blocks are those of the `Workplace`."""

    level: Annotated[Ints, 1]  # the number of blocks before the one that is placed next; -1 when all is tried
    twin: Ints  # [n_devices], the previous interchangeable device, or -1
    best_s: Annotated[Floats, 1]  # what to beat


@compiled
def branch(costs: OffloadCosts, tree: OffloadTree, work: Workplace, steps: int) -> None:
    """Continue the search for some steps, or until everything is tried; `OffloadState.best` is the best placement."""
    state, _, room = work
    n, k = len(state.home), len(costs.host)
    for _ in range(steps):
        block = tree.level[0]
        if block < 0:
            return
        target = state.home[block] + 1
        put(costs, state, block, -1)
        while target < k and not _may(costs, tree, work, target):
            target += 1
        if target == k:
            tree.level[0] -= 1
            continue
        put(costs, state, block, target)
        seconds = latency_s(costs, state.device, room)
        if seconds >= tree.best_s[0]:
            continue
        if block + 1 < n:
            tree.level[0] += 1
        else:
            tree.best_s[0] = seconds
            for placed in range(n):
                state.best[placed] = state.home[placed]


@inner
def _may(costs: OffloadCosts, tree: OffloadTree, work: Workplace, target: int) -> bool:
    """Return whether the next block may go on a device: it runs and fits there, and its twin before is used."""
    block, state = tree.level[0], work.state
    if not costs.fits[block, target] or state.used_bytes[target] + costs.n_bytes[block] > costs.room_bytes[target]:
        return False
    if tree.twin[target] < 0:
        return True
    for other in range(block):  # noqa: SIM110  # numba compiles no generator here
        if state.home[other] == tree.twin[target]:
            return True
    return False
