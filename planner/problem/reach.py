"""out_of_reach: the devices that a placement cannot use because no link leads to them."""

import numpy as np
from numpy.typing import NDArray

from costmodels.table import CostTable
from simulator.placement import Placement

NAMED = 3  # devices that a message names; it counts the others


def out_of_reach(table: CostTable, placement: Placement) -> str:
    """One sentence: which devices no link joins to those in use, and what to change; empty if there are none.

    Links in either direction join devices, directly or through other devices, where operators on the way may be.
    """
    near = table.linked | table.linked.T
    reached = np.isin(np.arange(table.n_devices), placement.device)
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
