"""What can be trained, where it comes from, and what is seen of it."""

from dataclasses import replace

import pytest
from torch import Tensor, nn

from costmodels.cluster.cluster import Replicas
from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from planner.plans.plan import Plan
from planner.runtime.start import train
from tests.planner.runtime.training.loops import SGD, noisy
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


class Ranked(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).argmax(-1)


def test_plans_that_do_not_train_here() -> None:
    program = program_of("skips")
    plan = training_plan(Case("skips", "1f1b", 4))
    inference = replace(plan, workload=replace(plan.workload, mode="inference"))
    for odd, text in (
        (inference, "the plan is for inference; to train, plan with the goal 'training'"),
        (
            replace(plan, cluster=replace(plan.cluster, replicas=Replicas(2, 1e9))),
            "the plan is for 2 replicas of its devices, which ranks train; start one for",
        ),
    ):
        with pytest.raises(InputError, match=text):
            train(odd, program, loss=main_loss, optimizer=SGD)
    with pytest.raises(InputError, match=r"the plan is for 'skips' \(.*\), the model is 'heads'"):
        train(plan, program_of("heads"), loss=main_loss, optimizer=SGD)
    with pytest.raises(InputError) as error:
        train(plan, program, loss=main_loss, optimizer=lambda parameters: parameters)  # type: ignore[arg-type,return-value]
    assert str(error.value) == (
        "the optimizer is a list; pass a function that makes one, for example "
        "lambda parameters: torch.optim.Adam(parameters, lr=1e-3)"
    )
    frozen = program_from_module(nn.Linear(4, 3).double().requires_grad_(False), (numbers(BATCH),), name="still")
    with pytest.raises(InputError) as error:
        train(plan_for(frozen, Case("still", "gpipe", 1, 1, 1)), frozen, loss=main_loss, optimizer=SGD)
    assert str(error.value) == (
        "model 'still' has no parameter that asks for a gradient: nothing to train; call requires_grad_() on what is "
        "to be trained"
    )
    ranked = program_from_module(Ranked(4, 3).double(), (numbers(BATCH),), training=True)
    with pytest.raises(InputError, match=r"^model 'Ranked' returns nothing that has a gradient: nothing to train$"):
        train(plan_for(ranked, Case("Ranked", "gpipe", 1, 1, 1)), ranked, loss=main_loss, optimizer=SGD)
    tied = program_of("tied")
    with pytest.raises(InputError) as error:
        train(plan_for(tied, Case("tied", "1f1b", 2)), tied, loss=main_loss, optimizer=SGD)
    assert str(error.value) == (
        "parameter 'inner.weight' is read on 'cpu0' and 'cpu1'; operators that train the same parameter belong on one "
        "device: plan again"
    )


def test_a_module_is_imported_in_training_mode() -> None:
    program, model = noisy()
    plan = plan_for(program, Case("noisy", "1f1b", 2))
    with train(plan, model, (numbers(BATCH),), loss=main_loss, optimizer=SGD) as trainer:
        assert trainer.program.training
        trainer.step(*samples("skips", 2 * BATCH))
    with train(plan, model, loss=main_loss, optimizer=SGD) as trainer:  # zeros of the planned shapes
        assert trainer.program.graph.fingerprint == program.graph.fingerprint


def test_the_timeline_is_in_the_words_of_the_schedule() -> None:
    case = Case("skips", "1f1b", 3)
    plan: Plan = training_plan(case)
    with train(plan, program_of("skips"), loss=main_loss, optimizer=SGD) as trainer:
        trainer.step(*samples("skips", 3 * BATCH))
        trainer.record()
        trainer.step(*samples("skips", 3 * BATCH))
        seen = trainer.timeline()
        trainer.record()
        for seed in range(2):
            trainer.step(*samples("skips", 3 * BATCH, seed))
        twice = trainer.timeline()
        assert trainer.timeline().spans == ()  # recording has ended
    predicted = plan.simulate()
    assert (seen.devices, seen.micro_batches, twice.micro_batches) == (predicted.devices, 3, 6)
    for device in seen.devices:
        labels = [span.label for span in seen.spans if span.resource == device]
        expected = [s.label for s in predicted.spans if (s.kind, s.resource) == ("compute", device)]
        assert labels[:-1] == [label for label in expected if label != "optimizer"]
        assert labels[-1] == "optimizer"
    action = {(span.label, span.micro_batch, span.index) for span in seen.spans if span.label != "optimizer"}
    assert action == {(f"{s}{c}{i}", i, s) for s in range(2) for c in "FB" for i in range(3)}
    assert {span.label for span in twice.spans} == {f"{s}{c}{i}" for s in range(2) for c in "FB" for i in range(6)} | {
        "optimizer"
    }
    start = {span.label: span.start_s for span in seen.spans}
    end = {span.label: span.end_s for span in seen.spans}
    for i in range(3):
        assert end[f"0F{i}"] <= start[f"1F{i}"] <= end[f"1F{i}"] <= start[f"1B{i}"]
        assert end[f"1B{i}"] <= start[f"0B{i}"]
