"""``planner run``: what is recorded of a run is all there, each time that it is asked for."""

import os

import torch
from torch import nn

import planner
from graphs.importers.from_torch import program_from_module
from planner.cli.run_ import record_run


def test_every_recording_has_its_micro_batches() -> None:
    core = min(os.sched_getaffinity(0))
    device = planner.Device("cpu0", "cpu", 1e9, {"float32": 1e9}, 1e9, cores=(core,))
    program = program_from_module(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.ones(2, 4),))
    plan = planner.plan(program, cluster=planner.Cluster("one", (device,)))
    with planner.start(plan, program) as runner:
        for count in (3, 5):
            recorded = record_run(runner, count)
            assert recorded.micro_batches == count
            assert {span.micro_batch for span in recorded.spans} == set(range(count))
