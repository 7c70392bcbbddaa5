"""Split networks in training: gradients, parameters and states are those of the user's network."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from graphs.common.errors import InputError
from graphs.program.rewritten import rewritten_program
from graphs.rewrites.experts_apart import experts_apart
from graphs.rewrites.split import Split
from planner.plans.plan import Plan
from planner.runtime.start import train
from planner.runtime.training.any_trainer import divide
from planner.runtime.training.check import differing_gradients, example_batches, mean_square, reference_gradients
from planner.runtime.training.prepare import stage_layout
from planner.runtime.training.states import join_states, state_of
from planner.runtime.training.trainer import Trainer
from planner.runtime.verification.verify import verify
from tests.graphs.rewrites.mixtures import imported as mixture
from tests.planner.runtime.training.loops import OPTIMIZERS, assert_state, loop
from tests.planner.runtime.training.nets import BATCH, Case, main_loss, plan_for, program_of, samples, training_plan
from tests.planner.runtime.verification.test_verify import training_plan as verified_plan

CASE = Case("skips", "1f1b", 2, devices=3, stages=3)
COLUMN, ROW = "output features", "input features"
SPLIT = Split(
    {"linear": (COLUMN, 2), "tanh": ("axis 1", 2), "linear_1": (ROW, 2), "linear_2": (COLUMN, 3), "linear_5": (ROW, 3)}
)


def split_plan(split: Split = SPLIT) -> Plan:
    """Contiguous runs of the parts and of what stands between, on three devices."""
    return replace(plan_for(rewritten_program(program_of("skips"), [split]), CASE), rewrites=(split,))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_are_those_of_the_network(optimizer: str) -> None:
    make, program = OPTIMIZERS[optimizer], program_of("skips")
    batches = [samples("skips", CASE.micro_batches * BATCH, seed) for seed in range(4)]
    expected, model = loop(program, make, batches, CASE.micro_batches)
    for first, second in ((split_plan(), training_plan(CASE)), (training_plan(CASE), split_plan())):
        losses = []
        with train(first, program, loss=main_loss, optimizer=make) as trainer:
            losses += [trainer.step(*batch) for batch in batches[:2]]
            state = trainer.state_dict()
        with train(second, program, loss=main_loss, optimizer=make) as trainer:
            trainer.load_state_dict(state)
            losses += [trainer.step(*batch) for batch in batches[2:]]
            assert_state(trainer.model_state_dict(), model, exact=False)
        torch.testing.assert_close(torch.stack(losses), torch.stack(expected), rtol=1e-9, atol=1e-12)


def test_gradients_have_the_networks_names() -> None:
    program = program_of("skips")
    batches = example_batches(program, CASE.micro_batches)
    with train(split_plan(), program, loss=mean_square, optimizer=OPTIMIZERS["adam"]) as trainer:
        assert trainer.program.state.keys() >= {"enter.weight[0:3]", "enter.weight[3:6]", "leave.weight[:, 4:8]"}
        got = trainer.gradients(batches)
        expected = reference_gradients(trainer.program, stage_layout(trainer.plan), mean_square, batches)
    assert got.keys() == expected.keys() == dict(program.module.named_parameters()).keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(got[name], gradient, rtol=1e-9, atol=1e-12)
    assert verify(split_plan(), program).equal


def test_refuses_parts_that_would_be_trained_apart() -> None:
    plan = split_plan(Split({"linear": ("replicated", 2)}))
    message = r"parameter 'enter.weight' is divided into enter.weight@1/2, enter.weight, of which several have the same"
    with pytest.raises(InputError, match=message):
        train(plan, program_of("skips"), loss=main_loss, optimizer=OPTIMIZERS["adam"])
    shared = split_plan(Split({"linear": ("batch", 2)}, shared=True))
    one = replace(shared, placement=type(shared.placement)((0,) * len(shared.graph.ops)))
    train(one, program_of("skips"), loss=main_loss, optimizer=OPTIMIZERS["adam"]).close()


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
def test_experts_on_two_devices_have_the_networks_gradients(family: str) -> None:
    program = mixture(family, training=True)
    split = experts_apart(program.graph, 2)
    assert split is not None
    divided = rewritten_program(program, [split])
    second = max(number for number, op in enumerate(divided.graph.ops) if op.name.endswith("[0/2]")) + 1
    n_devices = [0] * second + [1] * (len(divided.graph.ops) - second)  # the last layer's experts are apart
    plan = replace(verified_plan(divided, *n_devices), rewrites=(split,))
    found = verify(plan, program)
    assert found.equal
    assert found.n_gradients


def test_processes_train_the_parts_and_a_state_goes_there_and_back() -> None:
    program, make = program_of("skips"), partial(torch.optim.Adam, lr=0.01)
    batches = [samples("skips", CASE.micro_batches * BATCH, seed) for seed in range(3)]
    expected, model = loop(program, make, batches, CASE.micro_batches)
    losses = []
    with train(training_plan(CASE), program, loss=main_loss, optimizer=make) as trainer:
        losses.append(trainer.step(*batches[0]))
        state = trainer.state_dict()
    with train(split_plan(), program, loss=main_loss, optimizer=make, processes=True) as trainer:
        parts = divide(program, BATCH, CASE.micro_batches, *batches[0])
        for each in differing_gradients(trainer, main_loss, parts):
            assert each.name in dict(program.module.named_parameters())
            assert each.share <= each.allowed == 1e-6
        trainer.load_state_dict(state)
        losses.append(trainer.step(*batches[1]))
        state = trainer.state_dict()
        assert trainer.model_state_dict().keys() == state["model"].keys()
    with train(training_plan(CASE), program, loss=main_loss, optimizer=make) as trainer:
        trainer.load_state_dict(state)
        losses.append(trainer.step(*batches[2]))
        assert_state(trainer.model_state_dict(), model, exact=False)
    torch.testing.assert_close(torch.stack(losses), torch.stack(expected), rtol=1e-9, atol=1e-12)


def test_a_ranks_part_of_a_state_is_no_state() -> None:
    program, make = program_of("skips"), OPTIMIZERS["adam"]
    with train(split_plan(), program, loss=main_loss, optimizer=make) as trainer:
        assert isinstance(trainer, Trainer)
        trainer.step(*samples("skips", CASE.micro_batches * BATCH))
        values, optimizers = trainer._loop.values(), trainer._loop.optimizers
        part = state_of(trainer.program, {"enter.bias[0:3]": values["enter.bias[0:3]"]}, optimizers, trainer._progress)
        assert part["pieces"]["enter.bias[0:3]"] == {"of": "enter.bias", "shape": [6], "axis": 0, "ranges": [[0, 3]]}
        with pytest.raises(InputError, match=r"the state is one rank's, with parts such as 'enter.weight\[0:3\]'; put"):
            trainer.load_state_dict(part)
    with pytest.raises(InputError, match=r"of 'enter.bias' there are only the parts enter.bias\[0:3\]; give those of"):
        join_states([part])
