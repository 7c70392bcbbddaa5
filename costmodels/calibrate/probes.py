"""Probes: small networks for the sweep, whose operators cover the sizes in real networks.

Operators are measured within networks, so that memory and caches are in a realistic state. Sizes are drawn on a
logarithmic scale from a fixed seed, so that every machine measures the same sizes.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import log2, sqrt
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from costmodels.calibrate.probe_modules import (
    Attentions,
    BranchedChain,
    DifferentiableInput,
    Elementwise,
    ImageStems,
    Pairs,
    Pictures,
    ProductChain,
    Recurrent,
    ResidualConcat,
    TransformerBlock,
    Views,
    WordScores,
)

Built: TypeAlias = tuple[nn.Module, tuple[Tensor, ...]]


@dataclass(frozen=True)
class Probe:
    """A network to measure. Times in training follow from times in inference, so few networks are enough."""

    name: str  # unique name
    build: Callable[[], Built]  # function that makes the module and example inputs when the probe is measured
    least_s: float = 0.08  # least seconds of the measurement; weights that just fit into the last cache need longer
    training: Callable[[], Built] | None = None  # the same for training; None for most


def probes() -> tuple[Probe, ...]:
    """Return all probes, kind by kind."""
    every = (*_images(), *_stacks(), *_transformers(), *_recurrent(), *_elements())
    return tuple(replace(probe, training=_in_training(probe)) for probe in every)


def interleaved(probes: Sequence[Probe]) -> tuple[Probe, ...]:
    """The probes in an order that separates probes of one kind.

    A machine may be slow for some seconds. In this order, some probes of each kind are affected, and the others reveal
    the error; it would remain unnoticed if a whole kind was slow.
    """
    order = sorted(range(len(probes)), key=lambda i: i * GOLDEN % 1)  # the golden ratio separates neighbours
    return tuple(probes[i] for i in order)


GOLDEN = (sqrt(5) - 1) / 2

TRAINED = frozenset(
    {"images 1x14 0", "images 1x28 0", "images 1x56 0", "images 4x7 0", "images 4x13 0", "stems 1"}
    | {"transformer 256 4 gpt", "transformer 384 4 llama"}
    | {"transformer 512 4 bert", "transformer 640 1 gpt", "transformer 768 1 llama", "transformer 1024 1 bert"}
    | {"stack 16 MB 4", "stack 16 MB 16", "stack 80 MB 4", "stack 80 MB 16", "words 512x12000"}
    | {"recurrent 256x192x30x4", "recurrent 512x512x20x8", "recurrent 768x768x24x4"}
)
"""Names of probes that are measured in training without a change."""

TRAINED_BEHIND = frozenset(
    {"views 1x128x1024", "products 1", "attention 1"}
    | {f"{kind} {size}" for kind in ("elements", "pairs") for size in ("8x512", "64x1024", "197x3072")}
    | {f"pictures {size}" for size in ("1x64x14", "1x128x28", "4x64x56")}
)
"""Names of probes with few parameters, whose input is multiplied by a parameter when they are measured in training."""


def _in_training(probe: Probe) -> Callable[[], Built] | None:
    if probe.name in TRAINED_BEHIND:
        return partial(_behind, probe.build)
    return probe.build if probe.name in TRAINED else None


def _behind(build: Callable[[], Built]) -> Built:
    module, inputs = build()
    with inputs[0].device:
        return DifferentiableInput(module), inputs


SIDES = {1: (7, 13, 14, 17, 28, 35, 56, 73, 112, 224), 4: (7, 13, 14, 28, 35, 56, 112, 224), 2: (14, 35)}
"""Heights of images in pixels, by batch."""


def _images() -> Iterator[Probe]:
    for batch, sides in SIDES.items():
        for side in sides:
            name = f"images {batch}x{side} 0"  # it seeds the network, and identifies it in sweep files
            yield Probe(name, partial(_convolutions, name, batch, side))
    yield Probe("stems 1", partial(_pictured, ImageStems, 1, 3, 224))
    for batch in (1, 4):
        yield Probe(f"large images {batch}", partial(_pictured, _large, batch, 3, 256))


def _pictured(make: Callable[[], nn.Module], batch: int, channels: int, side: int) -> Built:
    return make(), (torch.randn(batch, channels, side, side),)


def _channels(draw: random.Random, most: float) -> int:
    """A log-uniform number of channels from 16, mostly a multiple of 32 as in real networks."""
    step = draw.choice((64, 32, 32, 16, 16, 8))
    return max(step, round(2 ** draw.uniform(4, max(4.5, log2(most))) / step) * step)


KERNELS = ((1, 1), (1, 1), (1, 1), (3, 3), (3, 3), (3, 3), (5, 5), (1, 7), (7, 1), (1, 3))
ACTIVATIONS = (nn.ReLU, nn.ReLU, nn.ReLU, nn.SiLU, nn.Hardswish, nn.ReLU6, nn.GELU)
CONVOLUTIONS = 12  # in one chain
MOST_ELEMENTS = 1.2e6  # elements of an image, so that a pass stays short
MOST_FLOP = {1: 1.2e9, 2: 1.6e9, 4: 1.6e9}  # FLOP of a convolution with a window, by batch


def _convolutions(name: str, batch: int, side: int) -> Built:
    """A chain at one image size, with side branches that make the image smaller."""
    draw = random.Random(name)
    most = min(2048.0, MOST_ELEMENTS / side**2)
    chain: list[nn.Module] = []
    branches: list[tuple[int, nn.Module]] = []
    channels = first = _channels(draw, most)
    for i in range(CONVOLUTIONS):
        layers = _convolution(draw, channels, _channels(draw, most), batch * side**2, MOST_FLOP[batch])
        chain += layers
        channels = layers[0].out_channels
        if i in (1, 4, 7, 10):
            branches.append((len(chain), _shrinking(draw, channels, most)))
        if i in (2, 6, 9):
            slow = (nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1), nn.LocalResponseNorm(5), ResidualConcat())
            chain.append(draw.choice(slow) if batch * channels * side**2 < MOST_ELEMENTS / 2 else ResidualConcat())
    pools = (nn.MaxPool2d(3, 2), nn.MaxPool2d(2, 2), nn.AvgPool2d(2, 2), nn.MaxPool2d(3, 2, 1, ceil_mode=True))
    branches += [(len(chain), pool) for pool in pools]
    return BranchedChain(chain, branches), (torch.randn(batch, first, side, side),)


def _convolution(draw: random.Random, channels: int, wanted: int, positions: int, most_flop: float) -> list[Any]:
    """A convolution that keeps the size, a norm in half of the cases, and an activation."""
    kernel = draw.choice(KERNELS)
    if 2 * channels * wanted * positions * kernel[0] * kernel[1] > most_flop:
        kernel = (1, 1)
    groups = draw.choice((1, 1, 1, 1, 1, 2, channels)) if kernel != (1, 1) and channels % 2 == 0 else 1
    wanted = channels if groups == channels else wanted + wanted % groups
    normed = draw.random() < 0.5
    padding = (kernel[0] // 2, kernel[1] // 2)
    made = nn.Conv2d(channels, wanted, kernel, 1, padding, groups=groups, bias=not normed)
    return [made, *([nn.BatchNorm2d(wanted)] if normed else []), draw.choice(ACTIVATIONS)()]


def _shrinking(draw: random.Random, channels: int, most: float) -> nn.Module:
    kernel = draw.choice((1, 3, 3, 5))
    return nn.Conv2d(channels, min(_channels(draw, most), 2**25 // (channels * kernel**2)), kernel, 2, kernel // 2)


def _large() -> nn.Module:
    """A network with tensors larger than every cache."""
    layers = [nn.Conv2d(3, 48, 3, 1, 1), nn.ReLU(), nn.Conv2d(48, 80, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2, 2)]
    layers += [nn.Conv2d(80, 96, 3, 1, 1), nn.BatchNorm2d(96), nn.ReLU(), nn.Conv2d(96, 160, 1), nn.ReLU()]
    layers += [nn.MaxPool2d(2, 2), nn.Conv2d(160, 224, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2, 2)]
    layers += [nn.Conv2d(224, 384, 3, 1, 1), nn.ReLU(), nn.Conv2d(384, 320, 3, 1, 1), nn.ReLU()]
    return nn.Sequential(*layers)


def _stacks() -> Iterator[Probe]:
    """Linear layers on few rows in networks of many sizes, whose time is that of reading the weights."""
    draw = random.Random(1)
    for megabytes in (4, 16, 48, 80, 120, 144, 200, 300):  # several probes of a size, since a host may be busy
        for rows in (1, 4, 2, 8, 16) if megabytes in (16, 80, 300) else (1, 4):
            least_s = 0.8 if megabytes >= 48 and rows in (1, 4) else 0.3
            widths = _widths(draw, megabytes * 2**20 / 4)
            yield Probe(f"stack {megabytes} MB {rows}", partial(_stack, widths, rows), least_s)


def _widths(draw: random.Random, parameters: float) -> list[int]:
    """Widths of layers with about ``parameters`` parameters in total."""
    most = min(12.6, log2(parameters) / 2 + 0.5)
    widths = [64 * max(1, round(2 ** draw.uniform(most - 3, most) / 64))]
    while parameters > 0:
        step = draw.choice((1, 8, 64, 256))
        least = max(8.0, most - 4)
        widths.append(step * max(1, round(2 ** draw.uniform(least, most) / step)))
        parameters -= widths[-1] * widths[-2]
    return widths


def _stack(widths: Sequence[int], rows: int) -> Built:
    with torch.device("meta"):
        layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*layers), (torch.empty(rows, widths[0]),)


LENGTHS = {
    1: {256: 320, 384: 16, 512: 16, 640: 50, 768: 197, 1024: 128, 1280: 77, 2048: 48},
    4: {256: 77, 384: 197, 512: 128, 640: 128, 768: 256, 1024: 77},
}
"""Lengths of sequences by batch and width."""


def _transformers() -> Iterator[Probe]:
    for batch, lengths in LENGTHS.items():
        for i, (width, length) in enumerate(lengths.items()):
            style = ("bert", "gpt", "llama")[(i + batch) % 3]
            yield Probe(f"transformer {width} {batch} {style}", partial(_transformer, width, batch, length, style))
    for width, words, rows in ((512, 12_000, 24), (768, 30_000, 100), (640, 8_000, 500)):
        yield Probe(f"words {width}x{words}", partial(_words, width, words, rows))
    for batch, rows, width in ((1, 16, 256), (1, 128, 1024), (4, 64, 512), (4, 256, 1024)):
        yield Probe(f"views {batch}x{rows}x{width}", partial(_views, batch, rows, width))
    for part in range(2):
        yield Probe(f"products {part}", partial(_products, 10 + part))
    for part in range(2):
        yield Probe(f"attention {part}", partial(_attentions, 20 + part))


def _transformer(width: int, batch: int, length: int, style: str) -> Built:
    with torch.device("meta"):
        block = TransformerBlock(width, width // 64, style)
        return block, (torch.empty(batch, length, width),)


def _words(width: int, words: int, rows: int) -> Built:
    with torch.device("meta"):
        return WordScores(width, words), (torch.empty(1, rows, dtype=torch.long),)


def _views(batch: int, rows: int, width: int) -> Built:
    return Views(), (torch.rand(batch, rows, width), torch.zeros(batch, rows, dtype=torch.long))


def _products(seed: int) -> Built:
    draw = random.Random(seed)
    sizes: list[tuple[int, int, int]] = []
    while len(sizes) < 22:
        rows = round(2 ** draw.uniform(4, 10))
        inner, out = (draw.choice((32, 64, 64, 128, 256)) * max(1, round(2 ** draw.uniform(0, 5))) for _ in range(2))
        if 1e7 < 2 * rows * inner * out < 2e9 and inner <= 4096:
            sizes.append((rows, inner, out))
    with torch.device("meta"):
        return ProductChain(sizes), (torch.empty(1, 4096),)


RECURRENT = (
    (128, 128, 60, 1, True),
    (256, 192, 30, 4, True),
    (300, 384, 24, 1, False),
    (512, 512, 40, 1, True),
    (512, 512, 20, 8, False),
    (640, 640, 30, 2, False),
    (768, 768, 24, 4, True),
    (256, 896, 32, 1, False),
    (1152, 1152, 24, 1, True),
    (960, 960, 40, 1, False),
    (1152, 1152, 30, 4, False),
    (1088, 1088, 50, 1, False),
    (896, 896, 44, 4, False),
    (1024, 1536, 12, 1, False),
    (512, 1024, 16, 4, False),
    (768, 1024, 30, 1, False),
    (448, 448, 50, 2, False),
)
"""Width of the input, width of the hidden state, steps, batch, and whether all kinds or LSTM only."""


def _attentions(seed: int) -> Built:
    draw = random.Random(seed)
    sizes: list[tuple[int, int, int, int]] = []
    while len(sizes) < 18:
        batch, heads, width = draw.choice((1, 1, 4, 2)), draw.choice((4, 8, 12, 16)), draw.choice((32, 64, 64, 128))
        rows = round(2 ** draw.uniform(4, 9))
        if batch * heads * rows**2 * width < 2e8:
            sizes.append((batch, heads, rows, width))
    return Attentions(sizes), (torch.rand(512 * 16 * 128),)


def _recurrent() -> Iterator[Probe]:
    for inner, hidden, length, batch, kinds in RECURRENT:
        build = partial(_sequence, inner, hidden, length, batch, kinds)
        yield Probe(f"recurrent {inner}x{hidden}x{length}x{batch}", build, 0.4)


def _sequence(inner: int, hidden: int, length: int, batch: int, kinds: bool) -> Built:
    with torch.device("meta"):
        return Recurrent(inner, hidden, kinds), (torch.empty(batch, length, inner),)


def _elements() -> Iterator[Probe]:
    for rows, width in ((1, 64), (8, 512), (64, 1024), (197, 3072), (1024, 2048)):
        yield Probe(f"elements {rows}x{width}", partial(_rows, Elementwise, rows, width))
        yield Probe(f"pairs {rows}x{width}", partial(_rows, Pairs, rows, width))
    for batch, channels, side in ((1, 64, 14), (1, 128, 28), (4, 64, 56), (1, 32, 112)):
        yield Probe(f"pictures {batch}x{channels}x{side}", partial(_pictured, Pictures, batch, channels, side))


def _rows(make: Callable[[], nn.Module], rows: int, width: int) -> Built:
    return make(), (torch.rand(rows, width) + 0.1,)
