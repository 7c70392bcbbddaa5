"""A model's inputs, in every form in which a user of Python may give them."""

from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import planner
from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.program.arguments import FORMS, Arguments, arguments_of
from graphs.program.program import Program
from planner.runtime.start import returned_loss
from tests.planner.runtime.small import desk

X, Y = torch.ones(2, 4), torch.full((2, 4), 2.0)


class Batch(UserDict[str, Any]):
    """What a tokenizer returns: a mapping that is no dict."""


class Adding(nn.Module):
    """Takes tensors, lists of them, and what is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Tensor | None = None, *, parts: Any = (), scale: float = 1.0) -> Tensor:
        total: Tensor = self.fc(x) * scale
        for part in (y, *(parts.values() if isinstance(parts, dict) else parts)):
            total = total if part is None else total + part
        return total


@pytest.mark.attack("first-try")
@pytest.mark.parametrize(
    ("given", "found"),
    [
        (X, ((X,), {})),
        ((X, Y), ((X, Y), {})),
        ([X, None], ((X, None), {})),
        ({"x": X, "scale": 2.0}, ((), {"x": X, "scale": 2.0})),
        (Batch(x=X), ((), {"x": X})),
        (((X,), {"parts": [Y]}), ((X,), {"parts": [Y]})),
        (((), {"x": X}), ((), {"x": X})),
        (([X, Y], {"a": X}), (([X, Y], {"a": X}), {})),
        (Arguments((X,), {}), ((X,), {})),
    ],
)
def test_forms(given: Any, found: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    assert repr(tuple(arguments_of(given))) == repr(found)


@pytest.mark.attack("first-try")
@pytest.mark.parametrize(
    ("given", "text"),
    [
        (3, f"the example inputs are a 'int'; give {FORMS}"),
        (np.ones(3), f"the example inputs are a 'ndarray'; give {FORMS}"),
        (
            {0: X},
            "the example inputs have the key 0, which is no name of an argument; put a dictionary that is itself an "
            "argument into a tuple: (dictionary,)",
        ),
        (
            {"z": X},
            "model 'Adding' cannot be called with its example inputs: missing a required argument: 'x'; it takes "
            "(x, y=None, *, parts=(), scale=1.0)",
        ),
        (
            (X, X, X),
            "model 'Adding' cannot be called with its example inputs: too many positional arguments; it takes "
            "(x, y=None, *, parts=(), scale=1.0)",
        ),
        (
            ((X,), {"parts": [X, np.ones(3)]}),
            "model 'Adding' cannot be traced by torch.export: ['parts'][1] of the keyword arguments is a "
            "'numpy.ndarray'; give tensors (torch.as_tensor), numbers, texts or None, or tuples, lists and dictionaries"
            " of these",
        ),
        (
            X.double(),
            "model 'Adding' cannot run on its example inputs in 'fc': linear multiplies float64 by float32; convert "
            "the model or its inputs, such as model.to(torch.float64)",
        ),
        (
            X.long(),
            "model 'Adding' cannot run on its example inputs in 'fc': linear multiplies int64 by float32; convert "
            "the model or its inputs, such as x.to(torch.float32)",
        ),
    ],
)
def test_refused(given: Any, text: str) -> None:
    with pytest.raises(InputError) as error:
        planner.plan(Adding(), given, cluster=desk(1))
    assert str(error.value) == text


@pytest.mark.attack("first-try")
def test_a_model_on_another_device_than_its_inputs() -> None:
    with pytest.raises(InputError, match=r"; the model is on meta, its inputs on cpu: bring them to one device$"):
        program_from_module(Adding().to("meta"), X)


@pytest.mark.attack("first-try")
def test_what_is_no_model() -> None:
    with pytest.raises(InputError, match=r"^the model is a 'type'; give a torch.nn.Module, or a Program from graphs"):
        planner.plan(Adding, X, cluster=desk(1))  # type: ignore[call-overload]  # a class instead of an instance
    with pytest.raises(InputError, match=r"^a 'Adding' needs example_inputs, one micro-batch: a tensor, a tuple or "):
        planner.calibrate(Adding())


CALLS: list[Any] = [
    X,
    (X, Y),
    {"x": X, "y": Y},
    ((X,), {"parts": {"a": X, "b": Y}, "scale": float("nan")}),
    ((X, None), {"parts": [X, Y], "scale": 0.5}),
]


@pytest.mark.attack("first-try")
@pytest.mark.parametrize("given", CALLS)
def test_planned_and_run_as_it_is_given(given: Any) -> None:
    torch.manual_seed(0)
    model = Adding().eval()
    args, kwargs = arguments_of(given)
    with torch.no_grad():
        expected = model(*args, **kwargs)
    plan = planner.plan(model, given, cluster=desk(2))
    with planner.start(plan, model, given) as runner:
        for got in (runner(*args, **kwargs), *runner.stream([given, given])):
            torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.attack("first-try")
@pytest.mark.parametrize("given", CALLS[:3])
def test_without_example_inputs_the_plan_knows_their_shapes(given: Any) -> None:
    model = Adding().eval()
    with planner.start(planner.plan(model, given, cluster=desk(1)), model) as runner:
        args, kwargs = arguments_of(given)
        assert runner(*args, **kwargs).shape == (2, 4)


@pytest.fixture(scope="module")
def adding() -> Program:
    return program_from_module(Adding().eval(), {"x": X, "y": Y})


@pytest.mark.parametrize("given", [(X, Y), ((X,), {"y": Y}), {"y": Y, "x": X}, ((X, Y), {"scale": 1.0})])
def test_the_same_call_in_other_words(adding: Program, given: Any) -> None:
    assert torch.equal(adding.flatten(*arguments_of(given))[1], Y)


@pytest.mark.parametrize("given", [X, (X, Y, Y), ((X, Y), {"scale": 2.0}), {"x": X, "y": Y, "z": Y}])
def test_another_call(adding: Program, given: Any) -> None:
    with pytest.raises(InputError, match=r"^(the model was imported with|input 'y' is a NoneType)"):
        adding.flatten(*arguments_of(given))


def test_a_loss_beside_other_results() -> None:
    assert returned_loss({"logits": X, "loss": Y}, None) is Y
    assert returned_loss(X, None) is X
