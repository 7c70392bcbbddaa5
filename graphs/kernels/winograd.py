"""Convolutions by Winograd's algorithm on one core: oneDNN multiplies transformed tiles by transformed filters.

A filter of r by r turns a tile of 6 by 6 pixels into one of m by m, with m = 7 - r. After the transforms of input and
filters, each of the 36 positions of a tile is one matrix product; 4 by 4 results of a filter of 3 by 3 then take 36
multiplications instead of 144 (Lavin and Gray 2015, https://arxiv.org/abs/1509.09308). The transform evaluates
polynomials at 0, at plus and minus the square roots of 1/2 and of 2, and at infinity. At 0, 1, -1, 2 and -2, as usual,
rounding is three to four times as large; so it is four times that of a direct convolution.

Images are in channels-last layout.
"""

from collections.abc import Callable
from ctypes import c_float
from dataclasses import dataclass
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from graphs.common.compiled import compiled_kernel
from graphs.kernels.dnnl import (
    ACTIVATIONS,
    DESTINATION,
    INFERENCE,
    PACKS_NOTHING,
    SOURCE,
    WEIGHTS,
    WEIGHTS_LAYOUT,
    Execution,
    Library,
    Object,
    scratchpad,
)
from graphs.kernels.kernel import Strided
from graphs.rewrites.patterns import Step, activation

SIDE = 6  # of a tile, in pixels
NUMBERS = SIDE * SIDE  # of a tile
POINTS = np.array([0, 0.5**0.5, -(0.5**0.5), 2**0.5, -(2**0.5)])  # and infinity
SIZES = (3, 5)  # of filters that are quick
LEAST_GAIN = 1.2  # expected
WEIGHT_TILES = 12  # how many tiles can be multiplied while filters come from memory
TRANSFORM = 1400  # operations in whose time a number of a tile of a channel is transformed to and fro
BAND_BYTES = 2**21  # of transformed tiles, which then stay in a cache
PANEL = 128  # adjacent outputs of filters
LARGE = np.float32(2.0**60)  # of the squares of a band's results
BLOCK = 64  # channels that are transformed at once, in the first cache

LOW, HIGH, LOW3, HIGH3 = (np.float32(root) for root in (0.5**0.5, 2**0.5, 0.5**1.5, 2**1.5))
HALF, TWO, FIVE_HALVES, NOTHING = (np.float32(number) for number in (0.5, 2, 2.5, 0))


class _TileProducts(NamedTuple):
    """The products of a band of tiles with filters whose outputs lie in panels of a width."""

    description: Object
    tiles: Object  # layout before the products
    results: Object  # layout after them
    width: int


@dataclass(frozen=True)
class Winograd:
    """A convolution of stride 1, without groups, of float32 images in channels-last layout.

    Attributes:
        x, y: layouts of the input and of the result; a second operand of a step lies as the result does.
        filters: shape [outputs, inputs, r, r].
        before: rows of zeros above and columns of zeros left of the input.
        steps: what follows; the first may add a second operand.
    """

    x: Strided
    filters: tuple[int, ...]
    y: Strided
    before: tuple[int, int]
    steps: tuple[Step, ...]

    kind = "convolution"

    @property
    def growth(self) -> float:
        """Bytes of packed filters, which the filters themselves follow, over those of the filters."""
        return NUMBERS / self.filters[-1] ** 2 + 1

    def gains(self) -> bool:
        """Return whether it is quicker than a direct convolution, by operations and by the size of the filters."""
        outputs, inputs, size, other_size = self.filters
        if size != other_size or size not in SIZES or any(step.function == "mul" for step in self.steps):
            return False
        pairs, n_tiles = inputs * outputs, self.n_tiles
        own = 2 * NUMBERS * pairs * (n_tiles + WEIGHT_TILES) + TRANSFORM * n_tiles * (inputs + outputs)
        direct = 2 * size * size * pairs * prod(self.y.shape) // outputs
        return own * LEAST_GAIN <= direct

    @property
    def step(self) -> int:
        """Pixels from one tile of the result to the next."""
        return SIDE + 1 - self.filters[-1]

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of tiles in an image."""
        return ceil(self.y.shape[2] / self.step), ceil(self.y.shape[3] / self.step)

    @property
    def n_tiles(self) -> int:
        """Tiles of all images."""
        return self.y.shape[0] * prod(self.grid)

    @property
    def band(self) -> int:
        """Tiles that are multiplied at once: their numbers stay in a cache, or take as many bytes as the filters."""
        outputs, inputs, *_ = self.filters
        limit = max(BAND_BYTES, 4 * NUMBERS * inputs * outputs) // (4 * NUMBERS * (inputs + outputs))
        return ceil(self.n_tiles / ceil(self.n_tiles / max(limit, 1)))

    def pack(self, dnnl: Library, weight: torch.Tensor) -> torch.Tensor | None:
        """Transformed filters in the layout that oneDNN reads, then the filters, as bytes.

        None if oneDNN has no quick products.
        """
        try:
            products = self._products(dnnl)
        except OSError:  # PyTorch then convolves directly
            return None
        transform = torch.from_numpy(of_filters(self.filters[-1]))
        transformed = torch.einsum("ia,ocab,jb->ijco", transform, weight.detach().double(), transform).float()
        panels = transformed.reshape(NUMBERS, self.filters[1], -1, products.width).transpose(1, 2)
        packed = dnnl.reorder(panels, *dnnl.asked(products.description, WEIGHTS_LAYOUT))
        return torch.cat([packed, weight.detach().float().flatten().view(torch.uint8)])

    def unpack(self, _: Library, packed: torch.Tensor) -> torch.Tensor:
        """The filters that were packed."""
        return packed[-4 * prod(self.filters) :].view(torch.float32).view(self.filters)

    def _products(self, dnnl: Library) -> _TileProducts:
        """The products of a band; raise OSError if oneDNN has no quick ones.

        What reads filters as they lie reads long rows with gaps, at two thirds of the pace.
        """
        dnnl.use_threads(1)
        outputs = self.filters[0]
        whole = self._in_panels(dnnl, outputs)
        as_they_lie = dnnl.implementation(whole.description).startswith(PACKS_NOTHING)
        return self._in_panels(dnnl, PANEL) if as_they_lie and outputs % PANEL == 0 else whole

    def _in_panels(self, dnnl: Library, width: int) -> _TileProducts:
        (outputs, inputs, *_), band = self.filters, self.band
        count = outputs // width
        weights = (NUMBERS, count, inputs, width)
        filters = dnnl.layout(weights, Strided.contiguous(weights).strides if count > 1 else ())
        tiles = dnnl.layout((NUMBERS, 1, band, inputs), (band * inputs, band * inputs, inputs, 1))
        results = dnnl.layout((NUMBERS, count, band, width), (band * outputs, width, outputs, 1))
        description = dnnl.describe("matmul", dnnl.engine, tiles, filters, None, results, dnnl.attributes())
        return _TileProducts(description, tiles, results, width)

    def bound(self, dnnl: Library, packed: torch.Tensor, bias: torch.Tensor | None) -> Callable[..., bool]:
        """The convolution with its filters, for the calling thread, of addresses of input, result and operand.

        It returns True if results are so large, or not finite, that others of their tiles are not what they should be.
        """
        products = self._products(dnnl)
        held = {WEIGHTS: (dnnl.asked(products.description, WEIGHTS_LAYOUT)[0], packed)}
        moving = {SOURCE: products.tiles, DESTINATION: products.results}
        return _Bound(self, dnnl, Execution(dnnl, products.description, moving, held), bias)

    def bands(self, images: Strided) -> NDArray[np.int64]:
        """Return the parameters of the transforms for each band, [bands, 11]; `_origin` reads the same columns.

        These are height, width and channels of the images, rows and columns of tiles, pixels from one tile to the next,
        tiles of the band and the first of them, rows and columns of zeros before an image, and whether a step adds.
        """
        last = self.n_tiles - self.band  # the last band may have tiles of the one before
        _, channels, height, width = images.shape
        adds = any(step.other for step in self.steps)
        return np.array(
            [
                [height, width, channels, *self.grid, self.step, self.band, min(first, last), *self.before, adds]
                for first in range(0, self.n_tiles, self.band)
            ],
            np.int64,
        )


class _Bound:
    """A convolution with its filters, for one thread."""

    def __init__(self, own: Winograd, dnnl: Library, multiply: Execution, bias: torch.Tensor | None) -> None:
        outputs, inputs, *_ = own.filters
        self._multiply = multiply
        self._tiles = scratchpad(4 * NUMBERS * own.band * inputs, "tiles")
        self._results = scratchpad(4 * NUMBERS * own.band * outputs, "results of tiles")
        self._bias = torch.zeros(outputs) if bias is None else bias.contiguous()
        self._bands = own.bands(own.x), own.bands(own.y)
        self._slope, self._activate = 1.0, None  # of what is below zero; None if that is all
        step = activation(own.steps)
        if step and step.function in SLOPES:
            self._slope = SLOPES[step.function](step)
        elif step:
            y = dnnl.layout(own.y.shape, own.y.strides)
            number, *scalars = ACTIVATIONS[step.function](step)
            asked = INFERENCE, number, y, y, *map(c_float, scalars), dnnl.attributes()
            description = dnnl.describe("eltwise_forward", dnnl.engine, *asked)
            self._activate = Execution(dnnl, description, {SOURCE: y, DESTINATION: y})

    def __call__(self, x: int, result: int, other: int = 0) -> bool:
        tiles, results, bias = self._tiles.data_ptr(), self._results.data_ptr(), self._bias.data_ptr()
        toward, back = compiled_kernel(to_tiles, "cpp"), compiled_kernel(from_tiles, "cppxpp")
        for band in range(len(self._bands[0])):
            inputs, outputs = (bands.ctypes.data + band * bands.strides[0] for bands in self._bands)
            toward(inputs, x, tiles)
            self._multiply(tiles, results)
            if back(outputs, results, bias, self._slope, other or result, result):
                return True
        if self._activate:
            self._activate(result, result)
        return False


SLOPES: dict[str, Callable[[Step], float]] = {"relu": lambda _: 0.0, "leaky_relu": lambda step: step.scalars[0]}
"""The slope below zero of activations that are linear on both sides of it."""


def of_filters(size: int) -> NDArray[np.float64]:
    """The transform [SIDE, size] of filters: their polynomials at the points, each divided by what the point weighs."""
    distances = POINTS[:, None] - POINTS + np.eye(len(POINTS))
    finite = POINTS[:, None] ** np.arange(size) / distances.prod(axis=1, keepdims=True)
    return np.vstack([finite, np.eye(size)[-1]])


def _origin(band: Any, tile: int) -> Any:
    """Return the image of a tile of a band, and the row and column of the result's pixels where the tile begins."""
    rows, columns, step, number = band[3], band[4], band[5], band[7] + tile
    place = number % (rows * columns)
    return number // (rows * columns), place // columns * step, place % columns * step


def to_tiles(band: Any, x: Any, tiles: Any) -> None:
    """Transform tiles of images x [n, height, width, channels] to [NUMBERS, tiles, channels]."""
    height, width, channels, count = band[0], band[1], band[2], band[6]
    room = np.empty(2 * NUMBERS * BLOCK, np.float32)
    for tile in range(count):
        image, top, left = _origin(band, tile)
        top, left = top - band[8], left - band[9]
        for begin in range(0, channels, BLOCK):
            block = min(BLOCK, channels - begin)
            for i in range(SIDE):
                for j in range(SIDE):
                    row, column, into = top + i, left + j, (i * SIDE + j) * BLOCK
                    if 0 <= row < height and 0 <= column < width:
                        at = ((image * height + row) * width + column) * channels + begin
                        for c in range(block):
                            room[into + c] = x[at + c]
                    else:
                        for c in range(block):
                            room[into + c] = NOTHING
            for axis in range(2):  # along rows, then along columns, from one half of the room to the other
                line, one = (SIDE * BLOCK, BLOCK) if axis == 0 else (BLOCK, SIDE * BLOCK)
                for i in range(SIDE):
                    source = room[axis * NUMBERS * BLOCK + i * line :]
                    target = room[(1 - axis) * NUMBERS * BLOCK + i * line :]
                    for c in range(block):
                        d0, d1, d2 = source[c], source[one + c], source[2 * one + c]
                        d3, d4, d5 = source[3 * one + c], source[4 * one + c], source[5 * one + c]
                        even, odd = d4 - TWO * d2, LOW * (d3 - TWO * d1)
                        even2, odd2 = d4 - HALF * d2, HIGH * (d3 - HALF * d1)
                        target[c] = d0 - FIVE_HALVES * d2 + d4
                        target[one + c] = even + odd
                        target[2 * one + c] = even - odd
                        target[3 * one + c] = even2 + odd2
                        target[4 * one + c] = even2 - odd2
                        target[5 * one + c] = d1 - FIVE_HALVES * d3 + d5
            for k in range(NUMBERS):
                at = (k * count + tile) * channels + begin
                for c in range(block):
                    tiles[at + c] = room[k * BLOCK + c]


def from_tiles(band: Any, tiles: Any, bias: Any, slope: float, other: Any, y: Any) -> int:
    """Transform tiles [NUMBERS, tiles, channels] back to pixels of images y, with a bias and what follows.

    ``other`` is added if the band adds; what is below zero is multiplied by a slope. Return whether results were
    so large, or not finite, before that rounding spoils others of their tiles.
    """
    height, width, channels, step, count, adds = band[0], band[1], band[2], band[5], band[6], band[10]
    room = np.empty(2 * NUMBERS * BLOCK, np.float32)
    squares = NOTHING
    for tile in range(count):
        image, top, left = _origin(band, tile)
        for begin in range(0, channels, BLOCK):
            block = min(BLOCK, channels - begin)
            for k in range(NUMBERS):
                at = (k * count + tile) * channels + begin
                for c in range(block):
                    room[k * BLOCK + c] = tiles[at + c]
            for axis in range(2):
                line, one = (SIDE * BLOCK, BLOCK) if axis == 0 else (BLOCK, SIDE * BLOCK)
                for i in range(SIDE if axis == 0 else step):
                    source = room[axis * NUMBERS * BLOCK + i * line :]
                    target = room[(1 - axis) * NUMBERS * BLOCK + i * line :]
                    for c in range(block):
                        m1, m2, m3, m4 = source[one + c], source[2 * one + c], source[3 * one + c], source[4 * one + c]
                        low, high = m1 + m2, m3 + m4
                        low1, high1 = m1 - m2, m3 - m4
                        target[c] = source[c] + low + high
                        target[one + c] = LOW * low1 + HIGH * high1
                        if step == 2:  # the point at infinity belongs to the last result
                            target[one + c] += source[5 * one + c]
                        else:
                            target[2 * one + c] = HALF * low + TWO * high
                            target[3 * one + c] = LOW3 * low1 + HIGH3 * high1 + source[5 * one + c]
            for i in range(min(step, height - top)):
                for j in range(min(step, width - left)):
                    at = ((image * height + top + i) * width + left + j) * channels + begin
                    begun = (i * SIDE + j) * BLOCK
                    for c in range(block):
                        value = room[begun + c] + bias[begin + c]
                        if adds:
                            value += other[at + c]
                        squares += value * value
                        y[at + c] = max(value, NOTHING) + slope * min(value, NOTHING)
    return not squares < LARGE
