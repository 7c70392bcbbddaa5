"""Costs of tensors that enter or leave a device, where they do not depend on who reads the tensors."""

from functools import singledispatch
from typing import NamedTuple

from costmodels.table import CostTable
from graphs.common.arrays import Floats


class BoundaryCosts(NamedTuple):
    """Seconds of each flow: a device pays once for what leaves it, however many read it, and once for what enters."""

    enter_s: Floats  # [n_flows, n_devices], seconds if a flow is written elsewhere and read here
    leave_s: Floats  # [n_flows, n_devices], seconds if a flow is written here and read elsewhere


@singledispatch
def boundary_costs(table: CostTable) -> BoundaryCosts | None:  # noqa: ARG001  # kinds of tables dispatch on it
    """Return the costs at the boundary of a device; None for devices that send to each other.

    A kind of table with such costs registers a function of its own.
    """
    return None
