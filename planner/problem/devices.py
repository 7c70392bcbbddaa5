"""Symmetry of devices, so that a search need not try the same thing twice.

`CostTable.shapes` knows which costs belong to devices and is asked here alone: a cost that is added to the table tells
devices apart at once.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.table import CERTAINTY, LABELS, CostTable, arrays_of, device_axes

SIGNATURES = "classes of devices that are alike"  # kept with a table


def alike(table: CostTable, *besides: NDArray[Any]) -> tuple[tuple[int, ...], ...]:
    """Return the classes of devices that have the same costs, each ascending, in the order of their first devices.

    That is all that a device has for itself. What pairs of devices have, links and channels and groups, may differ, see
    `interchangeable`. ``besides`` are other numbers that have to be the same, [..., n_devices] each.
    """
    if SIGNATURES not in table.worked_out:
        classes = equal_columns(*(values for name, values in arrays_of(table) if _is_own(table, name)))
        table.worked_out[SIGNATURES] = classes
    same: tuple[tuple[int, ...], ...] = table.worked_out[SIGNATURES]
    if not besides:
        return same
    number = np.empty(table.n_devices, dtype=np.int64)
    for each, devices in enumerate(same):
        number[list(devices)] = each
    return equal_columns(number, *besides)


def equal_columns(*numbers: NDArray[Any]) -> tuple[tuple[int, ...], ...]:
    """Return the classes of columns that have the same numbers, [..., n_columns] each; ordered as by `alike`."""
    classes: dict[tuple[bytes, ...], list[int]] = {}
    for column in range(numbers[0].shape[-1]):
        classes.setdefault(tuple(each[..., column].tobytes() for each in numbers), []).append(column)
    return tuple(map(tuple, classes.values()))


def interchangeable(table: CostTable) -> tuple[tuple[int, ...], ...]:
    """Return the classes of devices that can swap places without a change of any number, each ascending.

    Two devices can swap if they are alike, exchanging their rows and columns maps links to themselves, and it renames
    channels, uplinks and contention groups one to one.
    """
    relations = [name for name, _ in arrays_of(table) if _is_relation(table, name)]
    classes: list[list[int]] = []
    for same in alike(table):
        own: list[list[int]] = []
        for device in same:
            for known in own:
                if all(_survives(table, name, known[0], device) for name in relations):
                    known.append(device)
                    break
            else:
                own.append([device])
        classes += own
    return tuple(map(tuple, sorted(classes)))


def uniform_links(table: CostTable) -> bool:
    """Return whether all devices are linked and all links are equally fast (channels aside)."""
    between = ~np.eye(table.n_devices, dtype=bool)
    link_class = table.link_class[between]
    return bool((link_class >= 0).all() and (link_class == link_class[:1]).all())


def _is_own(table: CostTable, name: str) -> bool:
    """Return whether an array of the table has costs of a single device."""
    return len(device_axes(table, name)) == 1 and name not in LABELS | CERTAINTY


def _is_relation(table: CostTable, name: str) -> bool:
    """Whether an array of the table says what devices are to each other; groups count if contention slows them."""
    if name == "contention.group" and not (table.contention and table.contention.slows):
        return False
    return len(device_axes(table, name)) == 2 or name in LABELS


def _survives(table: CostTable, name: str, one: int, other: int) -> bool:
    """Return whether two devices can swap their places in an array, the labels of which may be renamed."""
    values, order = dict(arrays_of(table))[name], np.arange(table.n_devices)
    order[[one, other]] = other, one
    swapped = values
    for axis in device_axes(table, name):
        swapped = swapped.take(order, axis)
    if name not in LABELS:
        return np.array_equal(values, swapped)
    renamed = set(zip(values.flat, swapped.flat, strict=True))
    return len(renamed) == len({old for old, _ in renamed}) == len({new for _, new in renamed})
