"""Gradients go back for what is learned, and only for that, whatever version of torch is there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import schedules

from planner.runtime.distributed.training import engine as pipeline_gradients
from planner.runtime.distributed.training.engine import EngineStage, divides


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def asked_anew() -> Iterator[None]:
    divides.cache_clear()
    yield
    divides.cache_clear()


class First(nn.Module):
    """Numbers x: p * x, q * x and where x is positive."""

    def __init__(self) -> None:
        super().__init__()
        self.p, self.q = (nn.Parameter(torch.tensor(value)) for value in (2.0, 5.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.p * x, self.q * x, x > 0


class Second(nn.Module):
    """What came first, times r, where it is told; the second tensor has no influence."""

    def __init__(self) -> None:
        super().__init__()
        self.r = nn.Parameter(torch.tensor(3.0))

    def forward(self, y: Tensor, _: Tensor, positive: Tensor) -> tuple[Tensor]:
        result = torch.zeros(2, 2).t()  # not contiguous, as the result of a network may be
        return (result + (self.r * y * positive).sum(),)


def stages() -> list[EngineStage]:
    """Both, on this rank."""
    x = torch.empty(3, device="meta")
    y = torch.empty(3, device="meta", requires_grad=True)
    between, end = (y, y, torch.empty(3, dtype=torch.bool, device="meta")), (torch.empty(2, 2, device="meta"),)
    torch_device = torch.device("cpu")
    return [
        EngineStage(First(), "cpu", 0, 2, torch_device, input_args=(x,), output_args=between),
        EngineStage(Second(), "cpu", 1, 2, torch_device, input_args=between, output_args=end),
    ]


@pytest.mark.usefixtures("alone")
def test_what_has_no_influence_and_what_has_no_gradient(tmp_path: Path) -> None:
    """The result is 4 * r * p * (1 + 4) of x = 1, -2, 4: gradients are 60 of p, 0 of q and 40 of r, twice."""
    (tmp_path / "schedule.csv").write_text("0F0,1F0,1B0,0B0,0F1,1F1,1B1,0B1\n", encoding="utf-8")
    runtime_class: Any = schedules._PipelineScheduleRuntime
    both = stages()
    runtime = runtime_class(both, 2, loss_fn=lambda outputs, _: outputs[0].sum(), scale_grads=False)
    runtime._load_csv(str(tmp_path / "schedule.csv"), "compute_only")
    parameters = [parameter for stage in both for parameter in stage.submod.parameters()]
    x = torch.tensor([1.0, -2.0, 4.0])
    for step in (1, 2):
        for stage in both:
            stage.has_backward = True
            stage.clear_runtime_states()
        runtime._step_microbatches([(x,), (x,)], [{}, {}], [None, None], return_outputs=False)
        found = [None if parameter.grad is None else parameter.grad.item() for parameter in parameters]
        assert found == [step * 120, 0, step * 80]


def test_torch_as_it_is() -> None:
    """It is asked once, without a change to whoever asks."""
    with torch.no_grad():
        assert isinstance(divides(), bool)
        assert not torch.is_grad_enabled()


@pytest.mark.usefixtures("asked_anew")
@pytest.mark.parametrize(("gradient", "expected"), [(12.0, True), (18.0, False), (None, False)])
def test_a_gradient_that_is_counted_twice(
    gradient: float | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 * 3 * 2 = 12; 6 more if the inner product is counted again."""

    def weights(parameters: Iterator[nn.Parameter], groups: list[Any]) -> None:
        (parameter,) = parameters
        assert groups == ["group"]
        parameter.grad = None if gradient is None else torch.tensor(gradient)

    monkeypatch.setattr(pipeline_gradients, "stage_backward_input", lambda *_: ((), ["group"]))
    monkeypatch.setattr(pipeline_gradients, "stage_backward_weight", weights)
    assert divides() is expected


@pytest.mark.usefixtures("asked_anew")
def test_options_that_are_taken_for_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    def inputs(_: Any, __: Any, came: list[Any], ___: Any) -> None:
        assert [tensor.requires_grad for tensor in came]

    monkeypatch.setattr(pipeline_gradients, "stage_backward_input", inputs)
    assert divides() is False
