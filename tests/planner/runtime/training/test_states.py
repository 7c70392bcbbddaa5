"""Parts of a state become one, and a state finds its way into part of a model."""

from typing import Any

import pytest
import torch
from torch import nn

from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from planner.runtime.checkpoint.names import (
    entries_to_dict,
    model_state,
    module_from_dict,
    register_tensor,
    unread,
    values_of,
)
from planner.runtime.training.optimizers import Optimizers
from planner.runtime.training.options import Scale, Scaling
from planner.runtime.training.states import TrainingProgress, join_states, progress_of, state_of
from tests.planner.runtime.distributed.pipelines import Odd
from tests.planner.runtime.training.nets import program_of

ONE = torch.ones(1)


def part(name: str, kind: str = "SGD", **more: Any) -> dict[str, Any]:
    optimizer: dict[str, Any] = {"kind": kind, "state": {}, "options": {}}
    if kind != "none":
        optimizer |= {"state": {name: {"momentum_buffer": ONE}}, "options": {name: {"lr": 0.1}}}
    return {"version": 1, "steps": 2, "seed": 0, "scaling": None, "model": {name: ONE}, "optimizer": optimizer} | more


def test_parts_become_one() -> None:
    found = join_states([part("a"), part("b", "none"), part("c")])
    assert found == {
        **part("a"),
        "model": {"a": ONE, "b": ONE, "c": ONE},
        "optimizer": {
            "kind": "SGD",
            "state": {"a": {"momentum_buffer": ONE}, "c": {"momentum_buffer": ONE}},
            "options": {"a": {"lr": 0.1}, "c": {"lr": 0.1}},
        },
    }
    assert found["model"]["a"] is ONE
    assert join_states([found]) == found
    assert join_states([part("a", "none")])["optimizer"]["kind"] == "none"


def test_what_several_have_is_the_first_ones() -> None:
    other = torch.zeros(1)
    assert join_states([part("a"), part("a") | {"model": {"a": other}}])["model"]["a"] is ONE


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([], "there is no part of a state to join; pass those of all ranks"),
        (
            [part("a"), part("b", steps=3)],
            "the parts of the state are of different saves: steps 2 and 3; join those of one save",
        ),
        (
            [part("a"), part("b", seed=5)],
            "the parts of the state are of different saves: seed 0 and 5; join those of one save",
        ),
        ([part("b"), part("a", "Adam")], "the parts of the state are of the optimizers Adam and SGD; use one"),
    ],
)
def test_parts_that_do_not_fit(parts: list[dict[str, Any]], text: str) -> None:
    with pytest.raises(InputError) as error:
        join_states(parts)
    assert str(error.value) == text


def test_a_rank_that_trains_nothing_goes_on_too() -> None:
    """From a state of any optimizer, as it has none; one that trains something does not."""
    weight = nn.Parameter(torch.ones(2))
    idle = Optimizers(lambda parameters: torch.optim.SGD(parameters), [{}])
    busy = Optimizers(lambda parameters: torch.optim.SGD(parameters), [{"a": weight}])
    assert idle.state_dict() == {"kind": "none", "state": {}, "options": {}}
    assert idle.divided(busy.state_dict()) == [{"state": {}, "param_groups": []}]
    with pytest.raises(InputError, match="the state is of the optimizer none, this one is SGD; use the same"):
        busy.divided(idle.state_dict())


def test_how_far_it_was() -> None:
    scale = Scale(Scaling(), 8.0, 3)
    now = TrainingProgress(0, 7, Scale(Scaling(), 2.0**16))
    optimizer = {"kind": "SGD", "state": {}, "options": {}}
    state = {"version": 1, "steps": 5, "seed": 7, "model": {}, "optimizer": optimizer, "scaling": scale.state_dict()}
    assert progress_of(state, now) == TrainingProgress(5, 7, scale)
    assert progress_of(state, TrainingProgress(0, 7, None)) == TrainingProgress(5, 7, None)
    with pytest.raises(InputError, match="the state was saved with the seed 7; make the trainer with that seed"):
        progress_of(state, TrainingProgress(0, 8, None))
    with pytest.raises(InputError, match=r"'scaling' of the state is {'scale': 1}; give what state_dict\(\) of a"):
        progress_of({**state, "scaling": {"scale": 1}}, now)


def test_gradients_that_wait_would_be_lost() -> None:
    program, idle = program_of("skips"), Optimizers(lambda parameters: torch.optim.SGD(parameters), [{}])
    with pytest.raises(InputError) as error:
        state_of(program, {}, idle, TrainingProgress(3, 7, None, accumulate=4, waiting=3))
    assert str(error.value) == ("the gradients of 3 of 4 steps wait for the optimizer; save after the last of them")


def test_the_names_of_a_model_in_a_module_that_cannot_be_called() -> None:
    """As a shard has it: what is on other devices has a shape and no values."""
    x = torch.randn(2, 4).double()
    program = program_from_module(Odd().double(), (x,), training=True)
    entries = entries_to_dict(program)
    assert list(entries) == list(program.module.state_dict())
    assert entries["again.weight"] == entries["enter.weight"]
    assert entries["unread.bias"] == {"shape": [4], "dtype": "float64"}
    assert sorted(unread(program)) == ["idle", "unread.bias", "unread.weight"]
    tensors = {**program.state, **{name: update.tensor for name, update in program.updates.items()}}
    module = module_from_dict(entries, tensors | {"idle": torch.arange(3)})
    assert list(module.state_dict()) == sorted(entries, key=list(module.state_dict()).index)
    assert module.get_parameter("enter.weight") is module.get_parameter("again.weight")
    assert module.state_dict()["idle"].tolist() == [0, 1, 2]
    assert module.state_dict()["unread.bias"].is_meta


def test_a_part_of_the_state() -> None:
    x = torch.randn(2, 4).double()
    program = program_from_module(Odd().double(), (x,), training=True)
    weight = program.graph.ops[0].inputs[1]
    found = model_state(program, {weight: torch.zeros(4, 4).double()})
    assert sorted(found) == ["again.weight", "enter.weight", "idle", "unread.bias", "unread.weight"]
    whole = program.module.state_dict()
    assert list(values_of(program, whole, [weight])) == [weight]
    assert "scale" in program.state  # which the module does not save
    assert list(values_of(program, whole, [weight, "scale"])) == [weight]
    with pytest.raises(InputError, match=r"the state has no 'middle.weight', which the model '.*' has"):
        values_of(program, found, [weight, "middle.weight"])


def test_names_become_modules() -> None:
    root = nn.Module()
    weight = nn.Parameter(torch.ones(2))
    register_tensor(root, "layers.0.conv.weight", weight)
    register_tensor(root, "layers.0.running", torch.zeros(1))
    register_tensor(root, "alone", torch.zeros(1))
    assert root.get_parameter("layers.0.conv.weight") is weight
    assert sorted(root.state_dict()) == ["alone", "layers.0.conv.weight", "layers.0.running"]
    assert [name for name, _ in root.named_parameters()] == ["layers.0.conv.weight"]
