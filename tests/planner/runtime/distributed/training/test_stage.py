"""Stages for torch.distributed.pipelining: what crosses each border, and what they hold."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from torch import nn

from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from planner.runtime.distributed.training.part import PipelineModule, borders_of, hollow, in_two_parts
from planner.runtime.training.options import TrainerOptions
from planner.runtime.training.stages import compile_training, wire
from planner.runtime.training.wiring import Wiring
from tests.planner.runtime.distributed.pipelines import Case, Transformer, plan_for, program_for


class Skip(nn.Module):
    """x ─► linear ─► relu ─► linear_1 ─► add(linear), and a mask from x that only the end reads."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mask = x > 0
        y = self.a(x)
        z = self.b(y.relu())
        return (z + y) * mask, y.detach()


def wired(module: nn.Module, x: torch.Tensor, cuts: Sequence[int]) -> tuple[Program, Wiring]:
    """Stages that begin with these operators."""
    program = program_from_module(module, (x,), training=True)
    ends = [0, *cuts, len(program.graph.ops)]
    return program, wire(program, [tuple(range(a, b)) for a, b in pairwise(ends)])


@pytest.fixture
def skip() -> tuple[Program, Wiring]:
    return wired(Skip(), torch.ones(2, 4), (2, 3, 4))  # gt linear | relu | linear_1 | add mul detach


def test_what_crosses(skip: tuple[Program, Wiring]) -> None:
    program, wiring = skip
    assert [op.name for op in program.graph.ops] == ["gt", "linear", "relu", "linear_1", "add", "mul", "detach"]
    assert borders_of(wiring) == (("x",), ("gt", "linear"), ("gt", "linear", "relu"), ("gt", "linear", "linear_1"))


def test_the_same_on_all_ranks(skip: tuple[Program, Wiring]) -> None:
    _, wiring = skip
    assert all(list(names) == sorted(names) for names in borders_of(wiring))


def test_what_torch_is_told(skip: tuple[Program, Wiring]) -> None:
    _, wiring = skip
    mask, y = hollow(wiring, ("gt", "linear"), {"gt": torch.bool, "linear": torch.float32})
    assert (mask.dtype, mask.shape, mask.requires_grad, mask.is_meta) == (torch.bool, (2, 4), False, True)
    assert (y.dtype, y.shape, y.requires_grad) == (torch.float32, (2, 4), True)


def test_a_chain_by_hand_is_the_model(skip: tuple[Program, Wiring]) -> None:
    """Stage after stage, with everything that they read through them; and what they hold has the model's names."""
    program, wiring = skip
    stages, _ = compile_training(program, wiring, [0] * 4, [torch.device("cpu")], TrainerOptions())
    borders = [*borders_of(wiring), None]
    modules = [
        PipelineModule(stage, arrives or (), leaves, {}, False, TrainerOptions())
        for stage, arrives, leaves in zip(stages, borders[:-1], borders[1:], strict=True)
    ]
    x = torch.randn(2, 4)
    values: tuple[torch.Tensor, ...] = (x,)
    for module in modules:
        values = module(*values, micro_batch=0)
    assert all(torch.equal(a, b) for a, b in zip(values, program.module(x), strict=True))
    assert [sorted(module.state_dict()) for module in modules] == [
        ["a.bias", "a.weight"],
        [],
        ["b.bias", "b.weight"],
        [],
    ]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.a(x) + x
        return y


def test_an_input_that_a_later_stage_reads_leaves_as_torch_sends_it() -> None:
    x = torch.randn(4, 2).T
    program, wiring = wired(Residual(), x, (1,))  # linear | add
    first, _ = compile_training(program, wiring, [0] * 2, [torch.device("cpu")], TrainerOptions())[0]
    assert borders_of(wiring)[1] == ("linear", "x")
    y, passed = PipelineModule(first, ("x",), ("linear", "x"), {}, False, TrainerOptions())(x, micro_batch=0)
    assert torch.equal(passed, x)
    assert passed.is_contiguous()
    assert y.is_contiguous()


class Towers(nn.Module):
    """What is behind `cut` has a tower that reads nothing from before it."""

    def __init__(self, joined: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.bias = nn.Parameter(torch.ones(4))
        self.joined = joined

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.second(self.first(x))
        z = self.bias.exp()
        return (y + z,) if self.joined else (y, z)


def test_where_torch_finds_all_gradients_in_two_parts(skip: tuple[Program, Wiring]) -> None:
    _, wiring = skip
    assert [in_two_parts(wiring, number) for number in (1, 2, 3)] == [True] * 3
    for joined in (True, False):
        _, towers = wired(Towers(joined), torch.ones(2, 4), (1,))
        assert in_two_parts(towers, 1) is joined


def test_where_nothing_comes_back_to_what_is_before() -> None:
    """torch would begin nowhere."""
    model = Transformer(n_layers=1)
    model.words.requires_grad_(False)
    program = program_from_module(model, (torch.ones(2, 5, dtype=torch.int64),), training=True)
    cut = next(i for i, op in enumerate(program.graph.ops) if op.module == "layers.0.first")
    wiring = wire(program, [tuple(range(cut)), tuple(range(cut, len(program.graph.ops)))])
    assert not in_two_parts(wiring, 1)


def test_a_plan_s_devices_are_in_the_order_of_the_stages() -> None:
    case = Case("transformer", ("layers.0.second", "layers.2.first"))
    plan = plan_for(case, program_for(case))
    assert [plan.device_of(op.name) for op in plan.graph.ops][:: len(plan.graph.ops) - 1] == ["cpu0", "cpu2"]
