"""Stages with degrees of their own: who sends which samples to whom, and what cannot be run so."""

import pytest
import torch
from torch import nn

from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from planner.parallelism.closed_form.config import ParallelConfig, ParallelShape, StageDegrees, StageLayers
from planner.parallelism.closed_form.config_file import config_from_dict, config_to_dict
from planner.runtime.hybrid.stage_cut import StageCut
from planner.runtime.hybrid.unequal import Peer, StageRanks

ROW = ParallelConfig(
    ParallelShape(1, 1, 2, 12, 2), (StageLayers(1, 0, 0),) * 2, degrees=(StageDegrees(3, 1, 1), StageDegrees(2, 2))
)


class Summed(nn.Module):
    """What goes over from the first layer to the second one has no samples."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(self.first(x).sum(0))
        return result


def program_of(module: nn.Module) -> Program:
    return program_from_module(module.train(), (torch.ones(12, 4),), training=True)


def test_messages_are_cut_by_samples() -> None:
    """Replicas have samples 0-3, 4-7 and 8-11 of 12 before, and 0-5 and 6-11 behind, on two ranks each."""
    ranks = [StageRanks(ROW, number) for number in range(7)]
    assert [each.stage for each in ranks] == [0, 0, 0, 1, 1, 1, 1]
    assert [each.replica for each in ranks] == [0, 1, 2, 0, 0, 1, 1]
    ahead = [list(each.peers(1, sends=True)) for each in ranks[:3]]
    whole, lower, upper = slice(0, 4), slice(0, 2), slice(2, 4)
    assert ahead[0] == [Peer(3, whole), Peer(4, whole)]
    assert ahead[1] == [Peer(3, lower), Peer(4, lower), Peer(5, upper), Peer(6, upper)]
    assert list(ranks[4].peers(0, sends=False)) == [Peer(0, slice(0, 4)), Peer(1, slice(4, 6))]
    assert list(ranks[3].peers(0, sends=True)) == [Peer(0, slice(0, 4)), Peer(1, slice(4, 6))]
    assert list(ranks[4].peers(0, sends=True)) == []  # its neighbour has the same gradients
    assert list(ranks[1].peers(1, sends=False)) == [Peer(3, lower), Peer(5, upper)]


def test_what_is_sent_is_what_is_received() -> None:
    """For any degrees, both ways: as many samples, in the same order of ranks."""
    for other in (StageDegrees(2, 2), StageDegrees(1, 4), StageDegrees(4, 1), StageDegrees(6, 1)):
        config = ParallelConfig(ROW.shape, ROW.stages, degrees=(StageDegrees(3, 2), other))
        ranks = [StageRanks(config, number) for number in range(config.devices)]
        for one in ranks:
            for way in (False, True):
                for peer in one.peers(1 - one.stage, sends=way):
                    back = [each for each in ranks[peer.rank].peers(one.stage, sends=not way) if each.rank == one.rank]
                    assert [each.samples.stop - each.samples.start for each in back] == [
                        peer.samples.stop - peer.samples.start
                    ]
            received = list(one.peers(1 - one.stage, sends=False))
            assert (
                sum(each.samples.stop - each.samples.start for each in received) == 12 // config.degrees[one.stage].data
            )


def test_a_row_keeps_the_degrees_of_its_stages() -> None:
    document = config_to_dict(ROW)
    assert document["stages"][0] == {"none": 1, "selective": 0, "full": 0, "data": 3, "tensor": 1, "zero": 1}
    assert config_from_dict(document) == ROW
    document["stages"][0]["data"] = 5
    with pytest.raises(InputError, match=r"data = 5, which does not divide 12 samples .* the nearest that works is 4"):
        config_from_dict(document)


def test_what_cannot_be_run_is_refused_by_name() -> None:
    ranks, program = StageRanks(ROW, 0), program_of(Summed())
    config = ParallelConfig(ROW.shape, ROW.stages, degrees=(StageDegrees(3, 1), StageDegrees(3, 1)))
    with pytest.raises(InputError) as refused:
        ranks.check(StageCut.of(config, ranks.own_program(program)), program)
    assert "'sum_1' goes over from one stage to another and is not divided by samples" in str(refused.value)
    assert "choose with --data and --tensor" in str(refused.value)
