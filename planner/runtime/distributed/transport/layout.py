"""Layout: which process has which devices of a plan, and which tensors it sends to another one, after which stage.

With as many processes as devices, the coordinator, which callers talk to, shares rank 0 with the first device; with one
more process, the coordinator has rank 0 for itself::

    torchrun, 2 ranks                  planner run --processes, 3 ranks
    0: coordinator, cpu0   1: cpu1           0: coordinator   1: cpu0   2: cpu1
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby

from graphs.common.errors import InputError
from graphs.ir import Graph, Tensor
from graphs.kernels.functions import inputs_of
from planner.plans.plan import Plan
from planner.runtime.stages.caches import GROUP
from planner.runtime.stages.compile import outputs_of
from planner.runtime.training import prepare
from simulator.stages import Stage

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


def rank_layout(plan: Plan, n_ranks: int) -> RankLayout:
    """Divide the devices of an inference plan among processes; raise InputError if these are too few or too many."""
    used = plan.placement.used
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


def training_layout(plan: Plan, coordinator: bool = False) -> RankLayout:
    """Give each device of each replica a rank, in the order of the schedule's rows.

    With ``coordinator`` there is one more rank before them, without a device.
    """
    devices, replicas = plan.cluster.devices, plan.cluster.replicas
    rows = tuple((devices.index(device),) for device in prepare.stage_layout(plan).devices)
    rows *= 1 if replicas is None else replicas.count
    return RankLayout(((), *rows) if coordinator else rows, tuple(device.name for device in devices))


STATES = ("active", "positions")  # which rows of a language model begin, whose states become zero

INPUTS = -1
"""Stands for a stage: the coordinator itself, which writes the inputs of a micro-batch. The inputs of micro-batches
that go through copy c of the network have the number ``INPUTS - c``."""


@dataclass(frozen=True)
class Payload:
    """Tensors that travel together."""

    stage: int  # that writes them, or `INPUTS` and less
    src: int  # rank that has them
    dst: int  # another rank, which reads them
    tensors: tuple[Tensor, ...]  # may be empty if only the end of the stage matters


@dataclass(frozen=True)
class Routes:
    """All payloads of the micro-batches."""

    payloads: tuple[Payload, ...]  # by stage, then rank
    copy_of: tuple[int, ...] = ()  # [n_stages], the copy of the network that a stage belongs to

    @property
    def n_copies(self) -> int:
        """The number of copies of the network."""
        return max(self.copy_of, default=0) + 1

    @cached_property
    def behind(self) -> Mapping[int, tuple[Payload, ...]]:
        """The payloads that are sent after each stage."""
        return {stage: tuple(payloads) for stage, payloads in groupby(self.payloads, lambda payload: payload.stage)}

    @cached_property
    def into(self) -> Mapping[tuple[int, int], Payload]:
        """The payloads that arrive, by (stage, destination)."""
        return {(payload.stage, payload.dst): payload for payload in self.payloads}

    def between(self, src: int, dst: int) -> tuple[Payload, ...]:
        """Return the payloads from one rank to another."""
        return tuple(payload for payload in self.payloads if (payload.src, payload.dst) == (src, dst))

    def awaited(self, rank: int) -> tuple[tuple[int, ...], ...]:
        """Return for each copy of the network the stages elsewhere whose end is reported to a rank."""
        told = [payload.stage for payload in self.payloads if payload.dst == rank and payload.stage > INPUTS]
        return tuple(tuple(stage for stage in told if self.copy_of[stage] == copy) for copy in range(self.n_copies))


def find_routes(graphs: Graph | Sequence[Graph], stages: Sequence[Stage], layout: RankLayout) -> Routes:
    """Find the payloads of a placement's stages under a layout; several graphs are those of the network's copies.

    A stage's tensors leave together, once for each rank that reads any of them. The coordinator gets a payload from the
    stages whose outputs the caller gets, and an empty one from stages that no stage waits for: when all have come,
    every stage of the micro-batch is done. With several graphs, caches stay on their devices: a rank gets other inputs
    that it reads, which rows have begun, and the number of the pass's group. ::

        [x] coordinator ─► rank 1 [a] ─┬─► rank 2 [b] ─► coordinator      a is read by b and c, leaves for each once
                                       └─► rank 3 [c] ─► coordinator
    """
    several = [graphs] if isinstance(graphs, Graph) else graphs
    graph = several[0]
    kept = set() if graphs is graph else set(chain.from_iterable(graph.caches))
    returned = set(graph.outputs) - kept
    written = outputs_of(graph, stages)
    copies = range(max((stage.copy for stage in stages), default=0) + 1)
    read = {(copy, COORDINATOR): set(returned) for copy in copies}  # tensors, by copy of the network and rank
    for stage in stages:
        read.setdefault((stage.copy, layout.rank_of[stage.device]), set()).update(inputs_of(graph, stage.ops))
    waiting = _waiting(returned, stages, written, layout)

    def payload(stage: int, copy: int, ends: tuple[int, int], names: Sequence[str]) -> Payload:
        wanted, tensor = read.get((copy, ends[1]), ()), several[copy % len(several)].tensor
        return Payload(stage, *ends, tuple(tensor[name] for name in names if name in wanted))

    def inputs_of_copy(copy: int, rank: int) -> Payload:
        if graphs is graph:
            return payload(INPUTS - copy, copy, (COORDINATOR, rank), graph.inputs)
        wanted = {*read.get((copy, rank), ()), *STATES} - kept
        sent = (several[copy].tensor[name] for name in graph.inputs if name in wanted)
        return Payload(INPUTS - copy, COORDINATOR, rank, (*sent, GROUP))

    inputs = [inputs_of_copy(copy, rank) for copy in copies for rank in layout.others]
    behind = [
        payload(number, stage.copy, (src, dst), written[number])
        for number, stage in enumerate(stages)
        for src in [layout.rank_of[stage.device]]
        for dst in sorted(waiting[number] - {src})
    ]
    return Routes((*inputs, *behind), tuple(stage.copy for stage in stages))


def _waiting(
    returned: Set[str], stages: Sequence[Stage], written: Sequence[Sequence[str]], layout: RankLayout
) -> list[set[int]]:
    """Return for each stage the ranks that wait for its end; the coordinator for outputs, and where no rank waits."""
    waiting: list[set[int]] = [set() for _ in stages]
    for stage in stages:
        for needed in stage.needs:
            waiting[needed].add(layout.rank_of[stage.device])
    for ranks, names in zip(waiting, written, strict=True):
        if not ranks or not returned.isdisjoint(names):
            ranks.add(COORDINATOR)
    return waiting
