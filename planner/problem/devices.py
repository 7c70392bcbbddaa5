"""Devices that are alike."""

from costmodels.table import Floats


def alike(*numbers: Floats) -> tuple[tuple[int, ...], ...]:
    """Classes of devices that have the same numbers, each ascending, in the order of their first devices.

    Args:
        *numbers: [..., n_devices] each.
    """
    classes: dict[tuple[bytes, ...], list[int]] = {}
    for device in range(numbers[0].shape[-1]):
        classes.setdefault(tuple(each[..., device].tobytes() for each in numbers), []).append(device)
    return tuple(map(tuple, classes.values()))
