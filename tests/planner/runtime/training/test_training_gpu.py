"""The same trainer with a GPU among the devices."""

from dataclasses import replace

import pytest
import torch

from planner.plans.plan import Plan
from planner.runtime.start import train
from planner.runtime.training.options import TrainerOptions
from tests.planner.runtime.small import cpu, with_device
from tests.planner.runtime.training.loops import OPTIMIZERS, loop
from tests.planner.runtime.training.nets import BATCH, Case, main_loss, program_of, samples, training_plan

pytestmark = pytest.mark.usefixtures("gpu")


def on_gpus(plan: Plan, *which: int) -> Plan:
    for i in which:
        plan = with_device(plan, i, replace(cpu(f"cpu{i}", cores=()), cuda=0))
    return plan


@pytest.mark.parametrize("which", [(0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["skips", "heads", "branches"])
def test_three_steps(name: str, optimizer: str, which: tuple[int, ...]) -> None:
    make, program = OPTIMIZERS[optimizer], program_of(name)
    batches = [samples(name, 4 * BATCH, seed) for seed in range(3)]
    plan = on_gpus(training_plan(Case(name, "1f1b", 4)), *which)
    expected, model = loop(program, make, batches, 4)
    for trainer_options in (TrainerOptions(), TrainerOptions(recompute="full", clip_norm=1e9)):
        with train(plan, program, loss=main_loss, optimizer=make, trainer_options=trainer_options) as trainer:
            trainer.record()
            losses = [trainer.step(*batch) for batch in batches]
            assert trainer.timeline().micro_batches == 12
            state = trainer.state_dict()
        for loss, wanted in zip(losses, expected, strict=True):
            torch.testing.assert_close(loss.cpu(), wanted, rtol=1e-6, atol=1e-9)
        for entry, tensor in model.state_dict().items():
            assert state["model"][entry].device.type == "cpu"
            torch.testing.assert_close(state["model"][entry], tensor, rtol=1e-5, atol=1e-8)


def test_from_a_gpu_to_processors_and_back() -> None:
    program, make = program_of("skips"), OPTIMIZERS["adam"]
    plan = training_plan(Case("skips", "1f1b", 4))
    batches = [samples("skips", 4 * BATCH, seed) for seed in range(3)]
    _, model = loop(program, make, batches, 4)
    state = None
    for which, batch in zip(((1,), (), (0,)), batches, strict=True):
        with train(on_gpus(plan, *which), program, loss=main_loss, optimizer=make) as trainer:
            if state is not None:
                trainer.load_state_dict(state)
            trainer.step(*batch)
            state = trainer.state_dict()
    assert state is not None
    for entry, tensor in model.state_dict().items():
        torch.testing.assert_close(state["model"][entry], tensor, rtol=1e-5, atol=1e-8)


def test_the_batch_may_be_on_a_gpu() -> None:
    program = program_of("skips")
    plan = on_gpus(training_plan(Case("skips", "1f1b", 4)), 1)
    x, y = samples("skips", 4 * BATCH)
    with train(plan, program, loss=main_loss, optimizer=OPTIMIZERS["momentum"]) as trainer:
        a = trainer.step(x.to("cuda:0"), y.to("cuda:0"))
    with train(plan, program, loss=main_loss, optimizer=OPTIMIZERS["momentum"]) as trainer:
        b = trainer.step(x, y)
    torch.testing.assert_close(a, b)
