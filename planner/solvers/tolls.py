"""Tolls: what a device pays for a tensor that enters or leaves it, where that does not depend on who reads it."""

from functools import singledispatch
from typing import NamedTuple

from costmodels.table import CostTable
from graphs.common.arrays import Floats


class Tolls(NamedTuple):
    """Seconds of each flow: a device pays once for what leaves it, however many read it, and once for what enters."""

    enter_s: Floats  # [n_flows, n_devices], seconds if a flow is written elsewhere and read here
    leave_s: Floats  # [n_flows, n_devices], seconds if a flow is written here and read elsewhere


@singledispatch
def tolls_of(table: CostTable) -> Tolls | None:  # noqa: ARG001  # kinds of tables dispatch on it
    """Return the tolls; None for devices that send to each other, where a kind of table registers none."""
    return None
