"""float16: the scale of the loss beside `torch.amp.GradScaler`, which the reference model's user has."""

import copy
import io
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812  # its usual name

from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from planner.runtime.start import train
from planner.runtime.training.any_trainer import AnyTrainer
from planner.runtime.training.options import SMALLEST, WIDEST, Scale, Scaling, TrainerOptions
from tests.planner.runtime.training.loops import OPTIMIZERS, SGD, Make
from tests.planner.runtime.training.nets import BATCH, Case, plan_for, program_of, samples, training_plan

HIGH = Scaling(initial=2.0**24, interval=3)  # overflows at first, and grows soon


def scaler_of(rule: Scaling) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", rule.initial, rule.growth, rule.backoff, rule.interval)


@given(st.lists(st.booleans(), max_size=20), st.integers(1, 4), st.sampled_from([2.0**16, 2.0**126, 1.0]))
def test_the_scale_is_that_of_torch(finite: list[bool], interval: int, initial: float) -> None:
    rule = Scaling(initial=initial, interval=interval)
    scale, scaler = Scale(rule, rule.initial), scaler_of(rule)
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight])
    for each in finite:
        scaler.scale(weight)
        weight.grad = torch.tensor([1.0 if each else float("inf")])
        scaler.step(optimizer)
        scaler.update()
        scale = scale.after(each)
        assert scale.value == scaler.get_scale()
        assert scale.state_dict() == scaler.state_dict()


def test_the_scale_stays_a_number() -> None:
    assert Scale(Scaling(interval=1), WIDEST).after(True).value == WIDEST
    assert Scale(Scaling(), SMALLEST).after(False).value == SMALLEST


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"initial": 0.0}, "the initial scale is 0.0; it must be a number above 0"),
        ({"initial": float("inf")}, "the initial scale is inf; it must be a number above 0"),
        ({"growth": 1.0}, "the growth of the scale is 1.0; it must be a number above 1"),
        ({"backoff": 1.0}, "the backoff of the scale is 1.0; it must be between 0 and 1"),
        ({"interval": 0}, "the interval of the scale is 0; it must be 1 or more"),
    ],
)
def test_scalings_that_cannot_be_followed(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError) as error:
        Scaling(**fields)
    assert str(error.value) == text


def reference(
    make: Make, count: int, trainer_options: TrainerOptions
) -> tuple[list[float], dict[str, Any], torch.amp.GradScaler]:
    """What a user writes: losses, state and the scaler behind some steps of two micro-batches."""
    model = copy.deepcopy(program_of("skips32").module)
    parameters = list(model.parameters())
    optimizer, scaler, losses = make(parameters), scaler_of(trainer_options.scaling), []
    for number in range(count):
        found = []
        x, y = samples("skips32", 2 * BATCH, number)
        for a, b in zip(x.chunk(2), y.chunk(2), strict=True):
            with torch.autocast("cpu", torch.float16):
                found.append(F.cross_entropy(model(a), b))
            scaler.scale(found[-1] / (2 * trainer_options.accumulate)).backward()  # type: ignore[no-untyped-call]
        losses.append(torch.stack(found).mean().item())
        if (number + 1) % trainer_options.accumulate == 0:
            if trainer_options.clip_norm is not None:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(parameters, trainer_options.clip_norm)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return losses, model.state_dict(), scaler


def trainer_of(case: Case, make: Make, trainer_options: TrainerOptions) -> AnyTrainer:
    return train(
        training_plan(case),
        program_of("skips32"),
        loss=F.cross_entropy,
        optimizer=make,
        trainer_options=trainer_options,
    )


@pytest.mark.parametrize("more", [{}, {"accumulate": 2}, {"clip_norm": 0.1}, {"recompute": "full"}], ids=str)
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_steps_are_those_of_eager_with_a_scaler(make: Make, more: dict[str, Any]) -> None:
    trainer_options = TrainerOptions(autocast=torch.float16, scaling=HIGH, **more)
    losses, state, scaler = reference(make, 12, trainer_options)
    assert scaler.get_scale() < HIGH.initial  # some steps were left out
    with trainer_of(Case("skips32", "1f1b", 2), make, trainer_options) as trainer:
        found = [trainer.step(*samples("skips32", 2 * BATCH, number)).item() for number in range(12)]
        assert found == pytest.approx(losses, rel=1e-3)
        assert trainer.state_dict()["scaling"] == scaler.state_dict()
        for name, tensor in trainer.model_state_dict().items():
            assert tensor.dtype == torch.float32
            torch.testing.assert_close(tensor, state[name], rtol=1e-2, atol=1e-3)


def test_no_device_takes_a_step_that_another_leaves_out() -> None:
    """The gradients of the first layers overflow first: they are products of more factors."""
    make = OPTIMIZERS["adam"]
    with trainer_of(Case("skips32", "1f1b", 2), make, TrainerOptions(autocast=torch.float16, scaling=HIGH)) as trainer:
        before = trainer.model_state_dict()
        trainer.step(*samples("skips32", 2 * BATCH))
        assert trainer.state_dict()["scaling"]["scale"] == HIGH.initial / 2
        assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.model_state_dict().items())
        assert trainer.state_dict()["optimizer"]["state"] == {}


def test_go_on_with_the_scale_that_was() -> None:
    trainer_options = TrainerOptions(autocast=torch.float16, scaling=HIGH)
    case = Case("skips32", "1f1b", 2)
    with trainer_of(case, SGD, trainer_options) as trainer:
        for number in range(8):
            trainer.step(*samples("skips32", 2 * BATCH, number))
        file = io.BytesIO()
        torch.save(trainer.state_dict(), file)
        trainer.step(*samples("skips32", 2 * BATCH, 8))
        expected = trainer.state_dict()
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    with trainer_of(Case("skips32", "gpipe", 2, 3, 3), SGD, TrainerOptions(autocast=torch.float16)) as other:
        other.load_state_dict(saved)
        assert other.state_dict()["scaling"] == saved["scaling"]
        other.step(*samples("skips32", 2 * BATCH, 8))
        got = other.state_dict()
        assert got["scaling"] == expected["scaling"]
        assert all(torch.equal(got["model"][name], tensor) for name, tensor in expected["model"].items())
        other.load_state_dict(saved | {"scaling": None})  # saved by a trainer without a scale
        assert other.state_dict()["scaling"]["scale"] == 2.0**16
    with trainer_of(case, SGD, TrainerOptions()) as plain:
        plain.load_state_dict(saved)
        assert plain.state_dict()["scaling"] is None


def test_parameters_of_float16() -> None:
    program = program_from_module(torch.nn.Linear(4, 3).half(), (torch.rand(BATCH, 4).half(),))
    with pytest.raises(InputError) as error:
        train(
            plan_for(program, Case("half", devices=1, stages=1)), program,
            loss=F.cross_entropy, optimizer=SGD, trainer_options=TrainerOptions(autocast=torch.float16),
        )  # fmt: skip
    assert str(error.value) == (
        "parameter 'weight' is of float16; mixed precision keeps parameters in float32 and computes in float16: "
        "give the model in float32"
    )
