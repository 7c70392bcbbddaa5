"""Quicker kernels give the same bits with the same strides, whatever they are given."""

import inspect

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from graphs.importers.from_torch import program_from_module
from graphs.kernels.kernel import Kernel
from graphs.kernels.kernels import (
    EXACT_KERNELS,
    LEAST_CHANNELS,
    LEAST_ELEMENTS,
    avg_pool3d,
    kernel_of,
    max_pool2d,
)

POOL = torch.ops.aten.max_pool2d.default
AVERAGE = torch.ops.aten.avg_pool3d.default
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit, so that NaN is itself and -0.0 is not 0.0."""
    bits = [tensor.contiguous().reshape(-1, 1).view(torch.uint8) for tensor in (a, b)]
    return a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(*bits)


def image(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """With numbers that appear several times, zeros of both signs, infinities and NaN."""
    numbers = torch.randint(-9, 9, shape, generator=torch.Generator().manual_seed(seed)).to(dtype) / 4
    flat = numbers.view(-1)
    flat[::7], flat[3::11], flat[5::13], flat[1::101] = -0.0, 0.0, float("-inf"), float("nan")
    return numbers


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(3, 40), st.integers(3, 40)),
    window=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    padded=st.booleans(),
    ceil_mode=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    seed=st.integers(0, 9),
)
def test_pooling_has_the_same_bits(
    shape: tuple[int, ...],
    window: tuple[int, int],
    stride: int,
    dilation: int,
    padded: bool,
    ceil_mode: bool,
    dtype: torch.dtype,
    seed: int,
) -> None:
    if any(dilation * (w - 1) + 1 > n for w, n in zip(window, shape[2:], strict=True)):
        return  # nothing is left
    padding = [w // 2 if padded else 0 for w in window]
    x = image(*shape, dtype=dtype, seed=seed)
    arguments = (x, [*window], [stride, stride], padding, [dilation, dilation], ceil_mode)
    assert same(max_pool2d(*arguments), POOL(*arguments))


def test_a_large_image_is_pooled_with_its_channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def pool(x: torch.Tensor, *rest: object) -> torch.Tensor:
        seen.append(x.is_contiguous(memory_format=torch.channels_last))
        return torch.max_pool2d(x, *rest)  # type: ignore[arg-type]  # what the operator gets

    monkeypatch.setattr(torch.ops.aten.max_pool2d, "default", pool)
    side = 1 + int((LEAST_ELEMENTS / LEAST_CHANNELS) ** 0.5)
    large = image(1, LEAST_CHANNELS, side, side)
    for x in (
        large,
        image(1, LEAST_CHANNELS - 1, side, side),
        image(1, LEAST_CHANNELS, 4, 4),
        large[0],
        large.half(),
        large.transpose(2, 3),
    ):
        max_pool2d(x, [2, 2])
    assert seen == [True, False, False, False, False, False]


@given(
    shape=st.tuples(st.integers(1, 2), st.integers(1, 2), *[st.integers(3, 12)] * 3),
    length=st.integers(1, 4),
    area=st.sampled_from([(1, 1), (1, 1), (1, 1), (2, 1), (1, 3)]),
    stride=st.sampled_from([[], [1], [1, 1, 1], [2, 1, 1]]),
    padded=st.booleans(),
    divisor=st.none() | st.integers(1, 7),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 9),
    lying=st.sampled_from(["plain", "plain", "last", "across"]),
)
def test_averaging_over_neighbouring_channels_has_the_same_bits(
    shape: tuple[int, ...],
    length: int,
    area: tuple[int, int],
    stride: list[int],
    padded: bool,
    divisor: int | None,
    dtype: torch.dtype,
    seed: int,
    lying: str,
) -> None:
    if length > shape[2]:
        return  # nothing is left
    x = image(*shape, dtype=dtype, seed=seed) / 3
    x = x.to(memory_format=torch.channels_last_3d) if lying == "last" else x
    x = x.transpose(3, 4).contiguous().transpose(3, 4) if lying == "across" else x
    arguments = (x, [length, *area], stride, [length // 2 if padded else 0, 0, 0], False, True, divisor)
    assert same(avg_pool3d(*arguments), AVERAGE(*arguments))


def test_a_local_response_norm_is_the_modules() -> None:
    norm, x = nn.LocalResponseNorm(5, alpha=1e-2, beta=0.75), image(2, 20, 9, 9)
    program = program_from_module(norm, (x,))
    env = {program.graph.inputs[0]: x}
    for op in program.graph.ops:
        args, kwargs = program.arguments(op, env.__getitem__)
        env[op.outputs[0]] = kernel_of(program, op, CPU).target(*args, **kwargs)
    assert avg_pool3d in [kernel_of(program, op, CPU).target for op in program.graph.ops]
    assert same(env[program.graph.outputs[0]], norm(x))


def test_a_window_longer_than_there_are_channels_is_refused_by_the_operator() -> None:
    with pytest.raises(RuntimeError, match="smaller than kernel size"):
        avg_pool3d(torch.ones(1, 1, 3, 2, 2), [4, 1, 1], [1])


def test_what_gets_a_gradient_is_left_alone() -> None:
    x = torch.randn(1, 32, 28, 28).requires_grad_()
    arguments = ([3, 3], [1, 1], [1, 1])
    found, expected = (torch.autograd.grad(pool(x, *arguments).sum(), x)[0] for pool in (max_pool2d, POOL))
    assert same(found, expected)
    with torch.no_grad():
        assert same(max_pool2d(x, *arguments), POOL(x, *arguments))
    window = [2, 1, 1], [1]
    found, expected = (torch.autograd.grad(pool(x[None], *window).sum(), x)[0] for pool in (avg_pool3d, AVERAGE))
    assert same(found, expected)


@pytest.mark.parametrize("target", EXACT_KERNELS)
def test_arguments_are_those_of_the_operator(target: torch._ops.OpOverload) -> None:
    ours = inspect.signature(EXACT_KERNELS[target]).parameters.values()
    theirs = target._schema.arguments
    assert [p.name for p in ours][1:] == [a.name for a in theirs][1:]
    assert [p.default is inspect.Parameter.empty for p in ours] == [not a.has_default_value() for a in theirs]


def test_other_operators_and_other_devices_keep_their_own() -> None:
    net = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    program = program_from_module(net, (torch.ones(1, 1, 4, 4),))
    relu, pool = program.graph.ops
    assert kernel_of(program, pool, CPU) == Kernel(pool, max_pool2d, CPU)
    assert kernel_of(program, pool, GPU) == Kernel(pool, POOL, GPU)
    assert kernel_of(program, relu, CPU) == Kernel(relu, torch.ops.aten.relu.default, CPU)


def test_a_view_asks_for_an_order_that_only_exact_kernels_of_a_cpu_keep() -> None:
    class Flat(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(2, 8)

    program = program_from_module(Flat(), (torch.ones(2, 2, 4),))
    (view,) = program.graph.ops
    assert kernel_of(program, view, CPU).target is torch.ops.aten.view.default
    assert kernel_of(program, view, GPU).target is torch.ops.aten.reshape.default
    assert kernel_of(program, view, CPU, "quick").target is torch.ops.aten.reshape.default
