"""CPU kernels of norms, in one pass where PyTorch takes two to ten.

Images are in channels-last layout here, so that neighbouring channels lie beside each other.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

EXPONENT = 0.75  # the only one in use; two square roots compute it


def response_norm(x: torch.Tensor, n: int, alpha: float, k: float) -> torch.Tensor:
    """x / (k + alpha * (sum of x * x over n channels around it)) ** 0.75, of images [n, channels, height, width]."""
    result, pixels, written = _pixels(x)
    compiled(_response_norm, "int64, float32, float32")(pixels, n, alpha, k, written)
    return result


def scaled_relu(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """max(x * scale + shift, 0), of images [n, channels, height, width]; scale and shift are of channels."""
    result, pixels, written = _pixels(x)
    channels = (each.detach().numpy() for each in (scale, shift))
    compiled(_scaled_relu, "float32[::1], float32[::1]")(pixels, *channels, written)
    return result


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """weight * x / sqrt(mean of x * x over the last axis + eps); the weight is of this axis."""
    x = x.contiguous()
    result = torch.empty_like(x)
    rows, written = (each.detach().view(-1, x.shape[-1]).numpy() for each in (x, result))
    compiled(_rms_norm, "float32[::1], float32")(rows, weight.detach().contiguous().numpy(), eps, written)
    return result


def _pixels(x: torch.Tensor) -> tuple[torch.Tensor, NDArray[np.float32], NDArray[np.float32]]:
    """A result for images, and the pixels [n_pixels, channels] of the images and of the result."""
    x = x.contiguous(memory_format=torch.channels_last)
    result = torch.empty_like(x)
    pixels, written = (each.permute(0, 2, 3, 1).reshape(-1, x.shape[1]).detach().numpy() for each in (x, result))
    return result, pixels, written


@cache
def compiled(kernel: Callable[..., None], arguments: str) -> Any:
    """The compiled kernel of rows [n_rows, n], such as the channels of pixels."""
    from numba import njit  # late: numba takes half a second to load

    signature = f"void(float32[:, ::1], {arguments}, float32[:, ::1])"
    return njit(signature, cache=True, fastmath=True, nogil=True, error_model="numpy")(kernel)


def _response_norm(pixels: NDArray[np.float32], n: int, alpha: float, k: float, result: NDArray[np.float32]) -> None:
    n_pixels, channels = pixels.shape
    square = np.zeros(channels + n, np.float32)  # with zeros at both ends
    total = np.empty(channels, np.float32)
    for p in range(n_pixels):
        pixel, written = pixels[p], result[p]
        for c in range(channels):
            square[n // 2 + c] = pixel[c] * pixel[c]
        for c in range(channels):
            total[c] = k
        for shift in range(n):
            shifted = square[shift : shift + channels]
            for c in range(channels):
                total[c] += alpha * shifted[c]
        for c in range(channels):
            root = np.float32(1) / np.sqrt(total[c])
            written[c] = pixel[c] * root * np.sqrt(root)


def _scaled_relu(
    pixels: NDArray[np.float32], scale: NDArray[np.float32], shift: NDArray[np.float32], result: NDArray[np.float32]
) -> None:
    n_pixels, channels = pixels.shape
    for p in range(n_pixels):
        pixel, written = pixels[p], result[p]
        for c in range(channels):
            written[c] = max(pixel[c] * scale[c] + shift[c], np.float32(0))


def _rms_norm(
    rows: NDArray[np.float32], weight: NDArray[np.float32], eps: np.float32, result: NDArray[np.float32]
) -> None:
    n_rows, n = rows.shape
    for i in range(n_rows):
        row, written = rows[i], result[i]
        total = np.float32(0)
        for j in range(n):
            total += row[j] * row[j]
        scale = np.float32(1) / np.sqrt(total / np.float32(n) + eps)
        for j in range(n):
            written[j] = weight[j] * (row[j] * scale)
