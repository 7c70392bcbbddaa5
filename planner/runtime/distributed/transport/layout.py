"""Layout: which process has which devices of a plan.

With as many processes as devices, the coordinator, which callers talk to, is beside the first device; with one more,
the coordinator has rank 0 for itself::

    torchrun, 2 ranks                  planner run --processes, 3 ranks
    0: coordinator, cpu0   1: cpu1           0: coordinator   1: cpu0   2: cpu1
"""

from dataclasses import dataclass
from functools import cached_property

from graphs.errors import InputError
from planner.plans.plan import Plan
from planner.runtime.training import prepare

COORDINATOR = 0  # its rank


@dataclass(frozen=True)
class RankLayout:
    """The devices of each rank; the coordinator is on rank 0."""

    devices: tuple[tuple[int, ...], ...]  # [n_ranks], indices of devices in the cluster; each at most once
    names: tuple[str, ...]  # of all devices of the cluster

    @cached_property
    def rank_of(self) -> dict[int, int]:
        """The rank of each device."""
        return {device: rank for rank, devices in enumerate(self.devices) for device in devices}

    @property
    def others(self) -> tuple[int, ...]:
        """All ranks but the coordinator's."""
        return tuple(range(COORDINATOR + 1, len(self.devices)))

    def title(self, rank: int) -> str:
        """Return the name of a rank, for people."""
        names = [f"'{self.names[device]}'" for device in self.devices[rank]]
        return f"rank {rank} ({' and '.join(names) or 'the coordinator'})"


def layout_of(plan: Plan, n_ranks: int) -> RankLayout:
    """Divide the devices of an inference plan among processes; raise InputError if these are too few or too many."""
    used = used_devices(plan)
    names = tuple(device.name for device in plan.cluster.devices)
    rows = tuple((device,) for device in used)
    if n_ranks == len(used) + 1:
        return RankLayout(((), *rows), names)
    if n_ranks == len(used):
        return RankLayout(rows, names)
    raise InputError(
        f"the plan uses {len(used)} devices, there are {n_ranks} ranks; start one rank for each device"
        f" (torchrun --nproc-per-node={len(used)}), or one more for the caller alone"
    )


def used_devices(plan: Plan) -> tuple[int, ...]:
    """Return the devices that have an operator, in the order of the cluster."""
    return tuple(sorted(set(plan.placement.device)))


def training_layout(plan: Plan, coordinator: bool = False) -> RankLayout:
    """Give each device of each replica a rank, in the order of the schedule's rows.

    With ``coordinator`` there is one more rank before them, without a device.
    """
    devices, replicas = plan.cluster.devices, plan.cluster.replicas
    rows = tuple((devices.index(device),) for device in prepare.layout_of(plan).devices)
    rows *= 1 if replicas is None else replicas.count
    return RankLayout(((), *rows) if coordinator else rows, tuple(device.name for device in devices))
