"""Steps of a trainer beside the loop that its user would write for the reference model."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # its usual name

from costmodels.workload import RECOMPUTE_MODES, TRAINING_SCHEDULES, RecomputeMode
from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from planner.runtime.start import train
from planner.runtime.training.options import TrainerOptions
from planner.runtime.training.step import StepRun
from simulator.schedule import Action
from tests.planner.runtime.small import live_tensors
from tests.planner.runtime.training.loops import OPTIMIZERS, SGD, assert_state, loop, noisy, steps, trained
from tests.planner.runtime.training.nets import (
    BATCH,
    Case,
    main_loss,
    numbers,
    plan_for,
    program_of,
    samples,
    training_plan,
)

SCHEDULES = [
    Case("skips", "gpipe", 4),
    Case("skips", "gpipe", 1, devices=3, stages=3),
    Case("skips", "1f1b", 4),
    Case("heads", "1f1b", 5, devices=3, stages=3),
    Case("frozen", "1f1b", 2),
    Case("branches", "interleaved", 4, devices=2, stages=4),
    Case("skips", "breadth-first", 4, devices=2, stages=4),
    Case("heads", "1f1b", 4, recompute="full"),
    Case("tied", "gpipe", 2, devices=1, stages=1),
    Case("skips", "zb-h1", 4),
    Case("heads", "zb-h1", 5, devices=3, stages=3),
    Case("skips", "zb-h2", 4, devices=3, stages=3),
    Case("frozen", "zb-h1", 3, recompute="full"),
    Case("branches", "zbv", 4, devices=2, stages=3),
    Case("tied", "zb-h1", 2, devices=1, stages=1),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("case", SCHEDULES, ids=str)
def test_three_steps(case: Case, optimizer: str) -> None:
    make = OPTIMIZERS[optimizer]
    batches = [samples(case.name, case.micro_batches * BATCH, seed) for seed in range(3)]
    losses, state = steps(case, make)
    expected, model = loop(program_of(case.name), make, batches, case.micro_batches)
    in_turn = case.schedule != "breadth-first"  # there micro-batches come back in the opposite order
    assert_state(state, model, exact=in_turn)
    for loss, wanted in zip(losses, expected, strict=True):
        assert not loss.requires_grad
        torch.testing.assert_close(loss, wanted, rtol=0 if in_turn else 1e-9, atol=0 if in_turn else 1e-12)


def test_every_schedule_that_trains_is_tried() -> None:
    assert {case.schedule for case in SCHEDULES} == {*TRAINING_SCHEDULES}


def test_gradients_are_clipped_as_torch_does_it() -> None:
    batches = [samples("skips", 4 * BATCH, seed) for seed in range(3)]
    _, model = loop(program_of("skips"), SGD, batches, 4, largest=0.05)
    _, free = loop(program_of("skips"), SGD, batches, 4)
    for devices in (1, 2, 3):
        _, state = steps(
            Case("skips", "1f1b", 4, devices, devices), SGD, trainer_options=TrainerOptions(clip_norm=0.05)
        )
        assert_state(state, model)
    assert not torch.equal(model.state_dict()["leave.bias"], free.state_dict()["leave.bias"])


def test_several_steps_for_one_of_the_optimizer() -> None:
    (x, y), (x2, y2) = samples("skips", 2 * BATCH, 0), samples("skips", 2 * BATCH, 1)
    both = torch.cat([x, x2]), torch.cat([y, y2])
    program = program_of("skips")
    _, model = loop(program, SGD, [both], 4)
    plan = training_plan(Case("skips", "1f1b", 2))
    with train(plan, program, loss=main_loss, optimizer=SGD, trainer_options=TrainerOptions(accumulate=2)) as trainer:
        before = trainer.model_state_dict()
        trainer.step(x, y)
        assert_state(before, program.module)
        with pytest.raises(InputError) as error:
            trainer.state_dict()
        assert str(error.value) == ("the gradients of 1 of 2 steps wait for the optimizer; save after the last of them")
        trainer.step(x2, y2)
        assert_state(trainer.model_state_dict(), model)
        assert trainer.state_dict()["steps"] == 2


def test_chance_is_the_same_on_every_placement() -> None:
    program, _ = noisy()
    one = trained(program, Case("noisy", "gpipe", 2, 1, 1))
    for case in (Case("noisy", "1f1b", 2), Case("noisy", "1f1b", 2, 3, 3), Case("noisy", "gpipe", 2, recompute="full")):
        losses, state = trained(program, case)
        assert losses == one[0]
        assert all(torch.equal(state[name], one[1][name]) for name in one[1])
    assert trained(program, Case("noisy", "1f1b", 2), trainer_options=TrainerOptions(seed=1))[0] != one[0]
    assert len(set(one[0])) == 3


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.leave = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.leave(torch.tanh(self.norm(self.enter(x))))
        return result


def test_a_batch_norm_counts_and_keeps_its_statistics() -> None:
    torch.manual_seed(0)
    model = Normed().double()
    before = copy.deepcopy(model.state_dict())
    program = program_from_module(model, (numbers(BATCH),), training=True)
    batches = [samples("skips", 4 * BATCH, seed) for seed in range(3)]
    _, expected = loop(program, SGD, batches, 4)
    assert expected.training
    for recompute in RECOMPUTE_MODES:
        _, state = trained(program, Case("normed", "1f1b", 4, recompute=recompute))
        assert_state(state, expected)
        assert state["norm.num_batches_tracked"] == 12
    assert_state(before, model)  # its user's is as it was


def test_a_batch_norm_whose_result_nobody_reads_keeps_its_statistics_too() -> None:
    class Aside(Normed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.enter(x)
            self.norm(y)
            result: torch.Tensor = self.leave(torch.tanh(y))
            return result

    torch.manual_seed(0)
    program = program_from_module(Aside().double(), (numbers(BATCH),), training=True)
    _, expected = loop(program, SGD, [samples("skips", 2 * BATCH, seed) for seed in range(3)], 2)
    for recompute in RECOMPUTE_MODES:
        _, state = trained(program, Case("aside", "1f1b", 2, recompute=recompute))
        assert_state(state, expected)
        assert state["norm.running_mean"].any()


def test_a_model_that_returns_its_loss_and_one_in_keywords() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(self.inner(torch.tanh(x)), y)

    torch.manual_seed(0)
    x, y = samples("skips", 2 * BATCH)
    program = program_from_module(Own().double(), (x[:BATCH], y[:BATCH]))
    plan = plan_for(program, Case("own", "1f1b", 2))
    expected = torch.stack([program.module(a, b) for a, b in zip(x.chunk(2), y.chunk(2), strict=True)]).mean()
    with train(plan, program, loss=None, optimizer=SGD) as trainer:
        assert torch.equal(trainer.step((x, y)), expected)
        with pytest.raises(InputError, match="there is a target, but no loss that takes it"):
            trainer.step((x, y), y)


def test_mixed_precision_is_that_of_eager() -> None:
    program = program_of("skips32")
    x, y = samples("skips32", 2 * BATCH)
    model = copy.deepcopy(program.module)
    losses = []
    for a, b in zip(x.chunk(2), y.chunk(2), strict=True):
        with torch.autocast("cpu", torch.bfloat16):
            losses.append(F.cross_entropy(model(a), b))
        (losses[-1] / 2).backward()  # type: ignore[no-untyped-call]
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    loss, state = steps(Case("skips32", "1f1b", 2), SGD, 1, TrainerOptions(autocast=torch.bfloat16))
    assert torch.equal(loss[0], torch.stack(losses).mean())
    for name, tensor in model.state_dict().items():
        assert state[name].dtype == torch.float32
        torch.testing.assert_close(state[name], tensor, rtol=1e-3, atol=1e-4)
    exact, _ = steps(Case("skips32", "1f1b", 2), SGD, 1)
    assert not torch.equal(exact[0], loss[0])


def test_what_the_model_itself_does_not_cast_is_not_cast() -> None:
    """Under mixed precision it computes a part in full, as a model may that knows what its numbers need."""

    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.middle, self.leave = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.enter(x)
            with torch.autocast("cpu", enabled=False):
                y, _ = torch.max(self.middle(y.float()).unflatten(1, (8, 1)), 2)
            result: torch.Tensor = self.leave(y)
            return result

    torch.manual_seed(0)
    x, target = samples("skips32", 2 * BATCH)
    model = Careful()
    program = program_from_module(model, (x[:BATCH],), training=True)
    with torch.autocast("cpu", torch.bfloat16):
        losses = [F.cross_entropy(model(a), b) for a, b in zip(x.chunk(2), target.chunk(2), strict=True)]
        cast = F.cross_entropy(model.leave(model.middle(model.enter(x))), target)
    plan = plan_for(program, Case("careful", "1f1b", 2))
    trainer_options = TrainerOptions(autocast=torch.bfloat16)
    with train(plan, program, loss=F.cross_entropy, optimizer=SGD, trainer_options=trainer_options) as trainer:
        found = trainer.step(x, target)
    assert torch.equal(found, torch.stack(losses).mean())
    assert not torch.equal(found, cast)


def test_the_learning_rate_can_be_changed() -> None:
    case = Case("skips", "1f1b", 2)
    with train(training_plan(case), program_of("skips"), loss=main_loss, optimizer=SGD) as trainer:
        before = trainer.model_state_dict()
        for optimizer in trainer.optimizers:
            optimizer.param_groups[0]["lr"] = 0.0
        trainer.step(*samples("skips", 2 * BATCH))
        assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.model_state_dict().items())
        assert len(trainer.optimizers) == 2


@pytest.mark.parametrize("recompute", RECOMPUTE_MODES)
def test_a_stage_keeps_as_many_micro_batches_as_its_schedule_says_and_nothing_stays(
    monkeypatch: pytest.MonkeyPatch, recompute: RecomputeMode
) -> None:
    most: dict[int, int] = {}
    forward = StepRun._forward

    def counted(step: StepRun, context: Any, stage: Any, action: Action) -> tuple[float, float]:
        times = forward(step, context, stage, action)
        kept = sum(1 for number, _ in list(step._kept) if number == action.stage)
        most[action.stage] = max(most.get(action.stage, 0), kept)
        return times

    monkeypatch.setattr(StepRun, "_forward", counted)
    case = Case("skips", "1f1b", 6, 3, 3, recompute)
    with train(training_plan(case), program_of("skips"), loss=main_loss, optimizer=SGD) as trainer:
        counts = []
        for seed in range(5):
            trainer.step(*samples("skips", 6 * BATCH, seed))
            counts.append(live_tensors())
    assert most == {0: 3, 1: 2, 2: 1}
    assert len(set(counts[1:])) == 1
