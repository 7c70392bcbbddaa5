"""A CPU kernel of products with one row, which the memory's bandwidth limits: it reads every weight once.

A core waits less for the memory if it reads from several places at once. So four rows of the weight, a quarter of it
apart, are multiplied together: this reads as fast as a core can, and up to twice as fast as libraries do that are made
for products of many rows. The model's own weights are read, so nothing is packed, and all devices share them.
"""

from typing import Any

import numpy as np
import torch

from costmodels.host.native import compiled

STREAMS = 4  # rows that are read together


def row_product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`torch.nn.functional.linear` of one row; the weight, [outputs, inputs], is contiguous."""
    n, inputs = weight.shape
    result = torch.zeros(n) if bias is None else bias.clone()
    vector = x.reshape(-1).contiguous()
    compiled(_add_product, "npnpp")(n, weight.data_ptr(), inputs, vector.data_ptr(), result.data_ptr())
    return result.view(*x.shape[:-1], n)


def _add_product(m: int, weight: Any, k: int, x: Any, result: Any) -> None:
    """Add the product of a weight [m, k] and a vector [k] to a vector [m]."""
    part = m // STREAMS
    for i in range(part):
        first, second, third, fourth = i * k, (part + i) * k, (2 * part + i) * k, (3 * part + i) * k
        a = b = c = d = np.float32(0)
        for j in range(k):
            a += weight[first + j] * x[j]
            b += weight[second + j] * x[j]
            c += weight[third + j] * x[j]
            d += weight[fourth + j] * x[j]
        result[i] += a
        result[part + i] += b
        result[2 * part + i] += c
        result[3 * part + i] += d
    for i in range(STREAMS * part, m):
        total = np.float32(0)
        for j in range(k):
            total += weight[i * k + j] * x[j]
        result[i] += total
