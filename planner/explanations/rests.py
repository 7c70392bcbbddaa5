"""EstimateBasis: what the estimated times of a plan's operators rest on, by kind of kernel and kind of device."""

from dataclasses import dataclass

import numpy as np

from costmodels.estimates.estimate import estimated
from costmodels.estimates.kernels import COMPUTING, KERNEL_KINDS, network_kernels
from costmodels.estimates.parameters import parameters_for, strangeness
from costmodels.operators.views import backward_passes
from costmodels.table import Source
from planner.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class EstimateBasis:
    """The operators of one kind of kernel on one kind of device."""

    device_kind: str
    kernel_kind: str  # one of `costmodels.estimates.kernels.KERNEL_KINDS`
    share: float  # of the time of all operators, 0 to 1
    n_ops: int
    arithmetic_share: float | None  # of the peak, at which the arithmetic is taken to run; None where it does not count
    memory_share: float  # of the bandwidth
    fitted_to: tuple[str, ...]  # families of devices whose published times the shares are fitted to
    correction: float  # times as long as these shares say, as this network was measured on another device; or 1
    reason: str  # why less is known of this device; empty if its family was in the fit


def estimate_bases(plan: Plan) -> tuple[EstimateBasis, ...]:
    """Return what estimates from data sheets rest on, the largest share of the time first; none without them."""
    if not (plan.table.source == Source.ESTIMATED).any():
        return ()
    kernels, devices = network_kernels(plan.graph), plan.cluster.devices
    passes = backward_passes(plan.graph) if plan.workload.trains else None
    by_sheet_s = [estimated(kernels, each, passes=passes).forward_s if each.sheet else None for each in devices]
    seconds: dict[tuple[str, int], list[tuple[float, float, float]]] = {}  # predicted; of the table, by the sheet alone
    sheets = {device.kind: device.sheet for device in devices if device.sheet}
    total_s = 0.0
    for copy in plan.placement.copies:
        for op, device in enumerate(copy.device):
            op_s, sheet_s = float(plan.costs.forward_s[op, device]), by_sheet_s[device]
            total_s += op_s
            if plan.table.source[op, device] == Source.ESTIMATED and kernels.n_launches[op] and sheet_s is not None:
                each = op_s, float(plan.table.forward_s[op, device]), float(sheet_s[op])
                seconds.setdefault((devices[device].kind, int(kernels.kind[op])), []).append(each)
    found = []
    for (device_kind, kind), each_s in seconds.items():
        parameters = parameters_for(sheets[device_kind], plan.workload.trains)
        name, (sum_s, table_s, sheet_only_s) = KERNEL_KINDS[kind], np.sum(each_s, axis=0).tolist()
        found.append(
            EstimateBasis(
                device_kind,
                name,
                sum_s / total_s if total_s else 0.0,
                len(each_s),
                parameters.arithmetic_share[name] if name in COMPUTING else None,
                parameters.memory_share.get(name, 1.0),
                parameters.fitted_to,
                table_s / sheet_only_s if sheet_only_s else 1.0,
                strangeness(sheets[device_kind], parameters)[1],
            )
        )
    return tuple(sorted(found, key=lambda basis: (-basis.share, basis.device_kind, basis.kernel_kind)))
