"""Kernels with packed weights: the same bits, or the same but for rounding; and what is left as it is."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from costmodels.calibrate.clock import clock_of
from costmodels.calibrate.runs import Inference
from costmodels.cluster.cluster import Device
from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.kernels.choice import KERNELS, Kernels
from graphs.kernels.kernels import kernel_of
from graphs.kernels.multiply import PackedProduct
from graphs.kernels.onednn import check_quick, lstm_kernel
from graphs.kernels.quick import quick_kernel
from graphs.program.program import Program

CPU = torch.device("cpu")
CLOSE = 1e-5  # of the largest element; float32 has 6e-8

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


def program_with(module: nn.Module, *inputs: torch.Tensor) -> Program:
    return program_from_module(module.eval(), inputs)


def run(program: Program, kernels: Kernels = "quick") -> Any:
    """The results of the program with such kernels."""
    device = Device("cpu0", "cpu", 1e9, {"float32": 1e11}, 1e10, cores=(0,))
    with torch.no_grad():
        inference = Inference(program, CPU, clock_of(device), kernels=kernels)
        env = dict(inference.given)
        inference.run(env, 0, len(inference.ops))
    return program.unflatten(env)


def check_close(program: Program) -> None:
    expected = torch.utils._pytree.tree_leaves(program.run(*program.example_inputs))
    got = torch.utils._pytree.tree_leaves(run(program))
    assert len(expected) == len(got)
    for a, b in zip(expected, got, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert not a.numel() or float((a - b).abs().max()) <= CLOSE * float(a.abs().max())


def chosen(program: Program) -> list[str]:
    """Kinds of the operators that have a kernel with packed weights."""
    kernels = ((op.kind, quick_kernel(program, op) or lstm_kernel(program, op)) for op in program.graph.ops)
    return [kind for kind, kernel in kernels if kernel and kernel.packs]


@settings(max_examples=40)
@given(data=st.data())
def test_convolutions_of_any_form(data: st.DataObject) -> None:
    groups = data.draw(st.sampled_from((1, 1, 2, 4)), "groups")
    inputs, outputs = (groups * data.draw(st.integers(1, 9), what) for what in ("inputs", "outputs"))
    kernel = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)), "kernel")
    stride, dilation = (data.draw(st.tuples(st.integers(1, 2), st.integers(1, 2)), what) for what in "sd")
    padding = data.draw(st.tuples(st.integers(0, 2), st.integers(0, 2)), "padding")
    bias = data.draw(st.booleans(), "bias")
    torch.manual_seed(data.draw(st.integers(0, 99), "seed"))
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, groups, bias)
    program = program_with(convolution, torch.randn(data.draw(st.integers(1, 3), "n"), inputs, 9, 11))
    assert chosen(program) == ["aten.conv2d.default"]
    check_close(program)


@settings(max_examples=40)
@given(
    leading=st.lists(st.integers(1, 5), max_size=3),
    widths=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_linear_layers_of_any_form(leading: list[int], widths: tuple[int, int], bias: bool, seed: int) -> None:
    torch.manual_seed(seed)
    program = program_with(nn.Linear(*widths, bias=bias), torch.randn(*leading, widths[0]))
    assert chosen(program) == ["aten.linear.default"]
    check_close(program)


@settings(max_examples=20)
@given(
    layers=st.integers(1, 3),
    both=st.booleans(),
    first=st.booleans(),
    sizes=st.tuples(*[st.integers(1, 20)] * 4),
    seed=st.integers(0, 99),
)
def test_lstms_of_any_form_have_the_same_bits(
    layers: int, both: bool, first: bool, sizes: tuple[int, int, int, int], seed: int
) -> None:
    n, steps, width, size = sizes
    torch.manual_seed(seed)
    module = nn.LSTM(width, size, layers, batch_first=first, bidirectional=both)
    program = program_with(module, torch.randn(n, steps, width) if first else torch.randn(steps, n, width))
    assert chosen(program) == ["aten.lstm.input"]
    expected = torch.utils._pytree.tree_leaves(program.run(*program.example_inputs))
    for kernels in KERNELS:
        got = torch.utils._pytree.tree_leaves(run(program, kernels))
        if kernels == "quick" and n == 1:  # see graphs.kernels.recurrent
            torch.testing.assert_close(got, expected)
        else:
            assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(expected, got, strict=True))


class Product(nn.Module):
    """addmm, as GPT-2 has its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x, self.weight)


class Images(nn.Module):
    """Channels lie last from the first convolution on, and a view and a sum over them come after."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.norm, self.pool, self.linear = nn.BatchNorm2d(8), nn.MaxPool2d(2), nn.Linear(8 * 4 * 4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.pool(torch.relu(self.norm(self.first(x))))
        y = torch.cat([y[:, :4], self.second(y)[:, 4:]], dim=1)
        result: torch.Tensor = self.linear(y.view(len(y), -1))
        return result


class Tied(nn.Module):
    """One weight as the rows of an embedding, as a matrix, and transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 6)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        result: torch.Tensor = torch.nn.functional.linear(x, self.words.weight) + x.sum()
        return result


@pytest.mark.parametrize(
    ("made", "kinds"),
    [
        (lambda: (Product(), (torch.randn(3, 6),)), ["addmm"]),
        (lambda: (Images(), (torch.randn(2, 3, 8, 8),)), ["conv2d", "conv2d", "linear"]),
        (lambda: (Tied(), (torch.arange(5),)), ["linear"]),
    ],
)
def test_small_networks(made: Callable[[], Made], kinds: list[str]) -> None:
    torch.manual_seed(0)
    module, inputs = made()
    program = program_with(module, *inputs)
    assert [kind.split(".")[1] for kind in chosen(program)] == kinds
    check_close(program)


class Computed(nn.Module):
    """A weight that the network computes cannot be packed once."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.nn.functional.linear(x, weight * 2)
        return result


@pytest.mark.parametrize(
    "made",
    [
        lambda: (Computed(), (torch.randn(2, 3), torch.randn(4, 3))),
        lambda: (nn.Linear(3, 4).double(), (torch.randn(2, 3).double(),)),
        lambda: (nn.Linear(3, 4), (torch.randn(0, 3),)),
        lambda: (nn.Conv2d(3, 4, 1), (torch.randn(3, 5, 5),)),  # an image without a batch
        lambda: (nn.Conv1d(3, 4, 1), (torch.randn(3, 5),)),
        lambda: (nn.Conv3d(3, 4, 1), (torch.randn(1, 3, 5, 2, 2),)),
        lambda: (nn.LSTM(3, 4, bias=False), (torch.randn(2, 1, 3),)),
        lambda: (nn.LSTM(3, 4, proj_size=2), (torch.randn(2, 1, 3),)),
    ],
)
def test_what_is_left_as_it_is(made: Callable[[], Made]) -> None:
    module, inputs = made()
    program = program_with(module, *inputs)
    assert chosen(program) == []
    check_close(program)


def test_other_devices_exact_ones_and_training_keep_the_operator() -> None:
    program = program_with(nn.Linear(3, 4), torch.randn(2, 3))
    (op,) = program.graph.ops
    for torch_device, kernels in ((CPU, "exact"), (CPU, None), (torch.device("cuda", 0), "quick")):
        kernel = kernel_of(program, op, torch_device, kernels)  # type: ignore[arg-type]  # two of the kernels
        assert (kernel.target, kernel.packs) == (torch.ops.aten.linear.default, {})
    assert isinstance(kernel_of(program, op, CPU, "quick").target, PackedProduct)
    recurrent = program_with(nn.LSTM(3, 4), torch.randn(2, 1, 3))
    op = recurrent.graph.ops[-1]
    assert kernel_of(recurrent, op, CPU).target is torch.ops.aten.lstm.input
    assert set(kernel_of(recurrent, op, CPU, "exact").packs) == {"weight_ih_l0", "weight_hh_l0"}


def test_a_pytorch_without_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    check_quick()
    program = program_with(nn.Linear(3, 4), torch.randn(2, 3))
    monkeypatch.setattr(torch._C, "_has_mkldnn", False)
    with pytest.raises(InputError) as error:
        check_quick()
    assert str(error.value) == "this PyTorch has no oneDNN, or it is switched off: ask for exact kernels"
    assert chosen(program) == []


def test_onednn_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_with(nn.LSTM(3, 4), torch.randn(2, 1, 3))  # before: torch.export puts back what it finds
    monkeypatch.setattr(torch._C, "_get_mkldnn_enabled", lambda: False)
    assert chosen(program) == []
