"""Every public method of a trainer and of a runner refuses what is none of its arguments, in one sentence.

The tables say what each method is called with that is wrong; a method with arguments that no table knows is an error.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from graphs.common.errors import InputError
from planner.runtime.distributed.training.hosted_trainer import HostedTrainer
from planner.runtime.distributed.training.trainer import PipelineTrainer
from planner.runtime.distributed.training.worker import RankSetup
from planner.runtime.inference.runner import Runner
from planner.runtime.training.check import example_batches, mean_square
from planner.runtime.training.options import TrainerOptions
from planner.runtime.training.trainer import Trainer
from tests.planner.runtime.distributed.pipelines import Case, plan_for, program_for, sgd
from tests.planner.runtime.small import divided, fresh_arguments

Trainers = Trainer | HostedTrainer | PipelineTrainer
Wrong = Mapping[str, tuple[Any, ...]]

NOTHING = object()  # of no type that anybody takes
CASE = Case("transformer", (), 2)
PROGRAM = program_for(CASE)
PLAN = plan_for(CASE, PROGRAM)
BATCHES = example_batches(PROGRAM, 2)
DIVIDED: tuple[Any, ...] = (NOTHING, None, 3, [], BATCHES[:1], [*BATCHES[:1], NOTHING])
PARTS = {"steps": 1, "seed": 0, "model": {}, "optimizer": {"kind": "SGD", "options": {}, "state": {}}}
STATES = (
    NOTHING,
    None,
    [1],
    {},
    {"version": 1},
    *({"version": 1, **PARTS, name: NOTHING} for name in PARTS),
    *({"version": 1, **PARTS, "optimizer": {**PARTS["optimizer"], name: 3}} for name in ("kind", "options", "state")),  # type: ignore[dict-item]
    {"version": 1, **PARTS, "model": {"head.weight": 3}},
)
CALLS: Mapping[str, tuple[Any, ...]] = {
    "step": (NOTHING, None, 3, "x", [NOTHING]),
    "step_through": DIVIDED,
    "step_s": DIVIDED,
    "gradients": DIVIDED,
    "recorded": DIVIDED,
    "load_state_dict": STATES,
}
OPTIONS: Wrong = {"lr": ("x", None, True, NOTHING), "nesterov": (1, "yes", NOTHING), "no_such": (1,)}
MADE: Wrong = {
    "plan": (NOTHING, None),
    "program": (NOTHING, None),
    "loss": (NOTHING, 3),
    "optimizer": (NOTHING, None, "adam"),
    "trainer_options": (NOTHING, 3),
    "tools": (
        NOTHING,
        None,
        *(RankSetup(*wrong) for wrong in ((3, sgd, TrainerOptions()), (mean_square, 3, TrainerOptions()))),
    ),
    "silence_s": (NOTHING, "1", 0),
    "timeout_s": (NOTHING, "1", -1.0),
}
RIGHT: Mapping[str, Any] = {
    "plan": PLAN,
    "program": PROGRAM,
    "loss": mean_square,
    "optimizer": sgd,
    "trainer_options": TrainerOptions(),
    "tools": RankSetup(mean_square, sgd, TrainerOptions()),
}
KINDS: tuple[type[Trainers], ...] = (Trainer, HostedTrainer, PipelineTrainer)


def parameters(function: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def methods(kind: type) -> list[str]:
    """The public methods that take arguments."""
    return [
        name for name, value in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_" and parameters(value)
    ]


def refuse(call: Callable[[], object]) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert "\n" not in str(error.value)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", KINDS)
def test_the_tables_know_every_method(kind: type[Trainers]) -> None:
    assert set(methods(kind)) <= {*CALLS, "change_options"}
    assert set(parameters(kind.__init__)) <= MADE.keys()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("kind", [Trainer, PipelineTrainer, pytest.param(HostedTrainer, marks=pytest.mark.slow)])
def test_a_trainer_refuses_and_goes_on(kind: type[Trainers]) -> None:
    right = {name: value for name, value in RIGHT.items() if name in parameters(kind.__init__)}
    with kind(**right) as trainer:
        for name in methods(kind):
            if name == "change_options":
                for option, values in OPTIONS.items():
                    for value in values:
                        refuse(partial(trainer.change_options, **{option: value}))
            for value in CALLS.get(name, ()):
                refuse(partial(getattr(trainer, name), value))
        assert torch.isfinite(trainer.step_through(BATCHES))
        state = trainer.state_dict()
        trainer.load_state_dict(state)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("kind", KINDS)
def test_no_trainer_is_made_of_something_else(kind: type[Trainers]) -> None:
    names = parameters(kind.__init__)
    right = {name: value for name, value in RIGHT.items() if name in names}
    for name in names:
        for wrong in MADE[name]:
            refuse(partial(kind, **{**right, name: wrong}))


def test_a_runner_refuses_and_goes_on() -> None:
    wrong: Mapping[str, tuple[tuple[Any, ...], ...]] = {
        "owned": ((NOTHING,), (None,), (0,), ("no_such",)),
        "replay": ((NOTHING, 1), (((), {}), NOTHING), (((), {}), -1), (((), {}), 1.5), ((1, 2), 1), (None, 1)),
        "stream": ((NOTHING,), (None,), (3,)),
        "watch": ((NOTHING,), (3,), ("no_such",)),
    }
    assert set(methods(Runner)) == wrong.keys()
    with divided("branches") as runner:
        (x,), _ = fresh_arguments("branches", 0)
        for name, every in wrong.items():
            for arguments in every:
                refuse(partial(getattr(runner, name), *arguments))
        for given in ((), (NOTHING,), (None,), (3,), (x, x), ([x],)):
            refuse(partial(runner, *given))
        refuse(partial(runner, no_such=x))
        refuse(partial(list, runner.stream([NOTHING])))
        assert runner(x).shape == (2, 5)
