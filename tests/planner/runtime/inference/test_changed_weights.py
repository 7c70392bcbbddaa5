"""A runner answers with the weights that the model had when it was started, however the model changes afterwards."""

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from costmodels.cluster.cluster import Cluster
from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.kernels.choice import Kernels
from graphs.program.program import Program
from graphs.program.rewritten import rewritten_program
from graphs.rewrites.fuse import find_fusions
from planner.runtime.distributed.inference.launcher import start_processes
from planner.runtime.inference.runner import Runner
from simulator.placement import Placement
from tests.planner.runtime.small import alternating, desk, make_plan


class Everything(nn.Module):
    """Weights of all kinds: packed, folded, computed once, read as they are, tied, returned."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.up, self.row = nn.Linear(8, 16), nn.Linear(16, 8)
        self.scale, self.shift = nn.LayerNorm(16), nn.Parameter(torch.randn(16))
        self.words, self.lstm = nn.Embedding(8, 16), nn.LSTM(16, 4)
        self.positions = nn.Buffer(torch.rand(2, 16))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        y = self.scale(nn.functional.gelu(self.up(y)) + self.shift + self.positions.sin() * 2)
        y = y + self.words(y.argmax(-1) % 8) @ self.words.weight.T @ self.words.weight
        row = self.row(y[:1])
        return row, self.lstm(y)[0], self.shift


def set_all(model: nn.Module, change: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
    """Change each tensor of a model, given with numbers to change it to."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            change(tensor, torch.rand_like(tensor) + 0.5)


def loaded(model: nn.Module) -> None:
    other = Everything().eval()
    set_all(other, lambda tensor, to: tensor.data.copy_(to))
    model.load_state_dict(other.state_dict())


def stepped(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(model.parameters(), lr=0.7).step()


def written_by_numpy(model: nn.Module) -> None:
    set_all(model, lambda tensor, to: np.copyto(tensor.detach().numpy(), to.numpy()))


def replaced(model: nn.Module) -> None:
    def change(tensor: torch.Tensor, to: torch.Tensor) -> None:
        tensor.data = to

    set_all(model, change)


CHANGES: dict[str, Callable[[nn.Module], object]] = {
    "load_state_dict": loaded,
    "an optimizer": stepped,
    "data": lambda model: set_all(model, lambda tensor, to: tensor.data.copy_(to)),
    "other data": replaced,
    "numpy": written_by_numpy,
    "statistics": lambda model: model.train()(torch.randn(2, 3, 6, 6)),
}


def program_of() -> Program:
    torch.manual_seed(0)
    model = Everything().eval()
    set_all(model, lambda tensor, to: tensor.data.copy_(to - 0.4))
    whole = program_from_module(model, (torch.randn(2, 3, 6, 6),))
    return rewritten_program(whole, (find_fusions(whole.graph),))


def cluster_of(kernels: Kernels) -> Cluster:
    cluster = desk(2)
    return replace(cluster, devices=tuple(replace(each, kernels=kernels) for each in cluster.devices))


@pytest.mark.parametrize("kernels", ["quick", "exact"])
@pytest.mark.parametrize("how", CHANGES)
def test_no_change_is_seen(how: str, kernels: Kernels) -> None:
    program = program_of()
    (x,), model = program.example_inputs, program.module
    n = len(program.graph.ops)
    copies = Placement((0,) * n, others=(Placement((1,) * n),))
    for placement in (alternating(program, 2), copies):
        before = copy.deepcopy(model)(x)
        with Runner(make_plan(program, placement, cluster_of(kernels)), program) as early:
            CHANGES[how](model)
            answers = [early(x), *early.stream([(x,)] * 3)]
            CHANGES[how](model)
            answers.append(early(x))
        for answer in answers:
            torch.testing.assert_close(answer, before, rtol=1e-4, atol=1e-5)
        model.eval()
        late = Runner(make_plan(program, placement, cluster_of(kernels)), program)
        with late:
            torch.testing.assert_close(late(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_no_change_is_seen_by_processes() -> None:
    program = program_of()
    (x,), model = program.example_inputs, program.module
    before = copy.deepcopy(model)(x)
    plan = make_plan(program, alternating(program, 2), cluster_of("quick"))
    with Runner(plan, program, start_processes(plan, program)) as runner:
        loaded(model)
        torch.testing.assert_close(runner(x), before, rtol=1e-4, atol=1e-5)


def test_a_weight_is_copied_once_for_all_devices() -> None:
    program = program_from_module(nn.Linear(8, 8).eval(), (torch.randn(2, 8),))
    plan = make_plan(program, Placement((0,), others=(Placement((1,)),)), cluster_of("exact"))
    with Runner(plan, program) as runner:
        held = [dict(runner.owned(name)) for name in ("cpu0", "cpu1")]
    for name, tensor in held[0].items():
        assert held[1][name] is tensor
        assert tensor.data_ptr() != program.state[name].data_ptr()


def test_copies_are_refused_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_from_module(nn.Linear(512, 512).eval(), (torch.randn(2, 512),))
    plan = make_plan(program, Placement((0,)), cluster_of("exact"))
    monkeypatch.setattr("costmodels.host.packing.free_bytes", lambda _: 2**20)
    with pytest.raises(InputError, match=r"1 MiB of weights that a runner copies.*start it with share_weights=True"):
        Runner(plan, program)
    with Runner(plan, program, share_weights=True) as runner:
        assert runner.owned("cpu0")["weight"].data_ptr() == program.state["weight"].data_ptr()
