"""A CPU kernel of products with one row, which the memory's bandwidth limits: it reads every weight once.

A core waits less for the memory if it reads from several places at once. So four rows of the weight, a quarter of it
apart, are multiplied together: this reads as fast as a core can, and up to twice as fast as libraries do that are made
for products of many rows. The model's own weights are read, so nothing is packed, and all devices share them.

Rows of two micro-batches take hardly more time than one, where the weight comes from memory.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from graphs.common.compiled import compiled_kernel

STREAMS = 4  # rows that are read together
PAIR_BYTES = 2**22  # of a weight that a core's own cache cannot hold


def row_product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`torch.nn.functional.linear` of one row; the weight, [outputs, inputs], is contiguous."""
    n, inputs = weight.shape
    result = torch.zeros(n) if bias is None else bias.clone()
    vector = x.reshape(-1).contiguous()
    compiled_kernel(add_product, "npnpp")(n, weight.data_ptr(), inputs, vector.data_ptr(), result.data_ptr())
    return result.view(*x.shape[:-1], n)


def row_products(calls: Sequence[Sequence[Any]]) -> Sequence[torch.Tensor]:
    """`row_product` of the arguments of two calls with one weight, which is read once."""
    (x, weight, *others), (other, *_) = calls
    n, inputs = weight.shape
    bias = others[0] if others else None
    rows = torch.stack((x.reshape(-1), other.reshape(-1)))
    result = torch.zeros(2, n) if bias is None else bias.repeat(2, 1)
    compiled_kernel(add_products, "npnpp")(n, weight.data_ptr(), inputs, rows.data_ptr(), result.data_ptr())
    return result.view(2, *x.shape[:-1], n).unbind()


def add_product(m: int, weight: Any, k: int, x: Any, result: Any) -> None:
    """Add the product of a weight [m, k] and a vector [k] to a vector [m], in any order of its terms."""
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


def add_products(m: int, weight: Any, k: int, x: Any, result: Any) -> None:
    """Add the products of a weight [m, k] and the rows of x [2, k] to the rows of a result [2, m]."""
    part = m // STREAMS
    for i in range(part):
        first, second, third, fourth = i * k, (part + i) * k, (2 * part + i) * k, (3 * part + i) * k
        a = b = c = d = e = f = g = h = np.float32(0)
        for j in range(k):
            a += weight[first + j] * x[j]
            b += weight[second + j] * x[j]
            c += weight[third + j] * x[j]
            d += weight[fourth + j] * x[j]
            e += weight[first + j] * x[k + j]
            f += weight[second + j] * x[k + j]
            g += weight[third + j] * x[k + j]
            h += weight[fourth + j] * x[k + j]
        result[i] += a
        result[part + i] += b
        result[2 * part + i] += c
        result[3 * part + i] += d
        result[m + i] += e
        result[m + part + i] += f
        result[m + 2 * part + i] += g
        result[m + 3 * part + i] += h
    for i in range(STREAMS * part, m):
        one = other = np.float32(0)
        for j in range(k):
            one += weight[i * k + j] * x[j]
            other += weight[i * k + j] * x[k + j]
        result[i] += one
        result[m + i] += other
