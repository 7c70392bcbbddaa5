"""Process groups: the ranks that train a plan, one for each device, and as many again for each replica.

::

    2 replicas of 3 devices      rank   0  1  2 │ 3  4  5
    one pipeline, in its rows    row    0  1  2 │ 0  1  2
    the same device, in all      like   0 3, 1 4, 2 5
"""

import pickle
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self

import torch
import torch.distributed as dist

from graphs.common.errors import InputError
from planner.plans.plan import Plan
from planner.runtime.closing import Closing
from planner.runtime.distributed.transport.checksums import (
    DamagedMessage,
    sealed,
    sealed_numbers,
    unsealed,
    unsealed_numbers,
)
from planner.runtime.distributed.transport.failure_detector import FailureDetector
from planner.runtime.distributed.transport.layout import RankLayout, training_layout
from planner.runtime.distributed.transport.liveness import FAR_SILENT_S, LOOKS, clock_name, measured_ahead_s
from planner.runtime.distributed.transport.rendezvous import check_peer_infos, peer_info_of
from planner.runtime.errors import StageError
from planner.runtime.training.prepare import StageLayout, replica_count

FIRST = 0  # the rank that gathers
UNUSED_TAG = 2**16
AT_ONCE = timedelta(milliseconds=1)


@dataclass(frozen=True)
class ProcessGroups(Closing):
    """The process groups that this rank belongs to. Until it is closed, the ranks watch each other."""

    row: int  # of the rank's device in the schedule
    detector: FailureDetector  # watches the other ranks; what waits for them fails when one is gone
    replica: int = 0  # number of the rank's replica
    n_replicas: int = 1  # how many there are
    pipeline: dist.ProcessGroup | None = None  # the ranks of the replica; None if they are all
    like: dist.ProcessGroup | None = None  # the ranks of the same device in all replicas; None without replicas
    made: ExitStack = field(default_factory=ExitStack)  # releases everything when it is closed

    @classmethod
    def of(cls, plan: Plan, layout: StageLayout, silence_s: float = FAR_SILENT_S) -> Self:
        """Make the groups of a plan with this layout; all ranks do so together.

        Raise InputError if torch.distributed is not initialised, there are not as many ranks as devices, some are GPUs
        and others are not, or another rank has come with another plan.
        """
        if not dist.is_initialized():
            raise InputError("torch.distributed is not initialised; call torch.distributed.init_process_group first")
        check_ranks(plan, layout, dist.get_world_size())
        _check_one_kind(layout)
        n_replicas, n_rows = replica_count(plan), len(layout.devices)
        replica, row = divmod(dist.get_rank(), n_rows)
        ranks = [range(first, first + n_rows) for first in range(0, n_replicas * n_rows, n_rows)]
        with ExitStack() as undo:
            pipeline = like = None
            if n_replicas > 1:
                pipeline = _group(ranks, replica, undo)
                like = _group(list(zip(*ranks, strict=True)), row, undo)
            waiting = [group for group in (dist.group.WORLD, pipeline, like) if group is not None]
            detector = undo.enter_context(_failure_detector(plan, waiting, silence_s, undo))
            made = undo.pop_all()
        return cls(row, detector, replica, n_replicas, pipeline, like, made)

    def close(self) -> None:
        """Stop watching the other ranks, and release the groups. May be called again."""
        self.made.close()

    def __exit__(self, *error: Any) -> None:
        self.made.__exit__(*error)  # an error is reported to the other ranks

    def gathered(self, mine: Any) -> list[Any]:
        """Return what each rank of the pipeline passes."""
        with self.detector.heeding():
            return _gathered(mine, self.pipeline, self.detector.layout)

    def at_first(self, mine: Any) -> list[Any] | None:
        """Return what each rank of the first replica passes, on its first rank; None on the others."""
        if self.replica:
            return None
        gathered: list[Any] | None = [None] * dist.get_world_size(self.pipeline) if dist.get_rank() == FIRST else None
        with self.detector.heeding():
            dist.gather_object(_sealed(mine), gathered, dst=FIRST, group=self.pipeline)
            return None if gathered is None else _unsealed(gathered, self.pipeline, self.detector.layout)

    def told_by(self, row: int, numbers: Sequence[float], turn: int, torch_device: torch.device) -> torch.Tensor:
        """Return the numbers, [n] float64, that the rank of a row of the pipeline has; all are in the same turn.

        They travel by the memory of a device. Raise StageError if they come damaged, or are those of another turn.
        """
        source = self.replica * dist.get_world_size(self.pipeline) + row
        travelling = sealed_numbers(torch.tensor(numbers, dtype=torch.float64), turn).to(torch_device)
        with self.detector.heeding():
            dist.broadcast(travelling, src=source, group=self.pipeline)
            with _judging(self.detector.layout.title(source)):
                return unsealed_numbers(travelling.cpu(), turn)

    def ahead_s(self) -> float:
        """Return by how much the clock of the pipeline's first rank is ahead of the own one; all ranks ask together."""
        clocks = self.gathered(clock_name())
        base = self.replica * len(clocks)
        others = [row for row, clock in enumerate(clocks) if not clock == clocks[0] != ""]
        room = sealed_numbers(torch.zeros(1, dtype=torch.float64), 0)

        def read_clock() -> float:
            dist.send(room, base, self.pipeline)
            dist.recv(room, base, self.pipeline)
            with _judging(self.detector.layout.title(base)):
                return unsealed_numbers(room, 0).item()

        with self.detector.heeding():
            if self.row == 0:
                for row in (row for row in others for _ in range(LOOKS)):
                    dist.recv(room, base + row, self.pipeline)
                    now_s = torch.tensor([time.perf_counter()], dtype=torch.float64)
                    dist.send(sealed_numbers(now_s, 0), base + row, self.pipeline)
            elif self.row in others:
                return measured_ahead_s(read_clock)
        return 0.0

    def add_up(self, tensors: Iterable[torch.Tensor]) -> None:
        """Replace tensors by their sums over all replicas."""
        if self.like is not None:
            with self.detector.heeding():
                works = [dist.all_reduce(tensor, group=self.like, async_op=True) for tensor in tensors]
                for work in works:
                    work.wait()


def break_off(groups: Iterable[dist.ProcessGroup]) -> None:
    """Make everything fail that waits for other ranks of these groups, on any thread.

    gloo has no function for this. But when a wait for a message times out, it closes all connections of the group. A
    wait for a rank that has left already fails without that, so there is one for each rank. NCCL has `abort`, which
    does nothing in gloo.
    """
    for group in groups:
        if group.size() > 1:
            with suppress(RuntimeError):  # from a backend that has none
                group.abort()
        for peer in (peer for peer in range(group.size()) if peer != group.rank()):
            with suppress(RuntimeError):  # that it waits no longer
                group.recv([torch.empty(1)], peer, UNUSED_TAG).wait(AT_ONCE)


def check_ranks(plan: Plan, layout: StageLayout, n_ranks: int) -> None:
    """Check that there is a rank for each device of each replica; raise InputError if not."""
    n_devices, count = len(layout.devices), replica_count(plan)
    if n_ranks == count * n_devices:
        return
    names = ", ".join(device.name for device in layout.devices)
    copies = f" in each of {count} replicas" if count > 1 else ""
    raise InputError(
        f"the plan trains on {n_devices} devices ({names}){copies}, and there are {n_ranks} ranks; "
        f"start {count * n_devices}, one for each"
    )


def _group(ranks: Sequence[Sequence[int]], ours: int, made: ExitStack) -> dist.ProcessGroup:
    """Return the group that this rank belongs to; every rank makes all groups, in the same order."""
    groups: list[dist.ProcessGroup] = [dist.new_group(list(each)) for each in ranks]
    made.callback(_let_go, groups[ours])
    return groups[ours]


def _failure_detector(
    plan: Plan, waiting: Sequence[dist.ProcessGroup], silence_s: float, made: ExitStack
) -> FailureDetector:
    """Watch all ranks, by connections of its own; torch waits in the groups."""
    group = dist.new_group(backend="gloo")
    made.callback(_let_go, group)
    layout, own = training_layout(plan), peer_info_of(plan)
    peer_infos = _gathered(own, group, layout)
    check_peer_infos(layout, own, dict(enumerate(peer_infos)))
    return FailureDetector(group, layout, dist.get_rank(), peer_infos, lambda: break_off(waiting), silence_s)


def _gathered(mine: Any, group: dist.ProcessGroup | None, layout: RankLayout) -> list[Any]:
    """Return what each rank of a group passes; raise StageError if it comes damaged."""
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, _sealed(mine), group=group)
    return _unsealed(gathered, group, layout)


def _sealed(mine: Any) -> bytes:
    return sealed(pickle.dumps(mine))


def _unsealed(gathered: Sequence[Any], group: dist.ProcessGroup | None, layout: RankLayout) -> list[Any]:
    found = []
    for number, content in enumerate(gathered):
        with _judging(layout.title(number if group is None else dist.get_global_rank(group, number))):
            found.append(pickle.loads(unsealed(content)))  # of a rank of this run
    return found


@contextmanager
def _judging(title: str) -> Iterator[None]:
    """Raise StageError if what the rank of this title has sent is seen to be damaged."""
    try:
        yield
    except DamagedMessage as error:
        raise StageError(f"{title} has sent {error}") from error


def _let_go(group: dist.ProcessGroup) -> None:
    if dist.is_initialized():  # else it has gone with all others
        dist.destroy_process_group(group)


def _check_one_kind(layout: StageLayout) -> None:
    """Check that torch's engine can send tensors from each device to each: they must be of one kind."""
    gpu = next((device.name for device in layout.devices if device.cuda is not None), None)
    cpu = next((device.name for device in layout.devices if device.cuda is None), None)
    if gpu is not None and cpu is not None:
        raise InputError(
            f"the plan trains on '{cpu}', a CPU, and '{gpu}', a GPU, and between them torch.distributed.pipelining "
            "sends nothing; use planner.train on one host, or plan for devices of one kind"
        )
