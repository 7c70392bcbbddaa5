"""Checking and measuring a trained plan beside the reference model."""

from typing import Any

import pytest
import torch
from torch import nn

from costmodels.memory.optimizers import OPTIMIZERS
from graphs.importers.from_torch import program_from_module
from planner.problem.result import Interrupted
from planner.runtime.benchmark.measure import measure_steps
from planner.runtime.start import train
from planner.runtime.training.check import (
    TINY_STEPS,
    GradientDifference,
    ReferenceTraining,
    differing_gradients,
    example_batches,
    mean_square,
)
from planner.runtime.training.step import MicroBatch
from tests.planner.runtime.small import cpu
from tests.planner.runtime.training.nets import (
    BATCH,
    NETWORKS,
    Case,
    main_loss,
    numbers,
    plan_for,
    program_of,
    samples,
    training_plan,
)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def test_the_loss_of_any_network() -> None:
    result = {"a": torch.tensor([1.0, 2.0]), "b": [torch.tensor(4.0)], "c": torch.tensor([7]), "d": None}
    assert mean_square(result, None).item() == (1 + 4 + 16) / 3


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_that_are_the_same(name: str) -> None:
    program = program_of(name)
    one = 1 if name == "tied" else 2
    plan = training_plan(Case(name, "1f1b", 3, one, one))
    with train(plan, program, loss=mean_square, optimizer=sgd) as trainer:
        assert differing_gradients(trainer, mean_square, example_batches(program, 3)) == []


def test_gradients_of_a_network_with_dropout() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    program = program_from_module(model.double(), (numbers(BATCH),), training=True)
    plan = plan_for(program, Case("dropped", "1f1b", 4))
    with train(plan, program, loss=mean_square, optimizer=sgd) as trainer:
        assert differing_gradients(trainer, mean_square, example_batches(program, 4)) == []


def test_gradients_that_differ_are_named_the_worst_first() -> None:
    program = program_of("skips")
    plan = training_plan(Case("skips", "1f1b", 1))
    calls = []

    def moody(result: Any, target: Any) -> torch.Tensor:
        calls.append(1)
        return mean_square(result, target) * (1.0 if len(calls) == 1 else 1.5)

    with train(plan, program, loss=moody, optimizer=sgd) as trainer:
        found = differing_gradients(trainer, moody, example_batches(program, 1))
    assert len(found) == 12
    assert [one.share for one in found] == sorted((one.share for one in found), reverse=True)
    assert found[0].share == pytest.approx(1 / 3)
    assert str(GradientDifference("w", 0.25, 1e-6)) == (
        "the gradient of 'w' differs by 0.25 of its norm, 1e-06 is allowed"
    )


def test_the_unsplit_model_is_a_copy_in_the_mode_in_which_it_was_imported() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).double().eval()
    x, y = samples("skips", BATCH)
    batches = [MicroBatch({"input": x}, y)]
    for training in (False, True):
        program = program_from_module(model, (x,), training=training)
        reference = ReferenceTraining(program, cpu("one"), main_loss, sgd)
        before = reference.gradients(batches)
        assert before.keys() == {"0.weight", "0.bias", "1.weight", "1.bias"}
        assert reference.step(batches) > 0
        own = reference._model.state_dict()
        assert (int(own["0.num_batches_tracked"]) == 2) == training
        assert not torch.equal(own["1.bias"], model.state_dict()["1.bias"])
        assert {parameter.grad for parameter in reference._model.parameters()} == {None}
    assert not model.training
    assert model.state_dict()["0.num_batches_tracked"] == 0


def test_there_is_an_optimizer_for_every_name() -> None:
    assert TINY_STEPS.keys() == OPTIMIZERS.keys()
    for make in TINY_STEPS.values():
        assert make([torch.zeros(1, requires_grad=True)]).param_groups[0]["lr"] > 0


def test_contenders_take_turns() -> None:
    calls: list[str] = []
    seconds = {"a": iter([9.0, 1.0, 2.0, 3.0]), "b": iter([9.0, 2.0, 2.0, 12.0])}

    def contender(name: str) -> float:
        calls.append(name)
        return next(seconds[name])

    heard: list[tuple[str, int, int]] = []
    times = measure_steps(
        {"a": lambda: contender("a"), "b": lambda: contender("b")}, 3, lambda *step: heard.append(step)
    )
    assert "".join(calls) == "abababab"  # the first turn does not count
    assert [each.periods_s for each in times.contenders] == [(1.0, 2.0, 3.0), (2.0, 2.0, 12.0)]
    assert (times["a"].latency_s, times.speedup("a", "b")) == (2.0, 2.0)
    assert heard[0] == ("training a", 1, 6)
    assert times.foreign_cores >= 0


@pytest.mark.attack("process")
def test_ctrl_c_keeps_the_rounds_until_then() -> None:
    def stop(_name: str, done: int, _total: int) -> None:
        if done == 3:  # the second contender has not had its second turn
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as stopped:
        measure_steps({"a": lambda: 1.0, "b": lambda: 2.0}, 9, stop)
    assert {each.name: each.periods_s for each in stopped.value.best.contenders} == {"a": (1.0,), "b": (2.0,)}


def test_a_trainer_is_a_contender() -> None:
    program = program_of("skips")
    with train(training_plan(Case("skips", "1f1b", 2)), program, loss=mean_square, optimizer=sgd) as trainer:
        before = trainer.model_state_dict()
        assert trainer.pids == ()
        assert {span.label for span in trainer.recorded(example_batches(program, 2)).spans} >= {"0F0", "0B1"}
        assert trainer.step_s(example_batches(program, 2)) > 0
        assert not torch.equal(trainer.model_state_dict()["leave.bias"], before["leave.bias"])
