"""CPU kernels of norms, in one pass where PyTorch takes two to ten.

Images are in channels-last layout here: neighbouring channels are adjacent in memory.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from graphs.common.compiled import compiled_kernel
from graphs.kernels.activations import EXP_LEAST, SPREAD, exp_scaled
from graphs.kernels.kernel import Strided, Writer

EXPONENT = 0.75  # the only one in use; two square roots compute it
LARGE = np.float32(2.0**100)  # of a sum of squares
MOST = np.finfo(np.float32).max
BELOW_SIGN, LEAST_KEY = np.array([2**31 - 1, -(2**31)], np.int32)


class Norm(Writer):
    """A norm of the rows of tensors of a shape: of their last axis, or of the channels of images.

    It takes the tensor, followed by the vectors and numbers that the kernel takes after it.
    """

    def __init__(
        self, kernel: Callable[..., int | None], others: str, x: Strided, images: bool, result: Strided | None = None
    ) -> None:
        """Prepare a norm by a kernel with further parameters ``others`` (`graphs.common.compiled.compiled_kernel`).

        The result has the layout of ``x`` if ``result`` is left out.
        """
        super().__init__(kernel.__name__.removeprefix("_"), x.strides, result or x)
        self.memory_format = torch.channels_last if images else torch.contiguous_format
        self._kernel, self._parameters = kernel, f"pnn{others}p"
        self._width = x.shape[1 if images else -1]

    def __call__(self, x: torch.Tensor, *others: Any, result: torch.Tensor | None = None) -> torch.Tensor:
        """Compute; ``result`` is written if it is given."""
        x, result = self.ends(x, result)
        self.compute(x, others, result)
        return result

    def compute(self, x: torch.Tensor, others: Sequence[Any], result: torch.Tensor) -> int | None:
        """Write the result by the kernel, and return what it returns."""
        vectors = [each.contiguous() if isinstance(each, torch.Tensor) else each for each in others]
        given = (each.data_ptr() if isinstance(each, torch.Tensor) else each for each in vectors)
        n_rows = x.numel() // self._width if self._width else 0
        run = compiled_kernel(self._kernel, self._parameters)
        returned: int | None = run(x.data_ptr(), n_rows, self._width, *given, result.data_ptr())
        return returned


class LayerNorm(Norm):
    """weight * (x - mean) / sqrt(variance + eps) + bias over the last axis; then come weight and bias, and eps."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        """The norm of tensors of a shape."""
        super().__init__(_layer_norm, "px", Strided.contiguous(shape), images=False)

    def compute(self, x: torch.Tensor, others: Sequence[Any], result: torch.Tensor) -> None:
        """Write the result, by PyTorch's operator if squares may overflow: where NaN then is depends on their order."""
        if super().compute(x, others, result):
            (weight, bias), eps = others
            result.copy_(torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps))


def response_norm(shape: tuple[int, ...]) -> Norm:
    """x / (k + alpha * (sum of x * x over n channels around it)) ** 0.75, of images; then come n, alpha and k."""
    return Norm(_response_norm, "nxx", Strided.channels_last(shape), images=True)


def scaled_relu(shape: tuple[int, ...]) -> Norm:
    """max(x * scale + shift, 0), of images; then come scale and shift of the channels."""
    return Norm(_scaled_relu, "pp", Strided.channels_last(shape), images=True)


def rms_norm_kernel(shape: tuple[int, ...]) -> Norm:
    """weight * x / sqrt(mean of x * x over the last axis + eps); then come the weight, of this axis, and eps."""
    return Norm(_rms_norm, "px", Strided.contiguous(shape), images=False)


def softmax(shape: tuple[int, ...]) -> Norm:
    """exp(x) / sum of exp(x) over the last axis."""
    return Norm(_softmax, "", Strided.contiguous(shape), images=False)


def sum_of_three(shape: tuple[int, ...]) -> Norm:
    """x + y + z; then come y and z."""
    return Norm(_sum_of_three, "pp", Strided.contiguous(shape), images=False)


def mean_of_pixels(shape: tuple[int, ...], result: Strided) -> Norm:
    """The mean of each channel of images of a shape; then comes the number of pixels."""
    return Norm(_mean_of_pixels, "n", Strided.channels_last(shape), images=True, result=result)


def scaled_channels(shape: tuple[int, ...]) -> Norm:
    """Images times a number for each channel of each image; then come the numbers and the number of pixels."""
    return Norm(_scaled_channels, "pn", Strided.channels_last(shape), images=True)


def _response_norm(x: Any, n_pixels: int, channels: int, n: int, alpha: float, k: float, result: Any) -> None:
    """`torch.nn.functional.local_response_norm` of images, with its beta = 3/4."""
    square = np.zeros(channels + n, np.float32)  # with zeros at both ends
    total = np.empty(channels, np.float32)
    for p in range(n_pixels):
        at = p * channels
        for c in range(channels):
            square[n // 2 + c] = x[at + c] * x[at + c]
        for c in range(channels):
            total[c] = k
        for shift in range(n):
            shifted = square[shift : shift + channels]
            for c in range(channels):
                total[c] += alpha * shifted[c]
        for c in range(channels):
            root = np.float32(1) / np.sqrt(total[c])
            share = root * np.sqrt(root)
            result[at + c] = x[at + c] * (np.float32(0) if total[c] > MOST else share)  # estimates of roots of inf: NaN


def _scaled_relu(x: Any, n_pixels: int, channels: int, scale: Any, shift: Any, result: Any) -> None:
    for p in range(n_pixels):
        at = p * channels
        for c in range(channels):
            result[at + c] = _positive(x[at + c] * scale[c] + shift[c])


def _positive(x: Any) -> Any:
    """max(x, 0), and NaN if x is."""
    return np.float32(0) if x < np.float32(0) else x


def _rms_norm(x: Any, n_rows: int, n: int, weight: Any, eps: float, result: Any) -> None:
    for i in range(n_rows):
        at = i * n
        total = np.float32(0)
        for j in range(n):
            total += x[at + j] * x[at + j]
        scale = np.float32(1) / np.sqrt(total / np.float32(n) + eps)
        for j in range(n):
            result[at + j] = weight[j] * (x[at + j] * scale)


def _sum_of_three(x: Any, n_rows: int, n: int, y: Any, z: Any, result: Any) -> None:
    for i in range(n_rows * n):
        result[i] = x[i] + y[i] + z[i]


def soften(x: Any, form: Any, scale: Any) -> None:
    """Replace each row of x by the softmax of the row times a scale above 0.

    The form is the number of heads, of rows of each and of elements of a row, for x [heads, rows, elements].
    """
    heads, rows, n = form[0], form[1], form[2]
    for row in range(heads * rows):
        _soften_row(x, row * n, n, scale)


def soften_masked(x: Any, form: Any, scale: Any, mask: Any) -> None:
    """Replace each row of x by the softmax of the row times a scale plus a row of the mask.

    The form is that of `soften`, followed by the strides of the mask from one head and from one row to the next.
    """
    heads, rows, n, head_step, row_step = form[0], form[1], form[2], form[3], form[4]
    for head in range(heads):
        for row in range(rows):
            at, begin = (head * rows + row) * n, head * head_step + row * row_step
            for j in range(n):
                x[at + j] = scale * x[at + j] + mask[begin + j]
            _soften_row(x, at, n, np.float32(1))


def _soften_row(x: Any, at: int, n: int, scale: Any) -> None:
    """Replace n elements by their softmax.

    The largest element is found by whole numbers in the order of the elements, which compilers know how to compare
    sixteen at a time.
    """
    key = LEAST_KEY
    for j in range(n):
        bits = np.float32(x[at + j]).view(np.int32)
        key = max(key, np.int32(bits ^ ((bits >> np.int32(31)) & BELOW_SIGN)))
    most = np.int32(key ^ ((key >> np.int32(31)) & BELOW_SIGN)).view(np.float32)
    total = np.float32(0)
    for j in range(n):
        below = scale * (x[at + j] - most)
        part = exp_scaled(EXP_LEAST if below < EXP_LEAST else below, SPREAD)
        x[at + j] = np.float32(0) if below < EXP_LEAST else part
        total += x[at + j]
    share = np.float32(1) / total
    for j in range(n):
        x[at + j] *= share


def _softmax(x: Any, m: int, n: int, y: Any) -> None:
    for i in range(m):
        for j in range(n):
            y[i * n + j] = x[i * n + j]
        _soften_row(y, i * n, n, np.float32(1))


def _layer_norm(x: Any, n_rows: int, n: int, weights: Any, eps: float, result: Any) -> int:
    """Return how many rows have a sum of squares that is not far from an overflow, or is NaN."""
    beyond = 0
    for i in range(n_rows):
        at = i * n
        total = np.float32(0)
        for j in range(n):
            total += x[at + j]
        mean = total / np.float32(n)
        squares = np.float32(0)
        for j in range(n):
            squares += (x[at + j] - mean) * (x[at + j] - mean)
        beyond += not squares + mean * mean < LARGE
        scale = np.float32(1) / np.sqrt(squares / np.float32(n) + eps)
        for j in range(n):
            result[at + j] = (x[at + j] - mean) * scale * weights[j] + weights[n + j]
    return beyond


def _mean_of_pixels(x: Any, n_rows: int, channels: int, n_pixels: int, result: Any) -> None:
    for image in range(n_rows // n_pixels):
        at = image * channels
        for c in range(channels):
            result[at + c] = np.float32(0)
        for p in range(image * n_pixels, (image + 1) * n_pixels):
            for c in range(channels):
                result[at + c] += x[p * channels + c]
        for c in range(channels):
            result[at + c] /= np.float32(n_pixels)


def _scaled_channels(x: Any, n_rows: int, channels: int, scale: Any, n_pixels: int, result: Any) -> None:
    for p in range(n_rows):
        at, own = p * channels, p // n_pixels * channels
        for c in range(channels):
            result[at + c] = x[at + c] * scale[own + c]
