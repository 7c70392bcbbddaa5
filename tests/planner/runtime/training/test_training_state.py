"""What is saved is under the model's names, and goes on with any plan."""

import io
from typing import Any

import pytest
import torch

from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from planner.runtime.start import train
from planner.runtime.training.any_trainer import AnyTrainer
from planner.runtime.training.options import TrainerOptions
from tests.planner.runtime.distributed.pipelines import Odd
from tests.planner.runtime.training.loops import OPTIMIZERS, SGD, Make, noisy, steps
from tests.planner.runtime.training.nets import (
    BATCH,
    Case,
    Tied,
    ids,
    main_loss,
    plan_for,
    program_of,
    samples,
    training_plan,
)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_go_on_with_another_plan(make: Make) -> None:
    program, _ = noisy()
    batches = [samples("skips", 4 * BATCH, seed) for seed in range(4)]

    def trainer_of(case: Case) -> AnyTrainer:
        return train(
            plan_for(program, case), program, loss=main_loss, optimizer=make, trainer_options=TrainerOptions(seed=5)
        )

    with trainer_of(Case("noisy", "1f1b", 4)) as straight:
        losses = [straight.step(*batch) for batch in batches]
        expected = straight.state_dict()
    with trainer_of(Case("noisy", "1f1b", 4, 3, 3)) as first:
        assert [first.step(*batch) for batch in batches[:2]] == losses[:2]
        file = io.BytesIO()
        torch.save(first.state_dict(), file)
    file.seek(0)
    with trainer_of(Case("noisy", "gpipe", 4, 1, 1)) as second:
        second.step(*batches[3])  # is forgotten
        second.load_state_dict(torch.load(file, weights_only=True))
        assert [second.step(*batch) for batch in batches[2:]] == losses[2:]
        got = second.state_dict()
    assert all(torch.equal(got["model"][name], tensor) for name, tensor in expected["model"].items())
    assert got["steps"] == 4
    for name, kept in expected["optimizer"]["state"].items():
        assert all(torch.equal(got["optimizer"]["state"][name][key], value) for key, value in kept.items())


def test_a_state_is_left_as_it_is_by_who_goes_on_from_it() -> None:
    """torch's optimizers go on in the tensors that they are given."""
    batch, case = samples("skips", 2 * BATCH, 0), Case("skips", "gpipe", 2)
    program = program_of("skips")
    with train(plan_for(program, case), program, loss=main_loss, optimizer=OPTIMIZERS["momentum"]) as trainer:
        trainer.step(*batch)
        saved = trainer.state_dict()
        losses = []
        for _ in range(2):
            trainer.load_state_dict(saved)
            losses.append([trainer.step(*batch).item() for _ in range(3)])
    assert losses[0] == losses[1]


def test_options_of_all_optimizers() -> None:
    batch, case = samples("skips", 2 * BATCH, 0), Case("skips", "gpipe", 2)
    program = program_of("skips")
    with train(plan_for(program, case), program, loss=main_loss, optimizer=SGD) as trainer:
        before = trainer.model_state_dict()
        wrong: list[dict[str, Any]] = [{"lr": 0.0, "rate": 1.0}, {"params": []}]
        for options in wrong:
            with pytest.raises(
                InputError, match=r"the optimizer SGD has no option '(rate|params)'; it has dampening, "
            ):
                trainer.change_options(**options)
        assert all(optimizer.param_groups[0]["lr"] > 0 for optimizer in trainer.optimizers)
        trainer.change_options(lr=0.0, momentum=0.5)
        trainer.step(*batch)
        assert all(torch.equal(before[name], tensor) for name, tensor in trainer.model_state_dict().items())
        assert {optimizer.param_groups[0]["momentum"] for optimizer in trainer.optimizers} == {0.5}


def test_the_state_has_the_models_names_and_loads_into_it() -> None:
    program = program_of("tied")
    state = steps(Case("tied", "gpipe", 2, 1, 1), SGD)[1]
    model = Tied().double()
    model.load_state_dict(state)
    assert torch.equal(model.scores.weight, state["words.weight"])
    assert state["scores.weight"] is state["words.weight"]
    assert not torch.equal(state["words.weight"], program.state["words.weight"])
    with torch.no_grad():
        assert model(ids(2)).shape == (2, 7)


def test_a_buffer_that_the_model_does_not_save() -> None:
    """Nor do we; it stays as it is."""
    torch.manual_seed(0)
    case = Case("odd", "1f1b", 2)
    program = program_from_module(Odd().double(), (samples("skips", BATCH)[0],), training=True)

    def trainer() -> AnyTrainer:
        return train(plan_for(program, case), program, loss=main_loss, optimizer=SGD)

    with trainer() as straight:
        straight.step(*samples("skips", 2 * BATCH, 0))
        saved = straight.state_dict()
        expected = straight.step(*samples("skips", 2 * BATCH, 1))
    assert saved["model"].keys() == program.module.state_dict().keys()
    assert "scale" not in saved["model"]
    with trainer() as other:
        other.load_state_dict(saved)
        assert torch.equal(other.step(*samples("skips", 2 * BATCH, 1)), expected)


def test_the_state_of_another_model_optimizer_seed_or_version() -> None:
    program = program_of("skips")
    plan = training_plan(Case("skips", "1f1b", 2))
    with train(plan, program, loss=main_loss, optimizer=SGD) as trainer:
        state = trainer.state_dict()
        weight = state["model"]["enter.weight"]
        others = {key: value for key, value in state["model"].items() if key != "enter.weight"}
        for odd, text in (
            ({"version": 2}, "the state has the version 2, this planner reads 1; train again"),
            ({"seed": 3}, "the state was saved with the seed 3; make the trainer with that seed"),
            ({"model": others}, "the state has no 'enter.weight', which the model 'skips' has"),
            (
                {"model": state["model"] | {"more": weight}},
                "the state has 'more', which the model 'skips' does not have",
            ),
            (
                {"model": others | {"enter.weight": weight.T}},
                "'enter.weight' is [4, 6] float64 in the state and [6, 4] float64 in the model; they must be the same",
            ),
            (
                {"optimizer": state["optimizer"] | {"kind": "Adam"}},
                "the state is of the optimizer Adam, this one is SGD; use the same",
            ),
            (
                {"optimizer": state["optimizer"] | {"options": {}}},
                "the optimizer's state has no parameter 'enter.weight'; it was saved for another model",
            ),
        ):
            with pytest.raises(InputError) as error:
                trainer.load_state_dict(state | odd)
            assert str(error.value) == text
        with pytest.raises(InputError, match="the state is none of a trainer; give what state_dict"):
            trainer.load_state_dict(state["model"])
        trainer.load_state_dict(state)
        trainer.step(*samples("skips", 2 * BATCH))
