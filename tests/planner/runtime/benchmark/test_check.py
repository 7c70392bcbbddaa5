"""Are two results the same? To the bit, in words that say what is not."""

from collections import OrderedDict
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from graphs.importers.from_torch import program_from_exported, program_from_module
from planner.runtime.benchmark.check import Answers, answers, compare_outputs
from planner.runtime.inference.runner import Runner
from simulator.placement import Placement
from tests.planner.runtime.bits import differences
from tests.planner.runtime.small import NETWORKS, alternating, desk, make_plan, program_of

NAN, INF = float("nan"), float("inf")


@given(st.lists(st.floats(width=32) | st.sampled_from([NAN, INF, 0.0, -0.0])))
def test_a_result_equals_its_copy(values: list[float]) -> None:
    tensor = torch.tensor(values)
    assert differences({"a": [tensor, 3, None]}, {"a": [tensor.clone(), 3, None]}) == []


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int8, torch.bfloat16, torch.float64, torch.complex32, torch.complex64]
)
def test_of_any_dtype(dtype: torch.dtype) -> None:
    a, b = torch.tensor([1, 0, 1]).to(dtype), torch.tensor([1, 1, 1]).to(dtype)
    assert differences(a, a.clone()) == []
    assert differences(a, b) == ["the output differs in 1 of 3 elements, by 1 at most"]


def test_strides_do_not_count() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    assert differences(tensor, tensor.T.contiguous().T) == []


def test_scalars_and_empty_tensors() -> None:
    assert differences((torch.tensor(1.0), torch.ones(0, 2)), (torch.tensor(1.0), torch.ones(0, 2))) == []
    assert differences(torch.tensor(1.0), torch.tensor(3.0)) == ["the output differs in 1 of 1 elements, by 2 at most"]


def test_minus_zero_is_not_zero() -> None:
    assert differences(torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])) == [
        "the output differs in 1 of 2 elements, by 0 at most"
    ]


def test_nan_counts_only_where_it_differs() -> None:
    assert differences(torch.tensor([NAN, 1.0, 2.0]), torch.tensor([NAN, 1.5, 2.0])) == [
        "the output differs in 1 of 3 elements, by 0.5 at most"
    ]
    assert differences(torch.tensor([1.0]), torch.tensor([NAN])) == [
        "the output differs in 1 of 1 elements, by nan at most"
    ]


def test_bits_of_nan_count_unless_rounding_is_allowed() -> None:
    one, other = (torch.tensor([bits]).to(torch.int32).view(torch.float32) for bits in (0x7FC00000, 0x7FC00001))
    assert differences(one, other) == ["the output differs in 1 of 1 elements, by nan at most"]
    assert answers(one, other, {torch.float32: 1e-6}) == Answers(())


@pytest.mark.parametrize(
    ("expected", "got", "line"),
    [
        (torch.ones(2, 3), torch.ones(3, 2), "the output is [3, 2] float32, expected [2, 3] float32"),
        (torch.ones(2), torch.ones(2).double(), "the output is [2] float64, expected [2] float32"),
        ([torch.ones(2)], [7], "output [0] is 7, expected [2] float32"),
        ([7], [torch.ones(2)], "output [0] is [2] float32, expected 7"),
        ({"k": 3}, {"k": 4}, "output ['k'] is 4, expected 3"),
        ({"k": 1}, {"k": True}, "output ['k'] is True, expected 1"),
        ((torch.ones(1), "a"), (torch.ones(1), "b"), "output [1] is 'b', expected 'a'"),
    ],
)
def test_what_differs_is_named(expected: Any, got: Any, line: str) -> None:
    assert differences(expected, got) == [line]


def test_every_leaf_has_a_line() -> None:
    a, b = torch.zeros(2), torch.ones(2)
    assert differences({"x": a, "y": (a, b)}, {"x": b, "y": (b, b)}) == [
        "output ['x'] differs in 2 of 2 elements, by 1 at most",
        "output ['y'][0] differs in 2 of 2 elements, by 1 at most",
    ]


def test_another_structure_is_one_line() -> None:
    (line,) = differences([torch.ones(1)], (torch.ones(1),))
    assert line.startswith("the result is TreeSpec(tuple")
    assert "expected TreeSpec(list" in line
    assert len(differences({"a": 1}, OrderedDict(a=1))) == 1
    assert len(differences([1, 2], [1])) == 1


@pytest.mark.parametrize("name", NETWORKS)
def test_a_runner_that_is_right(name: str) -> None:
    program = program_of(name)
    with Runner(make_plan(program, alternating(program)), program) as runner:
        assert not compare_outputs(runner).wrong


def test_an_exported_program_is_its_own_reference() -> None:
    """It has no ``eval()``; PyTorch refuses that."""
    exported = torch.export.export(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).eval(), (torch.ones(2, 3),))
    program = program_from_exported(exported, "exported")
    with Runner(make_plan(program, alternating(program)), program) as runner:
        assert not compare_outputs(runner).wrong


class Noisy(nn.Module):
    """A vocoder's start: noise that a generator may draw, and none is given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn(x.shape, generator=None)


def test_a_generator_that_is_not_given_is_the_runners() -> None:
    program = program_from_module(Noisy().eval(), (torch.zeros(2, 3),))
    with Runner(make_plan(program, alternating(program)), program) as runner:
        assert not compare_outputs(runner).wrong
        assert (runner(torch.zeros(2, 3)) != 0).any()


def test_a_runner_that_is_wrong() -> None:
    model = nn.Linear(3, 5).eval()
    program = program_from_module(model, (torch.ones(2, 3),))
    with Runner(make_plan(program, Placement((1,))), program) as runner:
        assert model.bias is not None
        model.bias = nn.Parameter(model.bias + 1)  # the runner keeps the one that it was started with
        (line,) = compare_outputs(runner).wrong
    assert line.startswith("the output differs in 10 of 10 elements, by 1")


def test_a_model_in_training_mode_is_compared_in_evaluation_mode_and_left_as_it_was() -> None:
    norm = nn.BatchNorm1d(3)
    norm.eval()
    model = nn.Sequential(nn.Linear(3, 3), norm, nn.Dropout(0.5), nn.BatchNorm1d(3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    program = program_from_module(model, (torch.randn(4, 3),))
    with Runner(make_plan(program, Placement((0, 1, 2, 0))), program) as runner:
        assert not compare_outputs(runner).wrong
    assert [part.training for part in model.modules()] == [True, True, False, True, True]
    assert differences(before, dict(model.state_dict())) == []


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # inside of the fused kernels
def test_fused_kernels_of_an_encoder_are_no_difference() -> None:
    """Where no gradient is wanted, PyTorch's encoder writes zeros where nothing is, and rounds in another way."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    padded = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    program = program_from_module(model, (torch.randn(2, 5, 8),), {"src_key_padding_mask": padded})
    with torch.no_grad():
        args, kwargs = program.example_arguments
        assert model(*args, **kwargs)[1, 3:].count_nonzero() == 0  # or else this test is no longer needed
    assert torch.backends.mha.get_fastpath_enabled()
    with Runner(make_plan(program, alternating(program)), program) as runner:
        assert not compare_outputs(runner).wrong
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_single_element_of_a_wider_view_is_compared() -> None:
    x = torch.tensor([1.0, 2.0])[::2]  # [1] with the stride 2, which contiguous() leaves as it is
    assert differences(x, x.clone()) == []
    assert differences(x, x + 1) == ["the output differs in 1 of 1 elements, by 1 at most"]


ALLOWED = {torch.float32: 1e-3}


def test_what_may_be_rounded_otherwise_is_told_apart_from_what_is_wrong() -> None:
    expected = torch.tensor([2.0, -4.0, 1.0])
    near, far = torch.tensor([2.0, -4.001, 1.0]), torch.tensor([2.0, -4.0, 1.01])
    assert answers(expected, expected.clone(), ALLOWED) == Answers(())
    close = answers((expected, 3), (near, 3), ALLOWED)
    assert close.wrong == ()
    assert close.rounding == pytest.approx(0.001 / 4, rel=1e-3)  # of the largest element
    assert answers(expected, far, ALLOWED).wrong == ("the output differs in 1 of 3 elements, by 0.01 at most",)
    assert answers(expected, near, {}).wrong == ("the output differs in 1 of 3 elements, by 0.001 at most",)
    assert answers((expected, 3), (near, 4), ALLOWED).wrong == ("output [1] is 4, expected 3",)


def test_a_zero_may_lose_its_sign_where_sums_are_rounded_otherwise() -> None:
    zero, lost = torch.tensor([0.0, 2.0]), torch.tensor([-0.0, 2.0])
    assert answers(zero, lost, ALLOWED) == Answers(())
    assert answers(zero, lost, {}).wrong == ("the output differs in 1 of 2 elements, by 0 at most",)


@pytest.mark.parametrize("got", [torch.tensor([NAN, 1.0]), torch.tensor([INF, 1.0]), torch.ones(1), 3])
def test_no_number_and_no_other_form_is_rounding(got: Any) -> None:
    assert len(answers(torch.ones(2), got, ALLOWED).wrong) == 1


def test_whole_numbers_are_not_rounded() -> None:
    assert answers(torch.tensor([1]), torch.tensor([2]), ALLOWED).wrong == (
        "the output differs in 1 of 1 elements, by 1 at most",
    )


@pytest.mark.parametrize("name", ["branches", "recurrent", "attention", "tied"])
def test_a_plan_with_quick_kernels_rounds_otherwise(name: str) -> None:
    program = program_of(name)
    cluster = desk()
    quick = replace(cluster, devices=tuple(replace(device, kernels="quick") for device in cluster.devices))
    with Runner(make_plan(program, alternating(program), quick), program) as runner:
        found = compare_outputs(runner)
    assert found.wrong == ()
    assert found.rounding < 1e-5
