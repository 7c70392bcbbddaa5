"""Gradients are the reference model's: bit by bit in float64 for one micro-batch, however the network is divided."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from costmodels.workload import RECOMPUTE_MODES, RecomputeMode
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from planner.runtime.training.options import TrainerOptions
from planner.runtime.training.stages import wire
from planner.runtime.training.wiring import Wiring
from tests.planner.runtime.training.nets import (
    BATCH,
    NETWORKS,
    gradients,
    in_runs,
    numbers,
    program_of,
    reference_gradients,
    samples,
)


def assert_same_bits(
    got: tuple[torch.Tensor, dict[str, torch.Tensor | None]],
    expected: tuple[torch.Tensor, dict[str, torch.Tensor | None]],
) -> None:
    assert torch.equal(got[0], expected[0])
    assert got[1].keys() == expected[1].keys()
    for name, wanted in expected[1].items():
        found = got[1][name]
        if wanted is None or found is None:
            assert wanted is found, name
        else:
            assert torch.equal(found, wanted), (name, (found - wanted).abs().max())


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("recompute", RECOMPUTE_MODES)
def test_two_and_three_stages(name: str, recompute: RecomputeMode) -> None:
    program, batch = program_of(name), samples(name, BATCH)
    n = len(program.graph.ops)
    expected = reference_gradients(program, batch)
    for cuts in ((), (1,), (n // 2,), (n - 1,), (n // 3, 2 * n // 3), (2, 3)):
        members = in_runs(program, *cuts)
        devices = [0] * len(members) if name == "tied" else range(len(members))  # its weight is read everywhere
        got = gradients(program, members, devices, batch, trainer_options=TrainerOptions(recompute=recompute))
        assert_same_bits(got, expected)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_operator_is_a_stage(name: str) -> None:
    program, batch = program_of(name), samples(name, BATCH)
    members = [(i,) for i in range(len(program.graph.ops))]
    devices = [0 if name == "tied" else i % 2 for i in range(len(members))]
    assert_same_bits(gradients(program, members, devices, batch), reference_gradients(program, batch))


@pytest.mark.parametrize("name", NETWORKS)
def test_several_micro_batches(name: str) -> None:
    program, batch = program_of(name), samples(name, 4 * BATCH)
    members = in_runs(program, len(program.graph.ops) // 2)
    got = gradients(program, members, [0, 0 if name == "tied" else 1], batch, micro_batches=4)
    assert_same_bits(got, reference_gradients(program, batch, micro_batches=4))  # here they come back in turn as well


@pytest.mark.parametrize("name", NETWORKS)
def test_weights_that_wait(name: str) -> None:
    program, batch = program_of(name), samples(name, 3 * BATCH)
    n = len(program.graph.ops)
    loss, expected = reference_gradients(program, batch, micro_batches=3)
    for cuts in ((), (n // 2,), (2, 3), tuple(range(1, n))):
        members = in_runs(program, *cuts)
        devices = [0 if name == "tied" else i % 2 for i in range(len(members))]
        got, found = gradients(program, members, devices, batch, micro_batches=3, halves=True)
        assert torch.equal(got, loss)
        for parameter, gradient in found.items():
            torch.testing.assert_close(gradient, expected[parameter], rtol=1e-12, atol=1e-15)


@dataclass(frozen=True)
class Step:
    """``kind`` of earlier values."""

    kind: str
    reads: tuple[int, ...]
    layer: int


class Tangle(nn.Module):
    """Steps on values of one shape. Layers are shared, values are read by any number of steps."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.steps = steps
        self.layers = nn.ModuleList(nn.Linear(4, 4).double() for _ in range(3))
        self.scale = nn.Parameter(torch.randn(4, dtype=torch.float64))
        self.layers[2].requires_grad_(False)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        values = [self.layers[0](x)]
        for step in self.steps:
            a, b = (values[i % len(values)] for i in step.reads)
            match step.kind:
                case "layer":
                    values.append(torch.tanh(self.layers[step.layer](a)))
                case "scale":
                    values.append(a * self.scale)
                case "square":
                    values.append(a * a * 0.3)
                case "add":
                    values.append(a + b)
                case "mix":
                    values.append(torch.cat([a, b, a], 1)[:, 2:6] + b)
        return values[-3:]


def square_loss(result: list[torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    first, *others = result
    return (first - target).square().mean() + sum((other.sin().mean() for other in others), torch.zeros(()))


STEPS = st.builds(
    Step,
    st.sampled_from(["layer", "scale", "square", "add", "mix"]),
    st.tuples(st.integers(0, 50), st.integers(0, 50)),
    st.integers(0, 2),
)


def placed(data: st.DataObject, program: Program) -> tuple[list[list[int]], list[int]]:
    """Operators in stages, each behind what it reads; stages that train the same parameter are on one device."""
    writer = {name: i for i, op in enumerate(program.graph.ops) for name in op.outputs}
    stage: list[int] = []
    for op in program.graph.ops:
        earliest = max((stage[writer[name]] for name in op.inputs if name in writer), default=0)
        stage.append(earliest + data.draw(st.sampled_from([0, 0, 0, 1, 2])))
    used = sorted(set(stage))
    members = [[i for i, s in enumerate(stage) if s == number] for number in used]
    devices = [data.draw(st.integers(0, 2)) for _ in members]
    home: dict[str, int] = {}
    joined = list(range(3))  # device -> the device that stands in for it
    for ops, device in zip(members, devices, strict=True):
        for name in (name for i in ops for name in program.graph.ops[i].inputs if name in program.state):
            one, other = joined[home.setdefault(name, device)], joined[device]
            joined = [one if d == other else d for d in joined]
    rows = sorted({joined[device] for device in devices})
    return members, [rows.index(joined[device]) for device in devices]


@pytest.mark.slow
@settings(max_examples=30)
@given(st.lists(STEPS, min_size=2, max_size=9).map(tuple), st.data())
def test_any_network_on_any_placement(steps: tuple[Step, ...], data: st.DataObject) -> None:
    program = program_from_module(Tangle(steps), (numbers(BATCH),))
    members, devices = placed(data, program)
    torch.manual_seed(1)
    batch = (torch.randn(BATCH, 4, dtype=torch.float64), torch.randn(BATCH, 4, dtype=torch.float64))
    expected = reference_gradients(program, batch, loss=square_loss)
    halves = data.draw(st.booleans())
    got = gradients(program, members, devices, batch, loss=square_loss, halves=halves)
    known = {name: gradient for name, gradient in expected[1].items() if name in got[1]}
    assert all(expected[1][name] is None for name in expected[1].keys() - known.keys())  # of layers that nobody calls
    if halves:  # sums may be in another order
        torch.testing.assert_close(got[1], known, rtol=1e-12, atol=1e-15)
    else:
        assert_same_bits(got, (expected[0], known))


def test_what_stages_read_out_of_turn_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    program, batch = program_of("branches"), samples("branches", BATCH)
    expected = reference_gradients(program, batch)
    kinds = [op.kind for op in program.graph.ops]
    reads = [i for i, op in enumerate(program.graph.ops) if "gelu" in op.inputs]
    assert kinds[:2] == ["aten.linear.default", "aten.gelu.default"]
    assert not wire(program, in_runs(program, reads[1], reads[3])).forks  # each stage reads behind the one before
    first = [0, 1, reads[1], reads[3]]  # the second and the fourth branch; the first and the third come later
    members = [first, [i for i in range(len(kinds)) if i not in first]]
    assert {name: len(copies) for name, copies in wire(program, members).forks.items()} == {"gelu": 6}  # twice in y * y
    assert_same_bits(gradients(program, members, [0, 1], batch), expected)

    monkeypatch.setattr(Wiring, "forks", {})
    without = gradients(program, members, [0, 1], batch)
    with pytest.raises(AssertionError):
        assert_same_bits(without, expected)
    for name, gradient in without[1].items():
        torch.testing.assert_close(gradient, expected[1][name], rtol=1e-12, atol=1e-15)


class ChannelsLast(nn.Module):
    """A convolution whose result has the channels last, and the gradient of the result has not."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(4, 32, 2, stride=2)
        self.leave = nn.Linear(32 * 8 * 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.leave(self.enter(x.permute(0, 3, 1, 2)).flatten(1))
        return y


def test_a_gradient_keeps_its_strides_between_stages() -> None:
    torch.manual_seed(0)
    x, target = torch.randn(1, 16, 16, 4), torch.randint(3, (1,))
    program = program_from_module(ChannelsLast(), (x,), training=True)
    got = gradients(program, in_runs(program, 2), [0, 1], (x, target))
    assert_same_bits(got, reference_gradients(program, (x, target)))
