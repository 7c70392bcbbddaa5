"""oneDNN called by its own interface against PyTorch's operators."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from costmodels.host.affinity import use_threads
from graphs.kernels.dnnl import library
from graphs.kernels.multiply import Multiply, PackedConvolution, PackedProduct, SequenceConvolution
from graphs.kernels.primitive import OWN
from graphs.rewrites.patterns import Step

ACTIVATIONS = [
    Step("relu"),
    Step("leaky_relu", (0.2,)),
    Step("tanh"),
    Step("sigmoid"),
    Step("gelu", algorithm="none"),
    Step("gelu", algorithm="tanh"),
    Step("swish"),
    Step("hardtanh", (-0.3, 0.6)),
    Step("hardswish"),
]
AFTER: list[tuple[Step, ...]] = [(), *((step,) for step in ACTIVATIONS), (Step("mul", other="o"),)]
GEOMETRIES: list[tuple[Any, ...]] = [
    (),
    ((1, 1), (1, 1)),
    ((2, 2), (0, 1), (1, 1), 4),
    ((1, 2), (2, 2), (2, 2), 1),
    ((1, 1), (1, 1), (1, 1), 8),
]

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(library() is None, reason="oneDNN's wheel is for Linux on x86-64"),
]


def both(multiply: Multiply, *given: torch.Tensor | None, known: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """The results of oneDNN, which has to know a quick primitive if it is ``known`` to, and of PyTorch's operator."""
    x, weight, bias, other = given
    assert x is not None
    assert weight is not None
    own, packed = multiply.pack(weight), multiply.pack_for_torch(weight)
    assert not (known and own.is_mkldnn)
    with torch.no_grad():
        for _ in range(2):  # made, and made use of again
            got = multiply(x, own, bias, *([] if other is None else [other]))
        return got, multiply.by_torch(x, packed, bias, other)


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("steps", [*AFTER, (Step("add", other="o"), Step("relu"))])
def test_convolutions_have_the_bits_of_pytorch(geometry: Sequence[Any], steps: tuple[Step, ...]) -> None:
    x, groups = torch.randn(2, 8, 9, 11), geometry[3] if len(geometry) == 4 else 1
    weight, bias = torch.randn(16, 8 // groups, 3, 3), torch.randn(16)
    known = groups == 1 or "AVX512" in torch.backends.cpu.get_cpu_capability()  # else 3.2 and 3.12 differ
    for added in (bias, None):
        convolution = PackedConvolution(x.shape, weight.shape, geometry, added is not None, steps)
        plain = torch.conv2d(x, weight, added, *geometry)
        other = torch.randn(plain.shape) if any(step.other for step in steps) else None
        got, expected = both(convolution, x, weight, added, other, known=known)
        if known and not OWN.keys() & set(steps):
            assert torch.equal(got, expected)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
        assert got.stride() == expected.stride()


@pytest.mark.parametrize("geometry", [(), ((2,), (1,)), ((1,), (4,), (4,), 1), ((1,), (2,), (2,), 4)])
@pytest.mark.parametrize("steps", [*AFTER, (Step("add", other="o"), Step("relu"))])
def test_convolutions_of_sequences(geometry: Sequence[Any], steps: tuple[Step, ...]) -> None:
    x, groups = torch.randn(2, 8, 19), geometry[3] if len(geometry) == 4 else 1
    weight, bias = torch.randn(16, 8 // groups, 3), torch.randn(16)
    convolution = SequenceConvolution(x.shape, weight.shape, geometry, True, steps)
    plain = torch.conv1d(x, weight, bias, *geometry)
    other = torch.randn(plain.shape) if any(step.other for step in steps) else None
    got, expected = both(convolution, x, weight, bias, other, known=groups == 1)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert got.shape == plain.shape
    assert got.stride() == convolution.result.strides
    if not steps:
        torch.testing.assert_close(got, plain, rtol=1e-5, atol=1e-5)


def test_a_border_of_zeros_takes_no_copy() -> None:
    x, weight = torch.randn(1, 8, 9, 11), torch.randn(16, 8, 3, 3)
    border = (0, 2, 1, 0)
    convolution = PackedConvolution(x.shape, weight.shape, ((2, 1), (0, 1)), False, border=border)
    got, by_torch = both(convolution, x, weight, None, None)
    expected = torch.conv2d(torch.nn.functional.pad(x, border), weight, None, (2, 1), (0, 1))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(by_torch, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("steps", [*AFTER, (Step("add", other="o"),)])
def test_products_agree_with_pytorch(steps: tuple[Step, ...]) -> None:
    x, weight, bias = torch.randn(3, 5, 12), torch.randn(7, 12), torch.randn(7)
    other = torch.randn(15, 7) if any(step.other for step in steps) else None
    for added, shape in ((bias, None), (None, (15, 7))):
        got, expected = both(PackedProduct(x.shape, 7, added is not None, steps, shape), x, weight, added, other)
        assert got.shape == expected.shape
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("steps", [(), (Step("relu"),), (Step("gelu", algorithm="tanh"),)])
@pytest.mark.parametrize("outputs", [1, 16, 17, 1024, 3072])
def test_rows_of_a_weight_do_not_collide_in_the_cache(
    outputs: int, steps: tuple[Step, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The product of a processor without AVX-512, whatever this one is."""
    monkeypatch.setattr("graphs.kernels.primitive.PACKS_NOTHING", "")
    x, weight, bias = torch.randn(5, 12), 10 * torch.randn(outputs, 12), torch.randn(outputs)
    product = PackedProduct(x.shape, outputs, True, steps)
    lines, rest = divmod(len(product.pack(weight)), 12 * 64)
    assert lines % 2 == 1
    assert rest == 0
    got, expected = both(product, x, weight, bias, None)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_a_device_of_several_cores_has_pytorch_s_operator() -> None:
    product = PackedProduct((4, 8), 3, True)
    weight, bias, x = torch.randn(3, 8), torch.randn(3), torch.randn(4, 8)
    use_threads(2)
    packed = product.pack(weight)
    assert packed.is_mkldnn
    torch.testing.assert_close(product(x, packed, bias), torch.nn.functional.linear(x, weight, bias))


def test_threads_have_primitives_of_their_own() -> None:
    """Two threads call one kernel at once, with results that differ in the batch that they were given."""
    from concurrent.futures import ThreadPoolExecutor

    convolution = PackedConvolution((1, 16, 24, 24), (16, 16, 3, 3), ((1, 1), (1, 1)), False)
    weight = torch.randn(16, 16, 3, 3)
    packed = convolution.pack(weight)
    images = [torch.randn(1, 16, 24, 24) for _ in range(2)]

    def many(x: torch.Tensor) -> list[torch.Tensor]:
        use_threads(1)
        return [convolution(x, packed) for _ in range(200)]

    expected = [convolution(x, packed) for x in images]
    with ThreadPoolExecutor(2) as pool:
        for results, alone in zip(pool.map(many, images), expected, strict=True):
            assert all(torch.equal(result, alone) for result in results)
