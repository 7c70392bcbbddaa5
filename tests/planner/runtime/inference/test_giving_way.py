"""Kernels that fail on purpose: when they are built, when they pack, in their first call, for a shape, in pairs."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # its usual name

from costmodels.calibrate import pace
from costmodels.calibrate.ops import MeasurementEffort, profile_contended
from costmodels.cluster.cluster import Cluster
from graphs.common import errors
from graphs.common.errors import FallbackWarning
from graphs.importers.from_torch import program_from_module
from graphs.ir import Op
from graphs.kernels.kernel import Kernel, by_pytorch
from graphs.kernels.multiply import Multiply
from graphs.kernels.norms import Norm
from graphs.program.program import Program
from graphs.program.rewritten import rewritten_program
from graphs.rewrites.fuse import find_fusions
from planner.plans.plan import Plan
from planner.runtime.errors import StageError
from planner.runtime.inference.runner import Runner
from simulator.placement import Placement
from tests.costmodels.parts import table_with
from tests.planner.runtime.small import desk, make_plan

X = torch.linspace(-1, 1, 16 * 28 * 28).sin().reshape(1, 16, 28, 28)
REASON = r"the kernel of .* fails here \(ValueError: on purpose\); PyTorch's operators compute it instead"


class Residual(nn.Module):
    """Convolutions with a shortcut and an activation, a norm, and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.first(x) + x)
        y = F.gelu(self.second(y))
        return torch.softmax(self.head(y.mean((2, 3)).view(1, 16)), -1)


def raises(*_: object, **__: object) -> Any:
    raise ValueError("on purpose\nand more of it")


def refuses_images(call: Callable[..., Any]) -> Callable[..., Any]:
    """What a kernel does that cannot compute images."""

    def run(self: Multiply, x: torch.Tensor, *others: Any, **more: Any) -> Any:
        return raises() if x.dim() == 4 else call(self, x, *others, **more)

    return run


FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "in building": ("graphs.kernels.kernels.quick_kernel", raises),
    "in packing": ("graphs.kernels.multiply.Multiply.pack", raises),
    "in the first call": ("graphs.kernels.multiply.Multiply.__call__", raises),
    "of some shape": ("graphs.kernels.multiply.Multiply.__call__", refuses_images(Multiply.__call__)),
}


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(errors, "_warned_of", {})
    yield
    pace._works.cache_clear()


@pytest.fixture
def program() -> Program:
    torch.manual_seed(0)
    whole = program_from_module(Residual().eval(), (X,))
    return rewritten_program(whole, (find_fusions(whole.graph),))


def quick(n_devices: int, cores: int = 1) -> Cluster:
    cluster = desk(n_devices)
    own = tuple(range(cores)) if cores > 1 else cluster.devices[0].cores
    return replace(cluster, devices=tuple(replace(each, kernels="quick", cores=own) for each in cluster.devices))


def answers(plan: Plan, program: Program, pairs: bool = False) -> list[torch.Tensor]:
    (x,) = program.example_inputs
    with Runner(plan, program) as runner:
        assert runner.in_pairs is pairs
        return [runner(x), *runner.stream([(x,)] * 5)]


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_goes_on_with_the_operators_of_pytorch(
    fault: str, cores: int, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*FAULTS[fault])
    plan = make_plan(program, Placement((0,) * len(program.graph.ops)), quick(1, cores))
    with pytest.warns(FallbackWarning, match=REASON) as said:
        found = answers(plan, program)
    assert len(said) == 1  # however many operators fail for this reason
    torch.testing.assert_close(found, [program.module(X)] * len(found))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_of_parts_and_of_copies_goes_on(fault: str, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*FAULTS[fault])
    n = len(program.graph.ops)
    for placement in (Placement((0, *[1] * (n - 1))), Placement((0,) * n, others=(Placement((1,) * n),))):
        monkeypatch.setattr(errors, "_warned_of", {})
        with pytest.warns(FallbackWarning):
            found = answers(make_plan(program, placement, quick(2)), program)
        torch.testing.assert_close(found, [program.module(X)] * len(found))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_calibration_goes_on(fault: str, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*FAULTS[fault])
    pace._works.cache_clear()
    with pytest.warns(FallbackWarning):
        profile = profile_contended(program, quick(2).devices, MeasurementEffort(passes=2, least_s=0.0, most_s=0.1))
    assert len(profile.ops) == len(program.graph.ops)
    assert len(profile.copies[2]) == len(program.graph.ops)


def test_two_micro_batches_at_once_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphs.kernels.products.PAIR_BYTES", 0)  # small weights are enough
    monkeypatch.setattr("graphs.kernels.products.row_products", raises)
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 40)[None]
    program = program_from_module(nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 3)).eval(), (x,))
    n = len(program.graph.ops)
    plan = make_plan(program, Placement((0,) * n, others=(Placement((1,) * n),)), quick(2), in_flight=4)
    faster = table_with(plan.table, copies_slowdown=np.full((n, 2), -0.4), contention_group=np.zeros(2, int))
    with pytest.warns(FallbackWarning, match=REASON):
        found = answers(replace(plan, table=faster), program, pairs=True)
    torch.testing.assert_close(found, [program.module(x)] * len(found))


def test_random_numbers_are_those_of_a_run_without_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x + torch.rand_like(x), -1) + torch.rand_like(x)

    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    program = program_from_module(Noisy().eval(), (x,))
    plan = make_plan(program, Placement((0,) * len(program.graph.ops)), quick(1))
    with Runner(plan, program, seed=7) as runner:
        expected = [runner(x), runner(x)]
    monkeypatch.setattr(Norm, "__call__", raises)
    with Runner(plan, program, seed=7) as runner:
        with pytest.warns(FallbackWarning, match="softmax"):
            first = runner(x)
        found = [first, runner(x)]
    torch.testing.assert_close(found, expected)


def test_what_pytorch_refuses_too_is_an_error_without_a_warning(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(program: Program, op: Op) -> Kernel:
        return replace(by_pytorch(program, op), target=lambda *_: torch.zeros(2).view(3))

    monkeypatch.setattr("graphs.kernels.multiply.Multiply.__call__", raises)
    monkeypatch.setattr("graphs.kernels.giving_way.by_pytorch", refused)
    plan = make_plan(program, Placement((0,) * len(program.graph.ops)), quick(1))
    with Runner(plan, program) as runner, pytest.raises(StageError, match=r"shape '\[3\]' is invalid"):
        runner(X)
