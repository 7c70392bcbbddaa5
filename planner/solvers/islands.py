"""Islands: operators of one device that are connected to each other, as one piece that can move to a neighbour.

::

    a0 ─► b0 ─► c1 ─► d0 ─► e0        c is an island between two of device 0: with c there, none of the tensors is sent
"""

from collections.abc import Iterator

import numpy as np

from costmodels.table import CostTable
from graphs.common.groups import least_members
from simulator.placement import Placement


def islands_moved(table: CostTable, placement: Placement) -> Iterator[Placement]:
    """Yield the placement with one island on a neighbour's device, the islands with the least time first.

    Islands are those of the operators that must share a device, too, so that no group is divided.
    """
    for island, neighbours in islands_of(table, placement):
        for device in neighbours:
            home = np.asarray(placement.device)
            home[island] = device
            yield Placement(tuple(home.tolist()), placement.order)


def islands_of(table: CostTable, placement: Placement) -> list[tuple[list[int], list[int]]]:
    """Return the operators of each island with its neighbours' devices, those that take the least time first.

    An island that exchanges nothing with others has all devices in use as neighbours.
    """
    device = placement.device
    joined = [(writer, reader) for writer, reader in table.edges if device[writer] == device[reader]]
    island = least_members(table.n_ops, (*table.together, *joined))
    members: dict[int, list[int]] = {}
    for op, number in enumerate(island):
        members.setdefault(number, []).append(op)
    neighbours: dict[int, set[int]] = {}
    for writer, reader in table.edges:
        if device[writer] != device[reader]:
            neighbours.setdefault(island[writer], set()).add(device[reader])
            neighbours.setdefault(island[reader], set()).add(device[writer])
    seconds = table.forward_s[np.arange(table.n_ops), list(device)]
    alone = set(placement.used)
    first = sorted(members, key=lambda number: (float(seconds[members[number]].sum()), number))
    return [(members[number], sorted(neighbours.get(number, alone - {device[number]}))) for number in first]
