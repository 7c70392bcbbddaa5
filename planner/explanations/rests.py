"""EstimateBasis: what the estimated times of a plan's operators rest on, by kind of kernel and kind of device."""

from dataclasses import dataclass

import numpy as np

from costmodels.estimates.kernels import COMPUTING, KERNEL_KINDS, network_kernels
from costmodels.estimates.parameters import parameters_for, strangeness
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
    reason: str  # why less is known of this device; empty if its family was in the fit


def estimate_bases(plan: Plan) -> tuple[EstimateBasis, ...]:
    """Return what estimates from data sheets rest on, the largest share of the time first; none without them."""
    if not (plan.table.source == Source.ESTIMATED).any():
        return ()
    kernels = network_kernels(plan.graph)
    seconds: dict[tuple[str, int], list[float]] = {}
    sheets = {device.kind: device.sheet for device in plan.cluster.devices if device.sheet}
    total_s = 0.0
    for copy in plan.placement.copies:
        for op, device in enumerate(copy.device):
            op_s = float(plan.costs.forward_s[op, device])
            total_s += op_s
            if plan.table.source[op, device] == Source.ESTIMATED and kernels.n_launches[op]:
                key = plan.cluster.devices[device].kind, int(kernels.kind[op])
                seconds.setdefault(key, []).append(op_s)
    found = []
    for (device_kind, kind), each in seconds.items():
        parameters = parameters_for(sheets[device_kind], plan.workload.trains)
        name = KERNEL_KINDS[kind]
        found.append(
            EstimateBasis(
                device_kind,
                name,
                float(np.sum(each)) / total_s if total_s else 0.0,
                len(each),
                parameters.arithmetic_share[name] if name in COMPUTING else None,
                parameters.memory_share.get(name, 1.0),
                parameters.fitted_to,
                strangeness(sheets[device_kind], parameters)[1],
            )
        )
    return tuple(sorted(found, key=lambda basis: (-basis.share, basis.device_kind, basis.kernel_kind)))
