"""Classes of equal devices, so that a search need not try the same placement twice."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.table import CostTable
from graphs.common.arrays import Ints


def alike(*numbers: NDArray[Any]) -> tuple[tuple[int, ...], ...]:
    """Return the classes of devices that have the same numbers, each ascending, in the order of their first devices.

    The numbers are [..., n_devices] each.
    """
    classes: dict[tuple[bytes, ...], list[int]] = {}
    for device in range(numbers[0].shape[-1]):
        classes.setdefault(tuple(each[..., device].tobytes() for each in numbers), []).append(device)
    return tuple(map(tuple, classes.values()))


def interchangeable(table: CostTable) -> tuple[tuple[int, ...], ...]:
    """Return the classes of devices that can swap places without any change to any number, each ascending.

    Two devices can swap if exchanging their rows and columns maps costs, memory and links to themselves and renames
    the channels one to one.
    """
    classes: list[list[int]] = []
    for device in range(table.n_devices):
        for known in classes:
            if _can_swap(table, known[0], device):
                known.append(device)
                break
        else:
            classes.append([device])
    return tuple(map(tuple, classes))


def uniform_links(table: CostTable) -> bool:
    """Return whether all devices are linked and all links are equally fast (channels aside)."""
    between = ~np.eye(table.n_devices, dtype=bool)
    link_class = table.link_class[between]
    return bool((link_class >= 0).all() and (link_class == link_class[:1]).all())


def _can_swap(table: CostTable, one: int, other: int) -> bool:
    swapped = np.arange(table.n_devices)
    swapped[[one, other]] = other, one
    cross = np.ix_(swapped, swapped)
    renamed = set(zip(table.channel.flat, table.channel[cross].flat, strict=True))
    by_device: list[NDArray[Any]] = [table.forward_s, table.backward_s, table.slowdown]
    by_device += [table.copies_slowdown, table.capacity_bytes, table.overhead_s]
    if table.update:
        by_device += [table.update.optimizer_s_per_byte, table.update.sync_s_per_byte, table.update.sync_latency_s]
    if table.offload:
        by_device += [table.offload.store_s, table.offload.fetch_s, table.offload.host]
    return (
        all(np.array_equal(numbers[..., one], numbers[..., other]) for numbers in by_device)
        and (not table.slowdown.any() or np.array_equal(table.contends, table.contends[cross]))
        and (not table.update or _same_uplinks(table.update.uplink, swapped))
        and np.array_equal(table.link_class, table.link_class[cross])
        and len(renamed) == len({old for old, _ in renamed}) == len({new for _, new in renamed})
    )


def _same_uplinks(uplink: Ints, swapped: Ints) -> bool:
    """Return whether the same rings share uplinks after a swap."""
    shares = uplink[:, None] == uplink
    return np.array_equal(shares, shares[np.ix_(swapped, swapped)])
