"""Optimizers that users bring, and gradients of every layout: what cannot be stepped with is refused by name."""

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # its usual name
from torch.optim.optimizer import register_optimizer_step_pre_hook

from costmodels.host.affinity import run_on
from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from planner.runtime.start import train
from planner.runtime.training.check import differing_gradients, example_batches, mean_square
from planner.runtime.training.options import TrainerOptions
from planner.runtime.verification.verify import verify
from tests.planner.runtime.small import cpu
from tests.planner.runtime.training.loops import SGD, Make
from tests.planner.runtime.training.nets import Case, plan_for, program_of, training_plan

pytestmark = pytest.mark.attack("answer")

IDS = torch.tensor([[0, 3, 3, 5, 0], [3, 1, 6, 6, 6], [2, 2, 2, 2, 2], [5, 4, 3, 2, 1]])
TARGET = torch.tensor([0, 2, 1, 1])


class Words(nn.Module):
    """An embedding whose gradient is sparse, with words that come several times."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 6, sparse=True)
        self.scores = nn.Linear(6, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.scores(self.words(ids).mean(1))
        return scores


def words() -> tuple[Program, Words]:
    torch.manual_seed(0)
    model = Words()
    return program_from_module(model, (IDS[:2],), name="words", training=True), model


def reference(model: Words, make: Make, largest: float) -> dict[str, torch.Tensor]:
    """What a user writes where all gradients are dense, as ``clip_grad_norm_`` needs them."""
    model.words.sparse = False

    def work() -> None:
        optimizer = make(list(model.parameters()))
        with torch.enable_grad():
            for _ in range(2):
                for ids, target in zip(IDS.chunk(2), TARGET.chunk(2), strict=True):
                    (F.cross_entropy(model(ids), target) / 2).backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(model.parameters(), largest)
                optimizer.step()
                optimizer.zero_grad()

    run_on(cpu("reference"), work)
    return model.state_dict()


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("autocast", [None, torch.float16])
def test_sparse_gradients_are_clipped_and_scaled(schedule: str, autocast: torch.dtype | None) -> None:
    program, model = words()
    plan = plan_for(program, Case("words", schedule, micro_batches=2))
    trainer_options = TrainerOptions(clip_norm=0.05, autocast=autocast)
    with train(plan, program, loss=F.cross_entropy, optimizer=SGD, trainer_options=trainer_options) as trainer:
        for _ in range(2):
            trainer.step(IDS, TARGET)
        found = trainer.model_state_dict()
        file = io.BytesIO()
        torch.save(trainer.state_dict(), file)
    file.seek(0)
    torch.load(file, weights_only=True)
    rtol, atol = (1e-5, 1e-6) if autocast is None else (1e-2, 1e-4)
    torch.testing.assert_close(found, dict(reference(model, SGD, 0.05)), rtol=rtol, atol=atol)


def test_sparse_gradients_are_compared() -> None:
    program, _ = words()
    plan = plan_for(program, Case("words", micro_batches=2))
    with train(plan, program, loss=mean_square, optimizer=SGD) as trainer:
        assert differing_gradients(trainer, mean_square, example_batches(program, 2)) == []
    assert verify(plan, program).equal


REFUSED: dict[str, tuple[Callable[[list[torch.Tensor]], Any], str]] = {
    "none": (lambda _: None, "the optimizer is a NoneType; pass a function that makes one"),
    "the model's own parameters": (
        lambda _: torch.optim.SGD(program_of("skips").module.parameters(), lr=0.1),
        "the optimizer SGD trains other tensors than the parameters that its function was given",
    ),
    "a closure": (torch.optim.LBFGS, "the optimizer LBFGS needs a closure that works out the loss again and again"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_optimizer_that_a_plan_cannot_step_with(name: str) -> None:
    make, text = REFUSED[name]
    plan = training_plan(Case("skips", micro_batches=2))
    with pytest.raises(InputError) as refusal:
        train(plan, program_of("skips"), loss=F.cross_entropy, optimizer=make)
    assert str(refusal.value).startswith(text)


def test_hooks_of_optimizers_are_called() -> None:
    seen: list[int] = []

    def hooked(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        optimizer = SGD(parameters)
        optimizer.register_step_pre_hook(lambda own, *_: seen.append(len(own.param_groups[0]["params"])))
        return optimizer

    with train(training_plan(Case("skips")), program_of("skips"), loss=F.cross_entropy, optimizer=hooked) as trainer:
        trainer.step(torch.ones(2, 4, dtype=torch.float64), torch.tensor([0, 1]))
    assert sum(seen) == len(list(program_of("skips").module.parameters()))


def test_hooks_of_all_optimizers_do_not_reach_other_processes() -> None:
    program, _ = words()
    plan = plan_for(program, Case("words"))
    handle = register_optimizer_step_pre_hook(lambda *_: None)
    with pytest.raises(InputError, match=r"^there is a hook on all optimizers \(register_optimizer_step_pre_hook"):
        train(plan, program, loss=F.cross_entropy, optimizer=torch.optim.SGD, processes=True)
    handle.remove()


def test_schedulers_of_the_learning_rate_step_with_each_optimizer() -> None:
    with train(training_plan(Case("skips")), program_of("skips"), loss=F.cross_entropy, optimizer=SGD) as trainer:
        schedulers = [torch.optim.lr_scheduler.StepLR(own, 1, gamma=0.5) for own in trainer.optimizers]
        for _ in range(2):
            trainer.step(torch.ones(2, 4, dtype=torch.float64), torch.tensor([0, 1]))
            for scheduler in schedulers:
                scheduler.step()
        assert [own.param_groups[0]["lr"] for own in trainer.optimizers] == [0.025] * len(trainer.optimizers)


def test_a_hook_that_was_hung_on_a_parameter_since_the_import_is_refused() -> None:
    program, model = words()
    plan = plan_for(program, Case("words"))
    handle = model.scores.weight.register_hook(lambda gradient: gradient * 2)  # type: ignore[no-untyped-call]  # torch's
    for processes in (False, True):
        with pytest.raises(InputError, match=r"^model 'words' has a hook on 'scores\.weight' \(register_hook\)"):
            train(plan, program, loss=F.cross_entropy, optimizer=torch.optim.SGD, processes=processes)
    handle.remove()
    train(plan, program, loss=F.cross_entropy, optimizer=SGD).close()
