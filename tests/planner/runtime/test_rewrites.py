"""Plans of rewritten networks run, and their answers are those of the network as it was imported."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

import planner
from graphs.rewrites.rewrite import rewritten
from planner.planning.rewriting import rewrites_for
from planner.runtime.benchmark.check import compare_outputs
from tests.graphs.rewrites.nets import FUSED, imported
from tests.planner.runtime.small import alternating, desk, make_plan

TOLERANCE = 1e-5  # of the largest element


@pytest.mark.parametrize("make", [make for make, _ in FUSED.values()], ids=FUSED)
def test_fused_operators_run_on_several_devices(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(5)
    program = imported(make())
    devices = tuple(replace(device, kernels="quick") for device in desk(2).devices)
    rewrites = rewrites_for("fuse", program.graph, devices, trains=False)
    fused = replace(program, graph=rewritten(program.graph, rewrites))
    cluster = replace(desk(2), devices=devices)
    plan = replace(make_plan(fused, alternating(fused, 2), cluster), rewrites=rewrites)
    with planner.start(plan, program) as runner:
        answers = compare_outputs(runner)
    assert not answers.wrong
    assert answers.rounding <= TOLERANCE
