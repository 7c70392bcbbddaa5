"""Stages with degrees of their own: which ranks each has, and which samples their messages are about.

::

    stage 0, data 3, tensor 1      ranks 0, 1, 2      samples 0-3, 4-7, 8-11
    stage 1, data 2, tensor 2      ranks 3-4, 5-6     samples 0-5, 6-11       3 and 4 receive from 0 and 1, each all

A rank receives its replica's samples from one rank of every replica that has some of them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.utils import _pytree as pytree

from graphs.common.errors import InputError
from graphs.program.program import Program
from planner.parallelism.closed_form.config import ParallelConfig, StageDegrees
from planner.runtime.distributed.training.engine import EngineStage
from planner.runtime.hybrid.mesh import REPLICATE, SHARD, TENSOR
from planner.runtime.hybrid.stage_cut import StageCut
from planner.runtime.training.step import MicroBatch


class Peer(NamedTuple):
    """A rank of a neighbouring stage, and which of the own samples a message is about."""

    rank: int
    samples: slice


@dataclass(frozen=True)
class StageRanks:
    """A rank among those of stages with degrees of their own.

    Attributes:
        config: how devices, batch and layers are divided.
        rank: its number.
    """

    config: ParallelConfig
    rank: int

    @property
    def firsts(self) -> list[int]:
        """[n_stages + 1], the first rank of each stage, and how many there are."""
        return [0, *accumulate(each.devices for each in self.config.degrees)]

    @property
    def stage(self) -> int:
        """The stage of this rank."""
        return next(number for number, end in enumerate(self.firsts[1:]) if self.rank < end)

    @property
    def replica(self) -> int:
        """Which replica of the stage this rank is of."""
        return (self.rank - self.firsts[self.stage]) // self.config.degrees[self.stage].tensor

    def mesh(self, device: str) -> DeviceMesh:
        """Return the mesh of this rank's stage; all ranks make those of all stages together.

        Raises:
            InputError: if there are more or fewer ranks than devices.
        """
        if dist.get_world_size() != self.config.devices:
            raise InputError(
                f"stages of {self.config.named} take {self.config.devices} ranks, and there are "
                f"{dist.get_world_size()}; start {self.config.devices}"
            )
        made = []
        for first, each in zip(self.firsts, self.config.degrees, strict=False):
            shared = each.zero > 0
            sizes = (1 if shared else each.data, each.data if shared else 1, each.tensor)
            ranks = torch.arange(first, first + each.devices).reshape(sizes)
            made.append(DeviceMesh(device, ranks, mesh_dim_names=(REPLICATE, SHARD, TENSOR)))
        return made[self.stage]

    def peers(self, other: int, sends: bool) -> Iterator[Peer]:
        """Yield the ranks of a neighbouring stage that this one sends to, or receives from."""
        own, theirs = self.config.degrees[self.stage], self.config.degrees[other]
        part = (self.rank - self.firsts[self.stage]) % own.tensor
        mine = self.samples_of(self.replica, own)
        for replica in range(theirs.data):
            both = self.samples_of(replica, theirs)
            start, stop = max(mine.start, both.start), min(mine.stop, both.stop)
            for member in range(theirs.tensor) if start < stop else ():
                if member % own.tensor == part if sends else member == part % theirs.tensor:
                    rank = self.firsts[other] + replica * theirs.tensor + member
                    yield Peer(rank, slice(start - mine.start, stop - mine.start))

    def samples_of(self, replica: int, degrees: StageDegrees) -> slice:
        """Return the samples of a micro-batch that a replica of a stage has."""
        each = self.config.shape.samples // degrees.data
        return slice(replica * each, (replica + 1) * each)

    def own_part(self, batch: MicroBatch) -> MicroBatch:
        """Return this rank's part of a micro-batch: its samples of each input whose first dimension counts samples."""
        degrees, whole = self.config.degrees[self.stage], self.config.shape.samples
        mine = self.samples_of(self.replica, degrees)
        inputs = {name: t[mine] if t.shape[:1] == (whole,) else t for name, t in batch.inputs.items()}
        target = pytree.tree_map_only(
            torch.Tensor, lambda t: t.tensor_split(degrees.data)[self.replica] if t.ndim else t, batch.target
        )
        return MicroBatch(inputs, target)

    def own_program(self, program: Program) -> Program:
        """Return the network for the samples of a replica of this rank's stage; the program itself if these are all.

        Raises:
            InputError: if the network is another one for fewer samples.
        """
        if self.config.degrees[self.stage].data == 1:
            return program
        from graphs.importers.from_torch import program_from_module  # late: programs of whole micro-batches need none

        named = dict(zip(program.graph.inputs, program.example_inputs, strict=True))
        inputs = self.own_part(MicroBatch(named, None)).inputs
        given = program.arguments_of(inputs.values())
        own = program_from_module(program.module, given.args, given.kwargs, program.graph.name, training=True)
        if [op.name for op in own.graph.ops] != [op.name for op in program.graph.ops]:
            raise InputError(f"'{program.graph.name}' has other operators for fewer samples; choose with --data")
        return own

    def check(self, cut: StageCut, whole: Program) -> None:
        """Check that only samples go over from stage to stage, of a whole micro-batch and of this rank's part.

        Raises:
            InputError: if something else does; the error names it.
        """
        graph, samples = cut.program.graph, self.config.shape.samples
        sizes = (samples, samples // self.config.degrees[self.stage].data)
        for border in cut.borders[1:-1]:
            for name in border:
                if (*whole.graph.tensor[name].shape[:1], *graph.tensor[name].shape[:1]) != sizes:
                    raise InputError(
                        f"'{name}' goes over from one stage to another and is not divided by samples, so stages cannot "
                        "have degrees of their own; choose with --data and --tensor"
                    )

    @property
    def every(self) -> list[list[int]]:
        """[n_stages], the ranks of each stage."""
        return [list(range(first, end)) for first, end in pairwise(self.firsts)]


class UnequalStage(EngineStage):
    """A stage whose neighbours have other devices: its messages are cut by samples, and go to all who need them."""

    def __init__(self, *args: Any, ranks: StageRanks, **options: Any) -> None:
        """Make a stage as `EngineStage` does, in a group of its own: torch knows neighbours of as many devices."""
        groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
        super().__init__(*args, group=groups[ranks.rank], **options)
        self._ranks, self.group = ranks, None
        self.group_rank, self.group_size = ranks.stage, len(ranks.config.degrees)  # as torch counts what it schedules

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Send each its samples."""
        return list(self._cut(super().get_fwd_send_ops(fwd_chunk_id), 1, sends=True))

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Receive the samples of this replica."""
        return list(self._cut(super().get_fwd_recv_ops(fwd_chunk_id), -1, sends=False))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Send gradients scaled to the replicas of the previous stage, which takes the mean over its own replicas."""
        ops = super().get_bwd_send_ops(bwd_chunk_id)
        degrees = self._ranks.config.degrees
        for op in ops:
            op.tensor = op.tensor * (degrees[self.stage_index - 1].data / degrees[self.stage_index].data)
        return list(self._cut(ops, -1, sends=True))

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Receive gradients of the samples of this replica."""
        return list(self._cut(super().get_bwd_recv_ops(bwd_chunk_id), 1, sends=False))

    def _cut(self, ops: Iterable[dist.P2POp], way: int, sends: bool) -> Iterator[dist.P2POp]:
        """Messages to or from a neighbouring stage, for each of its ranks."""
        for op in ops:
            for peer in self._ranks.peers(self.stage_index + way, sends):
                yield dist.P2POp(op.op, op.tensor[peer.samples], peer.rank)

    def _warmup_forward_vote(self, has_backward: bool, received_acc: Any = None) -> torch.Tensor:  # noqa: ARG002
        """Shapes are known on all ranks, so there is nothing to agree on."""
        return torch.ones(1, dtype=torch.int32)

    def _warmup_backward_result(self, received_result: Any = None) -> torch.Tensor:  # noqa: ARG002
        return torch.ones(1, dtype=torch.int32)

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        return []
