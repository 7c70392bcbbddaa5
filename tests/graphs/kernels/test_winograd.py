"""Convolutions by Winograd's algorithm against PyTorch's in double precision."""

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.host.affinity import use_threads
from graphs.kernels import winograd
from graphs.kernels.dnnl import Library, library
from graphs.kernels.multiply import TiledConvolution
from graphs.kernels.primitive import Primitive
from graphs.kernels.winograd import Winograd
from graphs.rewrites.patterns import Step

ROUNDING = 4e-6  # as a share of the largest element; a direct convolution has 5e-7
STEPS = [
    (),
    (Step("relu"),),
    (Step("leaky_relu", (0.2,)),),
    (Step("swish"),),
    (Step("hardtanh", (-0.3, 0.6)),),
    (Step("add", other="o"),),
    (Step("add", other="o"), Step("relu")),
    (Step("add", other="o"), Step("swish")),
]
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "leaky_relu": lambda x: torch.maximum(x, 0.2 * x),
    "swish": lambda x: x * x.sigmoid(),
    "hardtanh": lambda x: x.clamp(-0.3, 0.6),
}

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(library() is None, reason="oneDNN's wheel is for Linux on x86-64"),
]


def convolution(
    x: Sequence[int], filters: Sequence[int], steps: Sequence[Step] = (), **given: object
) -> TiledConvolution:
    geometry = (1, 1), (filters[-1] // 2, filters[-1] // 2)
    return TiledConvolution(x, filters, geometry, True, steps, **given)  # type: ignore[arg-type]


def check(own: TiledConvolution, x: torch.Tensor, weight: torch.Tensor, steps: Sequence[Step] = ()) -> None:
    """Hold a convolution with random biases against PyTorch's in double precision."""
    assert isinstance(own.primitive, Winograd)
    bias = torch.randn(len(weight))
    padded = torch.nn.functional.pad(x, own._border)
    expected = torch.conv2d(padded.double(), weight.double(), bias.double(), 1, weight.shape[-1] // 2)
    added = [torch.randn(expected.shape) for step in steps if step.other]
    for other in added:
        expected += other
    allowed = ROUNDING * expected.abs().max()
    for step in steps:
        expected = expected if step.other else FUNCTIONS[step.function](expected)
    packed = own.pack(weight)
    for _ in range(2):  # made, and made use of again
        got = own(x, packed, bias, *added)
        assert (got - expected).abs().max() <= allowed
        assert got.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("steps", STEPS)
def test_it_computes_what_a_convolution_and_its_steps_compute(size: int, steps: tuple[Step, ...]) -> None:
    x, weight = torch.randn(2, 48, 27, 30), torch.randn(72, 48, size, size)
    check(convolution(x.shape, weight.shape, steps), x, weight, steps)


@settings(max_examples=25, deadline=None)
@given(
    images=st.tuples(st.integers(1, 3), st.integers(1, 90), st.integers(1, 19), st.integers(1, 19)),
    outputs=st.integers(1, 90),
    size=st.sampled_from(winograd.SIZES),
    border=st.tuples(*[st.integers(0, 2)] * 4),
    band=st.sampled_from([1, 2**14, 2**21]),
)
def test_any_images_in_any_bands(
    images: tuple[int, ...], outputs: int, size: int, border: tuple[int, ...], band: int
) -> None:
    """Also where it does not pay: more tiles than bands, tiles over the edge, blocks of channels that are not full."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(winograd, "LEAST_GAIN", 0.0)
        patch.setattr(winograd, "BAND_BYTES", band)
        x, weight = torch.randn(images), torch.randn(outputs, images[1], size, size)
        check(convolution(x.shape, weight.shape, border=border), x, weight)


@pytest.mark.parametrize("outputs", [128, 384, 200])
def test_filters_lie_in_panels_or_not(outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor without AVX-512, and as on any other, whatever this one is."""
    x, weight = torch.randn(1, 64, 24, 24), torch.randn(outputs, 64, 3, 3)
    for as_they_lie in ("", "none of them"):
        monkeypatch.setattr(winograd, "PACKS_NOTHING", as_they_lie)
        check(convolution(x.shape, weight.shape), x, weight)


@pytest.mark.parametrize(
    ("x", "filters", "geometry"),
    [
        ((1, 512, 7, 7), (512, 512, 3, 3), ((1, 1), (1, 1))),  # filters are most of what is read
        ((1, 3, 224, 224), (64, 3, 3, 3), ((1, 1), (1, 1))),  # transforms are most of the work
        ((1, 64, 56, 56), (64, 64, 1, 1), ((1, 1), (0, 0))),
        ((1, 64, 56, 56), (64, 64, 7, 7), ((1, 1), (3, 3))),
        ((1, 64, 56, 56), (64, 64, 1, 3), ((1, 1), (0, 1))),
        ((1, 64, 56, 56), (64, 64, 3, 3), ((2, 2), (1, 1))),
        ((1, 64, 56, 56), (64, 64, 3, 3), ((1, 1), (2, 2), (2, 2))),
        ((1, 64, 56, 56), (64, 2, 3, 3), ((1, 1), (1, 1), (1, 1), 32)),
    ],
)
def test_what_it_does_not_pay_for_is_direct(
    x: Sequence[int], filters: Sequence[int], geometry: Sequence[Sequence[int] | int]
) -> None:
    assert isinstance(TiledConvolution(x, filters, geometry, True).primitive, Primitive)


def test_a_product_by_another_tensor_is_direct() -> None:
    steps = (Step("mul", other="o"),)
    assert isinstance(convolution((1, 64, 56, 56), (64, 64, 3, 3), steps).primitive, Primitive)


def test_a_device_of_several_cores_has_pytorch_s_operator() -> None:
    x, weight = torch.randn(1, 64, 24, 24), torch.randn(64, 64, 3, 3)
    own = convolution(x.shape, weight.shape, (Step("relu"),))
    assert isinstance(own.primitive, Winograd)
    use_threads(2)
    packed = own.pack(weight)
    assert packed.is_mkldnn
    torch.testing.assert_close(own(x, packed), torch.conv2d(x, weight, padding=1).relu(), rtol=1e-4, atol=1e-4)


def test_without_quick_products_the_operator_is_pytorch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise OSError("oneDNN has no quick matmul for these layouts")

    x, weight = torch.randn(1, 64, 24, 24), torch.randn(64, 64, 3, 3)
    own = convolution(x.shape, weight.shape)
    monkeypatch.setattr(Library, "describe", refuses)
    packed = own.pack(weight)
    assert packed.is_mkldnn
    torch.testing.assert_close(own(x, packed), torch.conv2d(x, weight, padding=1), rtol=1e-4, atol=1e-4)
