"""What operators take in memory, as seen at import, with the bytes written out."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from graphs.footprint import Backward, Footprint, Gradient, Run
from graphs.importers import footprints
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from tests.costmodels.sketches import unrecorded


class Of(nn.Module):
    """A function of its input behind a parameter, or of the input itself."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.w = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Any:
        """The function of x times a parameter."""
        return self.function(x * self.w)


def recorded(module: nn.Module, *inputs: Tensor, training: bool = True) -> dict[str, Footprint]:
    """The footprints by the name of the operator."""
    graph = program_from_module(module, inputs, training=training).graph
    assert unrecorded(graph, training=True) == ()
    return {op.name: op.footprint for op in graph.ops if op.footprint is not None}


X = torch.ones(2, 8, 4)  # 64 elements, 256 bytes


@pytest.mark.parametrize(
    ("name", "function", "run", "backward"),
    [
        ("relu", torch.relu, Run((256,)), Backward(("relu",), 0, (Gradient("mul", 256),))),
        ("gelu", nn.functional.gelu, Run((256,)), Backward(("mul",), 0, (Gradient("mul", 256),))),
        # the gradient of a view is a view of the one that came
        ("view", lambda x: x.view(16, 4), Run(("mul",)), Backward((), 0, (Gradient("mul", "view", True),))),
        # adding hands on the gradient as it is
        ("add", lambda x: x + 1, Run((256,)), Backward((), 0, (Gradient("mul", "add"),))),
        # half of the rows: the gradient has zeros in the other half
        ("slice_1", lambda x: x[:1], Run(("mul",)), Backward((), 0, (Gradient("mul", 256),))),
        # what is squared is read twice and saved once; two gradients, one of them gone after their sum
        ("mul_1", lambda x: x * x, Run((256,)), Backward(("mul",), 0, (Gradient("mul", 256),), 256)),
        # numbers of the maxima, 8 bytes each, are kept
        ("max_pool1d", lambda x: nn.functional.max_pool1d(x, 2), Run((128,)), None),
        # dropped behind a mask of floats
        ("dropout", nn.functional.dropout, Run((256,)), Backward((), 256, (Gradient("mul", 256),))),
        # nothing goes back through numbers
        ("argmax", lambda x: x.argmax(-1), Run((128,)), Backward()),
    ],
)
def test_an_operator_in_training(name: str, function: Callable[..., Any], run: Run, backward: Backward | None) -> None:
    footprint = recorded(Of(function), X)[name]
    assert footprint.training == run
    if backward is not None:
        assert footprint.backward == backward
    else:
        assert footprint.backward is not None
        assert footprint.backward.saved == ("mul",)
        assert footprint.backward.saved_bytes == 16 * 2 * 8


def test_in_inference_nothing_is_saved_and_dropout_does_nothing() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.Dropout())
    found = recorded(module, torch.ones(1, 3, 6, 6), training=False)
    assert found["conv2d"].inference == Run((4 * 4 * 4 * 4,))
    assert found["max_pool2d"].inference == Run((4 * 2 * 2 * 4,), 4 * 2 * 2 * 8)  # the numbers, dropped at once
    assert found["dropout"].inference == Run(("max_pool2d",))


def test_inputs_and_frozen_parameters_get_no_gradient() -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 6))
    module[0].requires_grad_(False)
    found = recorded(module, torch.ones(3, 4))
    assert found["linear"].backward == Backward()
    second = found["linear_1"].backward
    assert second is not None
    assert second.saved == ("linear",)  # for the gradient of the weight; no other goes further
    assert [gradient.tensor for gradient in second.gradients] == ["1.weight", "1.bias"]


def test_where_no_parameter_is_trained_all_are() -> None:
    module = nn.Linear(4, 5).requires_grad_(False)  # as every network that comes from an ONNX file
    backward = recorded(module, torch.ones(3, 4))["linear"].backward
    assert backward is not None
    assert [gradient.tensor for gradient in backward.gradients] == ["weight", "bias"]


def test_word_numbers_get_no_gradient_but_are_saved() -> None:
    backward = recorded(nn.Embedding(10, 4), torch.ones(3, dtype=torch.long))["embedding"].backward
    assert backward == Backward(("input",), 0, (Gradient("weight", 160),))


def test_a_batch_norm_trains_with_the_statistics_of_its_batch() -> None:
    backward = recorded(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)), torch.ones(2, 3, 5, 5))[
        "batch_norm"
    ].backward
    assert backward is not None
    assert (backward.saved, backward.saved_bytes) == (
        ("conv2d",),
        2 * 4 * 4,
    )  # mean and inverse deviation of 4 channels


def test_in_place_operators_are_recorded_as_what_they_were_rewritten_to() -> None:
    found = recorded(nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), torch.ones(3, 4))
    assert found["relu_"].training == Run((48,))


def test_an_lstm_keeps_the_workspace_that_its_stand_in_hides() -> None:
    found = recorded(nn.LSTM(16, 32, batch_first=True), torch.ones(1, 5, 16))
    backward = next(f.backward for name, f in found.items() if name.startswith("lstm"))
    assert backward is not None
    assert backward.saved_bytes >= 5 * 4 * 32 * 4  # four gates at five times


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operators that are run from now on, in a process that has recorded none before."""
    ran: list[str] = []
    record = footprints._record

    def counted(call: Any, *rest: Any) -> Any:
        ran.append(str(call.target))
        return record(call, *rest)

    monkeypatch.setattr(footprints, "_record", counted)
    monkeypatch.setattr(footprints, "_records", OrderedDict())
    return ran


def test_operators_that_are_alike_are_run_once(ran: list[str]) -> None:
    found = recorded(nn.Sequential(*(nn.Linear(4, 4) for _ in range(6))), torch.ones(3, 4))
    # in inference, in training at the start where the input has no gradient, and once for the five others
    assert (len(found), len(ran)) == (6, 3)


def test_another_program_runs_what_is_new_in_it(ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    first = recorded(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(3, 4))
    ran.clear()
    again = recorded(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 5)), torch.ones(3, 4))
    assert again["linear"] == first["linear"]
    assert ran == ["aten.linear.default"] * 2  # in inference and in training
    monkeypatch.setattr(footprints, "RECORDS", len(footprints._records))
    recorded(nn.Linear(5, 6), torch.ones(3, 5))
    assert len(footprints._records) == footprints.RECORDS  # what was used longest ago is forgotten


def test_what_torch_computes_otherwise_is_run_again() -> None:
    def bytes_saved() -> int:
        backward = recorded(Of(lambda x: attention(x, x, x)), torch.ones(1, 2, 8, 4))["scaled_dot_product_attention"]
        assert backward.backward is not None
        return backward.backward.saved_bytes

    attention = nn.functional.scaled_dot_product_attention
    fused = bytes_saved()
    with sdpa_kernel(SDPBackend.MATH):
        assert bytes_saved() > fused
    assert bytes_saved() == fused


def test_a_users_operator_is_run_for_every_program(ran: list[str]) -> None:
    @torch.library.custom_op("footprints::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return x * 2

    twice.register_fake(lambda x: x * 2)
    for _ in range(2):
        program_from_module(Of(twice), (X,))
    assert ran.count("footprints.twice.default") == 4


@pytest.mark.usefixtures("ran")
def test_what_cannot_be_run_without_values_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    run = footprints._OperatorCall.run

    def failing(self: Any, tensors: Any) -> Any:
        if "relu" in str(self.target):
            raise RuntimeError("no stand-in")
        return run(self, tensors)

    monkeypatch.setattr(footprints._OperatorCall, "run", failing)
    program: Program = program_from_module(
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), (torch.ones(3, 4),)
    )
    assert unrecorded(program.graph) == unrecorded(program.graph, training=True) == ("relu",)
    last = program.graph.ops[-1].footprint
    assert last is not None  # what comes after is recorded, with the gradient that relu wants
    assert last.backward is not None
    assert last.backward.gradients[0] == Gradient("relu", 48)


@pytest.mark.usefixtures("ran")
def test_what_has_no_backward_pass_on_fake_tensors_is_reported_for_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise RuntimeError("no stand-in")

    monkeypatch.setattr(footprints._Recording, "_backward", failing)
    graph = program_from_module(nn.Linear(4, 4), (torch.ones(3, 4),)).graph
    assert unrecorded(graph) == ()
    assert unrecorded(graph, training=True) == ("linear",)


def test_weights_without_values_are_recorded_as_on_a_cpu() -> None:
    real = program_from_module(nn.Linear(4, 4), (torch.ones(3, 4),))
    with torch.device("meta"):
        meta = program_from_module(nn.Linear(4, 4), (torch.ones(3, 4),))
    assert meta.graph.ops == real.graph.ops
