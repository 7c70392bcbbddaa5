"""Attention on one core by oneDNN: scores, softmax and mixing, for as many heads at once as fit into the core's cache.

It takes half of the time of PyTorch's fused operator, whose small blocks of the scores keep its products slow. Queries,
keys and values are read where they lie, and the result lies so that the heads of a token are beside each other: nothing
is copied before or behind.
"""

from collections.abc import Sequence
from dataclasses import astuple
from math import prod
from threading import get_ident

import torch

from costmodels.host.dnnl import (
    DESTINATION,
    INFERENCE,
    SECOND_OTHER,
    SOFTMAX,
    SOURCE,
    WEIGHTS,
    Execution,
    Library,
    library,
    scratchpad,
)
from costmodels.host.kernel import Strided, Writer
from graphs.rewrites.patterns import Step

CACHE_BYTES = 2**20  # of the scores of some heads
MOST_BYTES = 2**25  # of the scores of a head; PyTorch's operator never has them all in memory
LEAST_QUERIES, LEAST_KEYS = 8, 4  # fewer are no products of matrices
LEAST_PRODUCTS = 2**18  # of a sample: for fewer, three calls take longer than one


class Attention(Writer):
    """`torch.nn.functional.scaled_dot_product_attention` without dropout, of as many heads of keys as of queries.

    Args of calls are queries [batch, heads, m, k], keys [batch, heads, n, k], values [batch, heads, n, v], and a mask
    that is added, or that says which keys are read, [batch or 1, heads or 1, m or 1, n].
    """

    def __init__(
        self, q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], scale: float | None, causal: bool
    ) -> None:
        """The attention of tensors of these shapes; ``causal`` queries do not read later keys."""
        batch, heads, rows, depth = q
        width = v[-1]
        strides = (rows * heads * width, width, heads * width, 1)
        super().__init__("attention", (), Strided((batch, heads, rows, width), strides))
        fitting = max(1, CACHE_BYTES // (4 * rows * k[2]))
        self._heads = max(count for count in range(1, heads + 1) if heads % count == 0 and count <= fitting)
        self._scale = depth**-0.5 if scale is None else scale
        self._causal = _added(torch.ones(rows, k[2], dtype=torch.bool).tril()) if causal else None
        self._parts: dict[tuple[object, ...], _Primitives | None] = {}  # by thread and strides

    @staticmethod
    def knows(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> bool:
        """Whether it computes attention of tensors of these shapes, and is quick there."""
        if not len(q) == len(k) == len(v) == 4 or 0 in (*q, *k, *v):
            return False
        alike = q[:2] == k[:2] == v[:2] and k[2] == v[2] and q[3] == k[3]
        large = q[2] >= LEAST_QUERIES and k[2] >= LEAST_KEYS and prod(q[1:]) * k[2] >= LEAST_PRODUCTS
        return alike and large and 4 * q[2] * k[2] <= MOST_BYTES

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor | None = None,
        result: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute; ``result`` is written if it is given. Queries that read no key are left to PyTorch."""
        added = self._causal if mask is None else _added(mask)
        if mask is None or added is None or not bool((added.amax(-1) == -torch.inf).any()):
            into = self.room(q) if result is None else result
            if self._attend(q, k, v, added, into):
                return into
        attend = torch.nn.functional.scaled_dot_product_attention
        computed = attend(q, k, v, mask, is_causal=self._causal is not None, scale=self._scale)
        return self.written(computed, result)

    def _attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, added: torch.Tensor | None, result: torch.Tensor
    ) -> bool:
        """Compute by oneDNN; return False if it cannot, or not quickly."""
        dnnl = library() if torch.get_num_threads() == 1 else None
        if dnnl is None:
            return False
        q, k, v = (each if each.stride(-1) == 1 else each.contiguous() for each in (q, k, v))
        if added is not None and self._heads > 1 and added.shape[1] > added.shape[2] == 1:  # no quick primitive adds it
            added = added.expand(-1, -1, q.shape[2], -1).contiguous()
        read = (q, k, v) if added is None else (q, k, v, added)
        key = get_ident(), *((each.shape, each.stride()) for each in read)
        if key not in self._parts:
            try:
                self._parts[key] = _Primitives(dnnl, self._heads, self._scale, (*read, result))
            except OSError:
                self._parts[key] = None
        parts = self._parts[key]
        if parts is not None:
            parts(*read, result)
        return parts is not None


class _Primitives:
    """The three primitives of some heads of a sample, for tensors that lie in one way."""

    def __init__(self, dnnl: Library, heads: int, scale: float, moving: Sequence[torch.Tensor]) -> None:
        dnnl.use_threads(1)
        q, k = moving[:2]
        self._steps = [_steps(each, heads) for each in moving]
        self._parts = q.shape[0], q.shape[1] // heads
        q_part, k_part, v_part, *mask_parts, y_part = (each[:1, :heads] for each in moving)
        q_layout, k_layout, v_layout, y = map(dnnl.layout_of, (q_part, k_part.mT, v_part, y_part))
        dense = (Strided.contiguous(tuple(each.shape)) for each in mask_parts)  # no stride beside an axis of 1
        masks = [dnnl.layout(*astuple(each)) for each in dense]
        shape = 1, heads, q.shape[2], k.shape[2]
        scores = dnnl.layout(*astuple(Strided.contiguous(shape)))
        self._scores = scratchpad(4 * prod(shape), "scores")
        steps = [Step("scale", (scale,)), *(Step("add", other="mask") for _ in masks)]
        after = dnnl.attributes(steps, *masks)
        score = dnnl.describe("matmul", dnnl.engine, q_layout, k_layout, None, scores, after)
        read = {SOURCE: q_layout, WEIGHTS: k_layout, DESTINATION: scores}
        self._score = Execution(dnnl, score, read | ({SECOND_OTHER: masks[0]} if masks else {}))
        soften = dnnl.describe("softmax_forward", dnnl.engine, INFERENCE, SOFTMAX, scores, scores, 3, dnnl.attributes())
        self._soften = Execution(dnnl, soften, {SOURCE: scores, DESTINATION: scores})
        mix = dnnl.describe("matmul", dnnl.engine, scores, v_layout, None, y, dnnl.attributes())
        self._mix = Execution(dnnl, mix, {SOURCE: scores, WEIGHTS: v_layout, DESTINATION: y})

    def __call__(self, *moving: torch.Tensor) -> None:
        scores, begin = self._scores.data_ptr(), [each.data_ptr() for each in moving]
        samples, parts = self._parts
        for i in range(samples):
            for j in range(parts):
                at = [start + i * sample + j * head for start, (sample, head) in zip(begin, self._steps, strict=True)]
                q, k, v, *masks, y = at
                self._score(q, k, scores, *masks)
                self._soften(scores, scores)
                self._mix(scores, v, y)


def _steps(tensor: torch.Tensor, heads: int) -> tuple[int, int]:
    """Bytes from one sample of a tensor to the next, and from some heads to the next ones; 0 where it has one only."""
    sample, head = (step if size > 1 else 0 for size, step in zip(tensor.shape[:2], tensor.stride()[:2], strict=True))
    return 4 * sample, 4 * head * heads


def _added(mask: torch.Tensor) -> torch.Tensor:
    """What a mask adds to the scores, with as many axes as they have."""
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape).masked_fill_(mask.logical_not(), -torch.inf)
    return mask[(None,) * (4 - mask.dim())].contiguous()
