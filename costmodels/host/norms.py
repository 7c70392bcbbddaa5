"""A CPU kernel of local response norms, which PyTorch computes in ten passes over the image.

Images are in channels-last layout here, so that neighbouring channels lie beside each other.
"""

from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

EXPONENT = 0.75  # the only one in use; two square roots compute it


def response_norm(x: torch.Tensor, n: int, alpha: float, k: float) -> torch.Tensor:
    """x / (k + alpha * (sum of x * x over n channels around it)) ** 0.75, of images [n, channels, height, width]."""
    x = x.contiguous(memory_format=torch.channels_last)
    result = torch.empty_like(x)
    pixels, written = (each.permute(0, 2, 3, 1).reshape(-1, x.shape[1]).detach().numpy() for each in (x, result))
    compiled()(pixels, n, alpha, k, written)
    return result


@cache
def compiled() -> Any:
    """The compiled kernel of pixels [n_pixels, channels]."""
    from numba import njit  # late: numba takes half a second to load

    signature = "void(float32[:, ::1], int64, float32, float32, float32[:, ::1])"
    return njit(signature, cache=True, fastmath=True, nogil=True, error_model="numpy")(_response_norm)


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
