"""Losses of micro-batches are those of the whole batch, or are refused: never another number without a word."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # its usual name

from costmodels.workload import RecomputeMode
from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from planner.runtime.start import train
from planner.runtime.training.options import TrainerOptions
from planner.runtime.training.step import Loss
from tests.planner.runtime.training.loops import SGD
from tests.planner.runtime.training.nets import BATCH, Case, plan_for, program_of, samples

pytestmark = pytest.mark.attack("answer")

CASE = Case("skips", micro_batches=4)
WEIGHT = torch.tensor([0.2, 3.0, 0.7], dtype=torch.float64)
NO_MEAN = "so it is no plain mean over samples"


def whole(loss: Loss, batch: torch.Tensor, target: Any) -> tuple[float, dict[str, torch.Tensor]]:
    """One step of the model itself with the whole batch."""
    model = copy.deepcopy(program_of("skips").module)
    with torch.enable_grad():
        value = loss(model(batch), target)
        value.backward()  # type: ignore[no-untyped-call]  # torch has no types here
    SGD(model.parameters()).step()
    return value.item(), model.state_dict()


def step(loss: Loss, batch: torch.Tensor, target: Any, case: Case = CASE, **options: Any) -> tuple[float, Any]:
    program = program_of("skips")
    trainer_options = TrainerOptions(**options)
    with train(plan_for(program, case), program, loss=loss, optimizer=SGD, trainer_options=trainer_options) as trainer:
        return trainer.step(batch, target).item(), trainer.model_state_dict()


def uneven() -> tuple[torch.Tensor, torch.Tensor]:
    """Eight samples; the first micro-batch of two has no target, the second has one."""
    batch, target = samples("skips", 8)
    target[:3] = -100
    return batch, target


def by_hand(y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    counts = t >= 0
    return (F.cross_entropy(y, t.clamp(0), reduction="none") * counts).sum() / counts.sum().clamp(1)


def penalised(y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(y, t.clamp(0)) + 0.01 * PENALTY.square().sum()


def weighed(y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    weights = WEIGHT[t.clamp(0)] * (t >= 0)
    return (F.cross_entropy(y, t.clamp(0), reduction="none") * weights).sum().div(weights.sum())


PENALTY = torch.tensor([1.0, 2.0], dtype=torch.float64)

MEANS: dict[str, Loss] = {
    "over a mask": by_hand,
    "with a penalty": penalised,
    "of a divergence": lambda y, t: F.kl_div(
        y.log_softmax(1), F.one_hot(t.clamp(0), 3).double(), reduction="batchmean"
    ),
    "of samples that count for more": lambda y, t: (
        F.cross_entropy(y, t.clamp(0), reduction="none") * (t + 101)
    ).mean(),
    "of squares": lambda y, t: (y - t[:, None].clamp(0)).square().mean(),
}


@pytest.mark.parametrize("name", MEANS)
def test_a_mean_written_by_hand_is_that_of_the_whole_batch(name: str) -> None:
    batch, target = uneven()
    value, state = step(MEANS[name], batch, target)
    expected, wanted = whole(MEANS[name], batch, target)
    assert value == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(dict(state), dict(wanted), rtol=1e-10, atol=1e-13)


def test_a_mean_over_weights_is_that_of_the_whole_batch() -> None:
    batch, target = samples("skips", 8)
    value, state = step(weighed, batch, target)
    expected, wanted = whole(weighed, batch, target)
    assert value == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(dict(state), dict(wanted), rtol=1e-10, atol=1e-13)


def negative(y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return -F.cross_entropy(y, t, reduction="none").sum() / torch.tensor(-1.0 * len(t))


def test_a_quotient_by_a_negative_number_is_a_mean_like_any_other() -> None:
    batch, target = samples("skips", 8)
    value, state = step(negative, batch, target)
    expected, wanted = whole(negative, batch, target)
    assert value == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(dict(state), dict(wanted), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_denominator_that_is_learned_is_no_number_of_targets(recompute: RecomputeMode) -> None:
    with pytest.raises(InputError, match=NO_MEAN):
        step(lambda y, _: y.square().sum() / y.exp().sum(), *uneven(), recompute=recompute)


def test_terms_that_cancel_each_other_are_rounded() -> None:
    program = program_of("skips32")

    def critic(y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return (y + 1000).mean() - (y.detach() + 1000).mean() + 1e-9 * t.sum()

    with train(plan_for(program, CASE), program, loss=critic, optimizer=SGD) as trainer:
        assert abs(trainer.step(*samples("skips32", 8)).item()) < 1e-3


def contrastive(y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Each sample among all others of the batch."""
    return F.cross_entropy(y @ y.T, torch.arange(len(t)))


REFUSED: dict[str, Loss] = {
    "a sum": lambda y, t: F.cross_entropy(y, t, reduction="sum"),
    "a sum of squares": lambda y, t: (y - t[:, None]).square().sum(),
    "over a number of Python's": lambda y, t: F.cross_entropy(y, t, reduction="sum") / max(1, int((t >= 0).sum())),
    "a root": lambda y, t: (y - t[:, None]).square().mean().sqrt(),
    "each among all": contrastive,
    "a spread": lambda y, t: y.std() + F.cross_entropy(y, t.clamp(0)),
    "half of a mean over a mask": lambda y, t: 0.5 * by_hand(y, t),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_mean_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=NO_MEAN):
        step(REFUSED[name], *uneven())


def test_the_refusal_names_both_numbers_and_the_ways_out() -> None:
    batch, target = torch.zeros(8, 4, dtype=torch.float64), torch.arange(8.0)
    with pytest.raises(InputError) as error:  # 0 + 1 + 2 + 3 of both, 1 and 5 of each
        step(lambda y, t: t.sum() + 0 * y.sum(), batch, target)
    assert str(error.value) == (
        "the loss of two micro-batches together is 6, and their own losses come to 3, so it is no plain mean over "
        "samples: a sum (reduction='sum'), a mean over another number of targets in each, or a comparison of samples "
        "with each other; return the mean over all samples or targets (a cross-entropy alone, or the sum divided by "
        "the number of targets, as a tensor), or plan with one micro-batch"
    )


def test_a_sum_is_the_loss_of_a_single_micro_batch() -> None:
    batch, target = samples("skips", BATCH)
    loss = REFUSED["a sum"]
    assert step(loss, batch, target, Case("skips"))[0] == pytest.approx(whole(loss, batch, target)[0])


def test_steps_that_are_added_up_are_compared_by_halves() -> None:
    with pytest.raises(InputError, match="the loss of the halves of micro-batches together is"):
        step(REFUSED["a sum"], *samples("skips", BATCH), Case("skips"), accumulate=2)


class Counting:
    """A loss that knows how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.calls * F.cross_entropy(y, t)


def test_a_loss_that_counts_its_calls_is_refused() -> None:
    with pytest.raises(InputError, match=r"called again, .*, so it keeps state between calls"):
        step(Counting(), *samples("skips", 8))


def test_a_loss_that_draws_random_numbers_is_taken_and_draws_what_it_would() -> None:
    def noisy(y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        number = torch.rand(()).item()
        drawn.extend([number] * torch.is_grad_enabled())
        return F.cross_entropy(y + torch.randn_like(y), t)

    drawn: list[float] = []
    torch.manual_seed(3)
    step(noisy, *samples("skips", 8))
    torch.manual_seed(0)
    samples("skips", 8)
    expected = []
    for _ in range(4):
        expected.append(torch.rand(()).item())
        torch.randn(BATCH, 3, dtype=torch.float64)
    assert drawn == expected


def test_a_batch_that_becomes_uneven_is_noticed_later() -> None:
    program, loss = program_of("skips"), REFUSED["over a number of Python's"]
    with train(plan_for(program, CASE), program, loss=loss, optimizer=SGD) as trainer:
        for seed in range(3):
            trainer.step(*samples("skips", 8, seed))
        before = trainer.model_state_dict()
        trainer.step(*samples("skips", 8, 3))
        after = trainer.model_state_dict()
        with pytest.raises(InputError, match=NO_MEAN):
            trainer.step(*uneven())  # step 4
        state = trainer.model_state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in after.items())
    assert not torch.equal(before["leave.bias"], after["leave.bias"])


class Scored(nn.Module):
    """Returns its loss beside its scores."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.inner, self.loss = nn.Linear(4, 3), loss

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.inner(x)
        return {"loss": self.loss(y, t), "scores": y}


RETURNED: dict[str, tuple[Loss, str]] = {
    "a sum": (REFUSED["a sum"], "'cross_entropy_loss' (aten.cross_entropy_loss.default)"),
    "a root": (REFUSED["a root"], "'sqrt' (aten.sqrt.default)"),
    "half of a mean over a mask": (REFUSED["half of a mean over a mask"], "'div' (aten.div.Tensor)"),
    "each among all": (
        lambda y, _: F.cross_entropy(y @ y.T, torch.arange(BATCH)),
        "'cross_entropy_loss' (aten.cross_entropy_loss.default)",
    ),
}


def scored(loss: Loss, own: Loss | None = None) -> float:
    batch, target = uneven()
    torch.manual_seed(0)
    program = program_from_module(Scored(loss).double(), (batch[:2], target[:2]), name="scored", training=True)
    with train(plan_for(program, Case("scored", micro_batches=4)), program, loss=own, optimizer=SGD) as trainer:
        return trainer.step((batch, target)).item()


@pytest.mark.parametrize("name", RETURNED)
def test_a_model_that_returns_another_loss_than_a_mean(name: str) -> None:
    loss, culprit = RETURNED[name]
    with pytest.raises(InputError) as error:
        scored(loss)
    assert str(error.value) == (
        f"model 'scored' returns a loss that is no plain mean over samples, by its operator {culprit}, so "
        "micro-batches do not come to the loss of the whole batch; return the mean over all samples or targets, return "
        "the outputs and pass loss=, or plan with one micro-batch"
    )
    other: Callable[[Any, Any], torch.Tensor] = lambda result, _: result["scores"].square().mean()  # noqa: E731
    assert math.isfinite(scored(loss, other))  # a number that nobody reads is none's business


@pytest.mark.parametrize("name", ["over a mask", "with a penalty", "of a divergence", "of squares"])
def test_a_model_that_returns_a_mean_written_by_hand(name: str) -> None:
    batch, target = uneven()
    torch.manual_seed(0)
    expected = Scored(MEANS[name]).double()(batch, target)["loss"].item()
    assert scored(MEANS[name]) == pytest.approx(expected, rel=1e-12)


class Turned(nn.Module):
    """Sequences whose second axis has the samples, as recurrent networks return them, and a parameter as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inner(x).transpose(0, 1), self.inner.weight


def test_samples_may_be_in_another_axis() -> None:
    torch.manual_seed(0)
    batch, target = torch.randn(8, 6, 4), torch.randint(3, (8,))
    net = Turned()
    program = program_from_module(net, (batch[:2],), training=True)

    def loss(result: tuple[torch.Tensor, torch.Tensor], t: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(result[0].mean(0), t) + 0.1 * result[1].square().sum()

    with train(plan_for(program, Case("turned", micro_batches=4)), program, loss=loss, optimizer=SGD) as trainer:
        assert trainer.step(batch, target).item() == pytest.approx(loss(net(batch), target).item(), rel=1e-6)
