"""Losses that leave out targets, or count some for more: all of a batch count alike, however it is divided."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # its usual name

from costmodels.host.affinity import run_on
from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from planner.runtime.start import train
from planner.runtime.training.options import TrainerOptions
from planner.runtime.training.step import Loss
from tests.planner.runtime.small import cpu
from tests.planner.runtime.training.loops import SGD
from tests.planner.runtime.training.nets import Case, numbers, plan_for, program_of, samples

pytestmark = pytest.mark.attack("answer")

CASE = Case("skips", micro_batches=4)
WEIGHT = torch.tensor([0.2, 3.0, 0.7], dtype=torch.float64)

LOSSES: dict[str, Loss] = {
    "ignored": F.cross_entropy,
    "another number": lambda y, t: F.cross_entropy(y, t.clamp(min=0), ignore_index=0),
    "a module": nn.CrossEntropyLoss(ignore_index=-100),
    "weighed": lambda y, t: F.cross_entropy(y, t, WEIGHT),
    "weighed by place": lambda y, t: F.cross_entropy(y, t, WEIGHT, None, -100, None, "mean"),
    "smoothed": lambda y, t: F.cross_entropy(y, t, label_smoothing=0.1),
    "likelihood": lambda y, t: F.nll_loss(y.log_softmax(1), t),
    "as it was": lambda y, t: F.nll_loss(y.log_softmax(1), t, size_average=True),
    "an operator": lambda y, t: torch.ops.aten.nll_loss_nd.default(y.log_softmax(1), t),
    "of some rows": lambda y, t: F.cross_entropy(y[t >= 0], t[t >= 0]),
    "a picture": lambda y, t: F.cross_entropy(y[:, :, None, None], t[:, None, None]),
}


def data(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Eight samples, of which the second micro-batch of two has no target, and others have one or two."""
    batch, target = samples("skips", 8, seed)
    target[[0, 2, 3, 6]] = -100
    return batch, target


def whole(program: Program, loss: Loss, steps: int, largest: float = 0.0) -> tuple[list[float], dict[str, Any]]:
    """The reference model with the whole batch."""
    model = copy.deepcopy(program.module)
    losses = []

    def work() -> None:
        optimizer = SGD(model.parameters())
        with torch.enable_grad():
            for seed in range(steps):
                batch, target = data(seed)
                value = loss(model(batch), target)
                value.backward()  # type: ignore[no-untyped-call]  # torch has no types here
                losses.append(value.item())
                if largest:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), largest)
                optimizer.step()
                optimizer.zero_grad()

    run_on(cpu("reference"), work)
    return losses, model.state_dict()


def divided(
    program: Program, loss: Loss, steps: int, case: Case = CASE, trainer_options: TrainerOptions | None = None
) -> tuple[list[float], dict[str, Any]]:
    with train(plan_for(program, case), program, loss=loss, optimizer=SGD, trainer_options=trainer_options) as trainer:
        return [trainer.step(*data(seed)).item() for seed in range(steps)], trainer.model_state_dict()


def assert_the_same(found: tuple[list[float], Any], expected: tuple[list[float], Any]) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    torch.testing.assert_close(dict(found[1]), dict(expected[1]), rtol=1e-10, atol=1e-13)


@pytest.mark.filterwarnings("ignore:size_average and reduce args")
@pytest.mark.parametrize("name", LOSSES)
def test_as_the_whole_batch(name: str) -> None:
    program = program_of("skips")
    assert_the_same(divided(program, LOSSES[name], 2), whole(program, LOSSES[name], 2))


@pytest.mark.parametrize(
    "case",
    [
        replace(CASE, schedule="zb-h1"),
        replace(CASE, recompute="full"),
        replace(CASE, devices=3, stages=3, schedule="gpipe"),
        replace(CASE, devices=1, stages=1),
    ],
    ids=str,
)
def test_on_every_schedule(case: Case) -> None:
    program = program_of("skips")
    found = divided(program, F.cross_entropy, 2, case, TrainerOptions(clip_norm=0.02))
    assert_the_same(found, whole(program, F.cross_entropy, 2, 0.02))


def test_steps_that_are_added_up_count_by_their_targets() -> None:
    """Two steps of two micro-batches have the gradient of one batch; the losses are those of each half."""
    program = program_of("skips")
    batch, target = data()
    case = replace(CASE, micro_batches=2)
    trainer_options = TrainerOptions(accumulate=2)
    with train(
        plan_for(program, case), program, loss=F.cross_entropy, optimizer=SGD, trainer_options=trainer_options
    ) as trainer:
        losses = [trainer.step(batch[part], target[part]).item() for part in (slice(4), slice(4, 8))]
        found = trainer.model_state_dict()
    expected, state = whole(program, F.cross_entropy, 1)
    assert (losses[0] * 1 + losses[1] * 3) / 4 == pytest.approx(expected[0], rel=1e-12)
    assert_the_same((expected, found), (expected, state))


def test_float16_is_scaled_all_the_same() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    program = program_from_module(model, (torch.ones(2, 4),), training=True)
    batch, target = data()
    trainer_options = TrainerOptions(autocast=torch.float16)
    with train(
        plan_for(program, CASE), program, loss=F.cross_entropy, optimizer=SGD, trainer_options=trainer_options
    ) as trainer:
        loss = trainer.step(batch.float(), target).item()
        found = trainer.model_state_dict()
    with torch.enable_grad():
        expected = F.cross_entropy(model(batch.float()), target)
        expected.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        SGD(model.parameters()).step()
    assert loss == pytest.approx(expected.item(), rel=1e-2)
    torch.testing.assert_close(dict(found), dict(model.state_dict()), rtol=1e-2, atol=1e-3)


def test_a_batch_without_targets_changes_nothing() -> None:
    program = program_of("skips")
    batch, target = data()
    before = program.module.state_dict()
    with train(plan_for(program, CASE), program, loss=F.cross_entropy, optimizer=SGD) as trainer:
        assert math.isnan(trainer.step(batch, torch.full_like(target, -100)).item())  # as that of the reference model
        after = trainer.model_state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


class Scored(nn.Module):
    """A model that returns its loss, as those for text do; with a term for its weights where asked for."""

    def __init__(self, beside: float = 0.0) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(4, 6), nn.Linear(6, 3)
        self.beside = beside

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.leave(torch.tanh(self.enter(x)))
        loss = F.cross_entropy(scores, labels)
        return {"loss": loss + self.beside * scores.square().mean() if self.beside else loss, "scores": scores}


def its_loss(result: Any, _target: Any) -> torch.Tensor:
    loss: torch.Tensor = result["loss"]
    return loss


@cache
def scored(beside: float = 0.0) -> Program:
    torch.manual_seed(0)
    return program_from_module(Scored(beside).double(), (numbers(2), torch.tensor([0, 1])), training=True)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_model_that_returns_its_loss(schedule: str) -> None:
    program = scored()
    model = copy.deepcopy(program.module)
    case = replace(CASE, schedule=schedule)
    with train(plan_for(program, case), program, loss=its_loss, optimizer=SGD) as trainer:
        loss = trainer.step(data()).item()
        found = trainer.model_state_dict()

    def work() -> float:
        with torch.enable_grad():
            value: torch.Tensor = model(*data())["loss"]
            value.backward()  # type: ignore[no-untyped-call]  # torch has no types here
            SGD(model.parameters()).step()
            return value.item()

    expected = run_on(cpu("reference"), work)
    assert_the_same(([loss], found), ([expected], model.state_dict()))


UNEVEN = "a term of the loss is a mean over the targets that count, and these are not as many in each micro-batch"
MIXED: dict[str, Callable[[Any, Any], torch.Tensor]] = {
    "times a number": lambda y, t: 2 * F.cross_entropy(y, t),
    "in place": lambda y, t: F.cross_entropy(y, t).mul_(2),
    "two terms": lambda y, t: F.cross_entropy(y, t) + 0.1 * y.square().mean(),
    "two means": lambda y, t: F.cross_entropy(y, t) + F.nll_loss(y.log_softmax(1), t.clamp(min=0), ignore_index=0),
}


@pytest.mark.parametrize("name", MIXED)
def test_a_loss_of_several_terms_is_refused_where_they_count_otherwise(name: str) -> None:
    program = program_of("skips")
    batch, target = data()
    with train(plan_for(program, CASE), program, loss=MIXED[name], optimizer=SGD) as trainer:
        before = trainer.model_state_dict()
        with pytest.raises(InputError, match=f"^{UNEVEN} "):
            trainer.step(batch, target)
        after = trainer.model_state_dict()
        assert all(torch.equal(after[key], tensor) for key, tensor in before.items())
        if name != "two means":
            trainer.step(batch, target.clamp(min=0))  # all count
            trainer.step(batch, target.clamp(min=1).where(torch.arange(8) % 2 > 0, -100))  # half of each micro-batch


def test_a_term_within_the_model_is_noticed_too() -> None:
    program = scored(0.1)
    for stages in (1, 2, 3):
        case = replace(CASE, devices=stages, stages=stages)
        with train(plan_for(program, case), program, loss=its_loss, optimizer=SGD) as trainer:
            with pytest.raises(InputError, match=f"^{UNEVEN} "):
                trainer.step(data())
            trainer.step((data()[0], data()[1].clamp(min=0)))


def test_one_micro_batch_may_count_as_it_likes() -> None:
    case = replace(CASE, micro_batches=1)
    batch, target = data()
    with train(plan_for(program_of("skips"), case), program_of("skips"), loss=MIXED["two terms"], optimizer=SGD) as one:
        for part in (slice(2), slice(4, 6)):
            assert one.step(batch[part], target[part]).isfinite()
