"""Plans, models and arguments that do not fit are refused before anything runs."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from costmodels.cluster.cluster import Device
from costmodels.host.affinity import run_on
from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from planner.runtime.inference.runner import Runner
from planner.runtime.start import start
from simulator.placement import Placement
from tests.planner.runtime.bits import differences
from tests.planner.runtime.small import (
    CORE,
    Tied,
    alternating,
    cpu,
    device_threads,
    divided,
    fresh_arguments,
    make_plan,
    program_of,
    reference,
    with_device,
)


class Leaky(nn.Module):
    """An operator with an attribute."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope = slope

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.leaky_relu(x, self.slope)


@pytest.mark.parametrize(
    ("models", "widths", "where"),
    [
        (
            (nn.Linear(3, 3), nn.Linear(3, 4)),
            (3, 3),
            "tensor 'weight' [3, 3] float32 of the plan meets 'weight' [4, 3] float32",
        ),
        (
            (Leaky(0.1), Leaky(0.1)),
            (2, 4),
            "tensor 'x' [2] float32 of the plan meets 'x' [4] float32",
        ),
        (
            (Leaky(0.1), Leaky(0.2)),
            (2, 2),
            "operator 'leaky_relu' (aten.leaky_relu.default) of the plan has another kind, input, attribute or module "
            "there",
        ),
    ],
)
def test_a_plan_for_another_model(models: tuple[nn.Module, nn.Module], widths: tuple[int, int], where: str) -> None:
    pairs = zip(models, widths, ("one", "other"), strict=True)
    planned, given = (program_from_module(model, (torch.ones(width),), name=name) for model, width, name in pairs)
    with pytest.raises(InputError) as error:
        Runner(make_plan(planned, alternating(planned)), given)
    assert str(error.value) == (
        f"the plan is for '{planned.graph.name}' ({planned.graph.fingerprint}), the model is '{given.graph.name}' "
        f"({given.graph.fingerprint}): {where}; plan for this model and batch"
    )
    assert device_threads() == []


def test_a_plan_for_a_part_of_the_model() -> None:
    class Twice(nn.Module):
        def __init__(self, more: bool) -> None:
            super().__init__()
            self.more = more

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.relu()
            return y.exp() if self.more else y

    part, whole = (program_from_module(Twice(more), (torch.ones(2),)) for more in (False, True))
    with pytest.raises(InputError, match=r"the plan has 1 operators, the model 2, or their inputs or outputs differ"):
        Runner(make_plan(part, Placement((0,))), whole)


@pytest.mark.parametrize(
    ("device", "text"),
    [
        (
            cpu("cpu1", cores=()),
            "device 'cpu1' has neither cores nor cuda in cluster.toml; it can be planned ",
        ),
        (cpu("cpu1", cores=(CORE + 4096,)), f"device 'cpu1' is bound to core {CORE + 4096}, which this process "),
        (replace(cpu("cpu1", cores=()), cuda=99), "device 'cpu1' is GPU 99, this host has "),
    ],
)
def test_a_device_that_is_not_here(device: Device, text: str) -> None:
    program = program_of("tied")
    plan = with_device(make_plan(program, Placement((0, 1, 0, 1))), 1, device)
    with pytest.raises(InputError) as error:
        Runner(plan, program)
    assert str(error.value).startswith(text)
    assert device_threads() == []


def test_a_device_that_is_not_used_may_be_anywhere() -> None:
    program = program_of("tied")
    plan = with_device(make_plan(program, Placement((0, 2, 0, 2))), 1, cpu("cpu1", cores=()))
    with Runner(plan, program) as runner:
        assert differences(reference(program, fresh_arguments("tied", 0)), runner(*fresh_arguments("tied", 0)[0])) == []
        assert runner.owned("cpu1") == {}


def test_weights_without_values_leave_no_thread() -> None:
    with torch.device("meta"):
        program = program_from_module(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), (torch.ones(1, 2),))
    with pytest.raises(InputError, match=r"'0\.weight' has a shape but no values"):
        Runner(make_plan(program, Placement((0, 1))), program)
    assert device_threads() == []


@pytest.mark.parametrize("inputs", [None, (torch.full((1, 5), 3),)])
def test_start_takes_the_module_itself(inputs: tuple[Any, ...] | None) -> None:
    torch.manual_seed(1)
    model = Tied().eval()
    program = program_from_module(model, (torch.zeros(1, 5, dtype=torch.int64),))
    ids = torch.tensor([[0, 1, 2, 3, 5]])
    with start(make_plan(program, alternating(program)), model, inputs) as runner:
        assert torch.equal(runner(ids), run_on(cpu("reference"), lambda: model(ids)))
        assert runner.program.graph.name == "Tied"
    with start(make_plan(program, alternating(program)), program) as runner:
        assert runner.program is program


def test_start_without_arguments_at_all() -> None:
    class Constant(nn.Module):
        def forward(self) -> torch.Tensor:
            return torch.arange(3) + 1

    model = Constant()
    program = program_from_module(model, ())
    with start(make_plan(program, alternating(program)), model) as runner:
        assert runner().tolist() == [1, 2, 3]


def test_a_model_in_training_mode_runs_as_it_was_planned_and_stays_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    x = torch.ones(2, 3)
    program = program_from_module(model, (x,))
    with start(make_plan(program, Placement((0, 1))), model, (x,)) as runner:
        assert torch.equal(runner(x), run_on(cpu("reference"), lambda: model[0](x)))
    assert model.training


# Calling it with something else


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        (
            (torch.ones(1, 3, 4, 4),),
            {},
            "input 'x' is [1, 3, 4, 4] float32, the model was imported for [2, 3, 4, 4] float32; "
            "plan again for this input",
        ),
        (
            (torch.ones(2, 3, 4, 4).half(),),
            {},
            "input 'x' is [2, 3, 4, 4] float16, the model was imported for [2, 3, 4, 4] float32; "
            "plan again for this input",
        ),
        ((3,), {}, "input 'x' is a int; pass a tensor [2, 3, 4, 4] float32"),
        ((), {}, "the model was imported with arguments of the form "),
        ((torch.ones(1), torch.ones(1)), {}, "the model was imported with arguments of the form "),
        ((), {"y": torch.ones(2, 3, 4, 4)}, "the model was imported with arguments of the form "),
    ],
)
def test_arguments_of_another_form(args: tuple[Any, ...], kwargs: dict[str, Any], text: str) -> None:
    (x,), _ = fresh_arguments("branches", 0)
    with divided("branches", in_flight=1) as runner:
        for _ in range(3):  # none of them takes the one place there is
            with pytest.raises(InputError) as error:
                runner(*args, **kwargs)
            assert str(error.value).startswith(text)
        runner(x)


def test_a_constant_argument_that_differs() -> None:
    (x, _, mask), kwargs = fresh_arguments("options", 0)
    with divided("options") as runner, pytest.raises(InputError) as error:
        runner(x, 3, mask, **kwargs)
    assert str(error.value) == "the model was imported with the argument 2, called with 3; plan again"
