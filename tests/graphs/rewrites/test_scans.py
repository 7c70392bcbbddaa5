"""Loops over time that a trace unrolls: each becomes one operator, with the same bits, costs and memory."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import planner
from costmodels.memory.passes import inference_bytes
from costmodels.tabulate import tabulate
from costmodels.workload import Workload
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from graphs.program.rewritten import rewritten_program
from graphs.rewrites.fuse import SCAN, Fuse
from graphs.rewrites.rewrite import rewrite_from_dict, rewrite_to_dict
from graphs.rewrites.scans import find_scans, unrolled
from planner.planning.make_plan import Search
from planner.plans.files import plan_from_dict, plan_to_dict
from tests.planner.runtime.small import desk

STEPS = 9


class Scan(nn.Module):
    """A state that decays, with what every step adds and reads, between two products."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.decay, self.leave = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        added, decay = self.enter(x), torch.sigmoid(self.decay(x))
        state, seen = torch.zeros_like(x[:, 0]), []
        for step in range(x.shape[1]):
            state = decay[:, step] * state + added[:, step]
            seen.append(torch.tanh(state))
        y: Tensor = self.leave(torch.stack(seen, 1))
        return y


class InPlace(nn.Module):
    """Rows that follow from all rows above them, written one by one, as gated delta rules invert a matrix."""

    def forward(self, x: Tensor) -> Tensor:
        x = x * 0.5
        for row in range(1, x.shape[-1]):
            above = x[..., :row, :].clone()
            x[..., row, :] = x[..., row, :].clone() + (x[..., row, :row].clone().unsqueeze(-1) * above).sum(-2)
        return x


class Shared(nn.Module):
    """Layers that are one module: each reads what the one before it wrote, and all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(STEPS):
            x = torch.relu(x @ self.layer.weight)
        return x


class Apart(nn.Module):
    """Steps that read a place each, and nothing of each other."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([torch.tanh(x[:, step]) * 2 for step in range(STEPS)], 1)


def imported(module: nn.Module, *shape: int) -> Program:
    torch.manual_seed(0)
    return program_from_module(module.eval(), torch.randn(shape or (2, STEPS, 6)))


def fused(program: Program) -> Program:
    return rewritten_program(program, [Fuse(find_scans(program.graph), SCAN)])


@pytest.mark.parametrize(("module", "shape", "left"), [(Scan(), (2, STEPS, 6), 8), (InPlace(), (2, 7, 7), 4)])
def test_a_loop_over_time_is_one_operator_with_the_same_bits(
    module: nn.Module, shape: tuple[int, ...], left: int
) -> None:
    program = imported(module, *shape)
    whole = fused(program)
    (scan,) = (op for op in whole.graph.ops if op.kind == SCAN)
    assert len(scan.members) > 20
    assert len(whole.graph.ops) <= left
    x = torch.randn(shape)
    assert torch.equal(whole.run(x), module(x.clone()))
    graph, starts = unrolled(whole.graph)
    assert [graph.ops[start].name for start in starts] == [
        op.members[0].name if op.members else op.name for op in whole.graph.ops
    ]
    assert [op.name for op in graph.ops] == [op.name for op in program.graph.ops]


@pytest.mark.parametrize("module", [Shared(), Apart()])
def test_layers_and_independent_steps_are_no_scan(module: nn.Module) -> None:
    assert find_scans(imported(module).graph) == ()


def test_a_scan_costs_as_much_as_its_operators() -> None:
    program, cluster = imported(Scan()), desk(2)
    whole = fused(program).graph
    apart, together = (tabulate(graph, cluster, Workload(), {}) for graph in (program.graph, whole))
    members = next(op.members for op in whole.ops if op.kind == SCAN)
    numbers = [program.graph.index[member.name] for member in members]
    number = next(number for number, op in enumerate(whole.ops) if op.kind == SCAN)
    np.testing.assert_allclose(together.forward_s[number], apart.forward_s[numbers].sum(axis=0))
    np.testing.assert_allclose(together.forward_s.sum(), apart.forward_s.sum())
    assert together.working_bytes == apart.working_bytes == inference_bytes(program.graph) * Workload().in_flight
    assert together.op_bytes.sum() == apart.op_bytes.sum()


def test_a_plan_has_the_scan_as_one_operator_and_runs_it() -> None:
    program = imported(Scan())
    plan = planner.plan(program, cluster=desk(2), goal="latency", search=Search(rewrites="fuse", time_limit_s=1.0))
    (fusion,) = (rewrite for rewrite in plan.rewrites if isinstance(rewrite, Fuse))
    assert rewrite_from_dict(rewrite_to_dict(fusion)) == fusion
    assert len(plan.graph.ops) < len(program.graph.ops) / 3
    x = torch.randn(2, STEPS, 6)
    with planner.start(plan, program) as runner, torch.no_grad():
        assert torch.equal(runner(x), program.module(x))
    assert planner.verify(plan, program).equal
    document = plan_to_dict(plan)
    assert plan_to_dict(plan_from_dict(document)) == document
    whole = planner.plan(program, cluster=desk(2), goal="latency", search=Search(rewrites="none", time_limit_s=1.0))
    assert replace(plan, rewrites=()).predicted_s == pytest.approx(whole.predicted_s, rel=0.3)
