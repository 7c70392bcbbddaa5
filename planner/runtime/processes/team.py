"""Team: the ranks that train a plan, one for each device, and as many again for each replica.

::

    2 replicas of 3 devices      rank   0  1  2 │ 3  4  5
    one pipeline, in its rows    row    0  1  2 │ 0  1  2
    the same device, in all      like   0 3, 1 4, 2 5
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.distributed as dist

from graphs.errors import InputError
from planner.plans import Plan
from planner.runtime.processes.clocks import Echo, clock_ahead_s, clock_name
from planner.runtime.training.prepare import Layout

FIRST = 0  # the rank that has what is gathered
LOOKS = 8  # at a clock of another host


@dataclass(frozen=True)
class Team:
    """The place of this process among all ranks.

    Attributes:
        row: of our device in the schedule.
        replica: which one we belong to.
        n_replicas: how many there are.
        pipeline: the ranks of our replica; None if they are all.
        like: the ranks of our device in all replicas; None without replicas.
    """

    row: int
    replica: int = 0
    n_replicas: int = 1
    pipeline: dist.ProcessGroup | None = None
    like: dist.ProcessGroup | None = None

    @classmethod
    def of(cls, plan: Plan, layout: Layout) -> Self:
        """Find our place; all ranks do so together.

        Raises:
            InputError: if torch.distributed is not initialised, there are more or fewer ranks than devices, or some are
                GPUs and others are not.
        """
        if not dist.is_initialized():
            raise InputError("torch.distributed is not initialised; call torch.distributed.init_process_group first")
        check_ranks(plan, layout, dist.get_world_size())
        _check_one_kind(layout)
        n_replicas, n_rows = replicas_of(plan), len(layout.devices)
        replica, row = divmod(dist.get_rank(), n_rows)
        if n_replicas == 1:
            return cls(row)
        ranks = [[number * n_rows + row for row in range(n_rows)] for number in range(n_replicas)]
        pipelines = [dist.new_group(each) for each in ranks]  # every rank makes all groups, in the same order
        alike = [dist.new_group(each) for each in zip(*ranks, strict=True)]
        return cls(row, replica, n_replicas, pipelines[replica], alike[row])

    def gathered(self, mine: Any) -> list[Any]:
        """What each rank of our pipeline has."""
        found: list[Any] = [None] * dist.get_world_size(self.pipeline)
        dist.all_gather_object(found, mine, group=self.pipeline)
        return found

    def at_first(self, mine: Any) -> list[Any] | None:
        """What each rank of the first replica has, on its first rank; None on the others."""
        if self.replica:
            return None
        found = [None] * dist.get_world_size(self.pipeline) if dist.get_rank() == FIRST else None
        dist.gather_object(mine, found, dst=FIRST, group=self.pipeline)
        return found

    def mean_from(self, row: int, value: torch.Tensor) -> torch.Tensor:
        """The mean over all replicas of a number that the rank of a row has."""
        source = self.replica * dist.get_world_size(self.pipeline) + row
        dist.broadcast(value, src=source, group=self.pipeline)
        if self.like is not None:
            dist.all_reduce(value, group=self.like)
        return value / self.n_replicas

    def ahead_s(self) -> float:
        """By how much the clock of our pipeline's first rank is ahead of ours; all ask together."""
        clocks = self.gathered(clock_name())
        base = self.replica * len(clocks)
        for row, clock in enumerate(clocks):
            if clock == clocks[0] != "":
                continue
            if self.row == 0:
                self._show_clock(base + row)
            elif self.row == row:
                return clock_ahead_s([self._look_at_clock(base) for _ in range(LOOKS)])
        return 0.0

    def _show_clock(self, peer: int) -> None:
        now_s = torch.zeros(1, dtype=torch.float64)
        for _ in range(LOOKS):
            dist.recv(now_s, peer, self.pipeline)
            dist.send(now_s.fill_(time.perf_counter()), peer, self.pipeline)

    def _look_at_clock(self, peer: int) -> Echo:
        now_s = torch.zeros(1, dtype=torch.float64)
        sent_s = time.perf_counter()
        dist.send(now_s, peer, self.pipeline)
        dist.recv(now_s, peer, self.pipeline)
        return Echo(sent_s, now_s.item(), time.perf_counter())

    def add_up(self, tensors: Iterable[torch.Tensor]) -> None:
        """Put the sum over all replicas into tensors that each of them has."""
        if self.like is not None:
            works = [dist.all_reduce(tensor, group=self.like, async_op=True) for tensor in tensors]
            for work in works:
                work.wait()


def replicas_of(plan: Plan) -> int:
    """How many times the plan's devices are there."""
    return 1 if plan.cluster.replicas is None else plan.cluster.replicas.count


def check_ranks(plan: Plan, layout: Layout, n_ranks: int) -> None:
    """There is a rank for each device of each replica.

    Raises:
        InputError: if not.
    """
    n_devices, count = len(layout.devices), replicas_of(plan)
    if n_ranks == count * n_devices:
        return
    names = ", ".join(device.name for device in layout.devices)
    copies = f" in each of {count} replicas" if count > 1 else ""
    raise InputError(
        f"the plan trains on {n_devices} devices ({names}){copies}, and there are {n_ranks} ranks; "
        f"start {count * n_devices}, one for each"
    )


def _check_one_kind(layout: Layout) -> None:
    """Torch's engine sends tensors from where they are made to where they are read, which must be of one kind."""
    gpu = next((device.name for device in layout.devices if device.cuda is not None), None)
    cpu = next((device.name for device in layout.devices if device.cuda is None), None)
    if gpu is not None and cpu is not None:
        raise InputError(
            f"the plan trains on '{cpu}', a CPU, and '{gpu}', a GPU, and between them torch.distributed.pipelining "
            "sends nothing; use planner.train on one host, or plan for devices of one kind"
        )
