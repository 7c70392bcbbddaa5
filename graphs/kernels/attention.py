"""Attention on one core: scores and mixing by oneDNN, for as many heads at once as fit into the core's cache.

Without AVX-512 it takes half of the time of PyTorch's fused operator, whose small blocks of scores keep its products
slow; with AVX-512 it takes a tenth less. Queries, keys and values are read where they lie, unless that is slow, and the
heads of a token are adjacent in the result, so that nothing has to be copied afterwards.
"""

from collections.abc import Sequence
from dataclasses import astuple
from math import ceil, isfinite, prod
from threading import get_ident
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary

from graphs.common.compiled import compiled_kernel
from graphs.kernels.dnnl import (
    DESTINATION,
    SOURCE,
    WEIGHTS,
    Execution,
    Library,
    library,
    scratchpad,
)
from graphs.kernels.kernel import Strided, Writer
from graphs.kernels.norms import soften, soften_masked

CACHE_BYTES = 2**18  # of the scores of some heads
MOST_BYTES = 2**25  # of the scores of a head; PyTorch's operator never has them all in memory
LEAST_QUERIES, LEAST_KEYS = 8, 4  # fewer are no products of matrices
LEAST_PRODUCTS = 2**18  # of a sample: for fewer, three calls take longer than one
PAGE_BYTES, CROWD = 2**12, 64  # as many rows as this, whole pages apart, are copied
BLOCK, MOST_BLOCKS = 64, 8  # queries that are computed together, at least; blocks of them


class _Block(NamedTuple):
    """Queries that are computed together, and the keys that they read."""

    rows: tuple[int, int]
    keys: tuple[int, int]
    mask: torch.Tensor | None  # what is added to their scores


class Attention(Writer):
    """`torch.nn.functional.scaled_dot_product_attention` without dropout, of as many heads of keys as of queries.

    Args of calls are queries [batch, heads, m, k], keys [batch, heads, n, k], values [batch, heads, n, v], and a mask
    that is added, or that says which keys are read, [batch or 1, heads or 1, m or 1, n].
    """

    def __init__(
        self, shapes: Sequence[tuple[int, ...]], scale: float | None, causal: bool, same_mask: bool = False
    ) -> None:
        """Prepare attention for queries, keys and values of these shapes; ``causal`` queries do not read later keys.

        With ``same_mask``, the mask never changes: it is inspected once, and hidden keys are not computed.
        """
        (batch, heads, rows, depth), (*_, columns, _), (*_, width) = shapes
        strides = (rows * heads * width, width, heads * width, 1)
        super().__init__("attention", (), Strided((batch, heads, rows, width), strides))
        self._scale = depth**-0.5 if scale is None else scale
        self._causal = torch.ones(rows, columns, dtype=torch.bool).tril() if causal else None
        self._same_mask = same_mask or causal
        self._parts: dict[tuple[object, ...], Sequence[_Primitives] | None] = {}  # by thread, strides and blocks

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
        """Compute; ``result`` is written if it is given.

        Queries that read no key are left to PyTorch. So are keys and values that are not finite where some are hidden
        from a block: PyTorch computes with more or fewer of those, and NaN times nothing is NaN.
        """
        shown = self._causal if mask is None else mask
        blocks = _kept_blocks(q, k, shown) if shown is not None and self._same_mask else _blocks(q, k, shown)
        if blocks:
            into = self.room(q) if result is None else result
            if self._attend(q, k, v, blocks, into) and (not self._same_mask or isfinite(into.sum().item())):
                return into
        attend = torch.nn.functional.scaled_dot_product_attention
        computed = attend(q, k, v, mask, is_causal=self._causal is not None, scale=self._scale)
        return self.written(computed, result)

    def _attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, blocks: Sequence[_Block], result: torch.Tensor
    ) -> bool:
        """Compute by oneDNN; return False if it cannot, or not quickly."""
        dnnl = library() if torch.get_num_threads() == 1 else None
        if dnnl is None:
            return False
        q, k, v = map(_readable, (q, k, v))
        lying = tuple((each.shape, each.stride()) for each in (q, k, v))
        key = get_ident(), lying, *(block.keys for block in blocks), blocks[0].mask is not None and blocks[0].mask.shape
        if key not in self._parts:
            try:
                self._parts[key] = [_Primitives(dnnl, self._scale, block, (q, k, v, result)) for block in blocks]
            except OSError:
                self._parts[key] = None
        parts = self._parts[key]
        for block, own in zip(blocks, parts or (), strict=parts is not None):
            own(block.mask, q, k, v, result)
        return parts is not None


def _readable(x: torch.Tensor) -> torch.Tensor:
    """Queries, keys or values as products read them quickly.

    Rows that are some pages apart share a few sets of the core's first cache, so that they push each other out.
    """
    crowds = x.shape[-2] >= CROWD and 4 * x.stride(-2) % PAGE_BYTES == 0
    return x.contiguous() if x.stride(-1) != 1 or crowds else x


def _kept_blocks(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor) -> Sequence[_Block]:
    """Return the blocks of a mask that never changes, without keys that no query of a block reads."""
    key = q.shape[1:3]
    of_mask: dict[tuple[int, ...], Sequence[_Block]]
    of_mask = _of_masks.setdefault(mask, {})  # type: ignore[no-untyped-call]  # torch has no types here
    if key not in of_mask:
        of_mask[key] = _blocks(q, k, mask, skips=True)
    return of_mask[key]


_of_masks = WeakIdKeyDictionary()  # blocks of masks that never change, by heads and queries


def _blocks(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor | None, skips: bool = False) -> Sequence[_Block]:
    """Queries in blocks, with the keys that they read; none if a query reads no key.

    A mask that changes is added as it is, and one that does not ``skips`` what no query of a block reads.
    """
    rows, columns = q.shape[2], k.shape[2]
    if mask is None:
        step = rows if 4 * rows * columns <= CACHE_BYTES else max(BLOCK, CACHE_BYTES // (4 * columns))
        return [_Block((at, min(at + step, rows)), (0, columns), None) for at in range(0, rows, step)]
    added = _added(mask)
    if bool((added.amax(-1) == -torch.inf).any()):
        return []
    if not skips or added.shape[2] == 1:
        return [_Block((0, rows), (0, columns), added)]
    step = max(BLOCK, ceil(rows / MOST_BLOCKS / BLOCK) * BLOCK)
    read = (added != -torch.inf).flatten(0, 1).any(0)  # [rows, columns]
    if not bool(read.any(0).all()):  # whether a key that nobody reads is finite counts, too
        return [_Block((0, rows), (0, columns), added)]
    blocks = []
    for at in range(0, rows, step):
        some = read[at : at + step].any(0).nonzero()
        first, last = int(some[0]), int(some[-1]) + 1
        own = added[:, :, at : at + step, first:last].contiguous()
        blocks.append(_Block((at, min(at + step, rows)), (first, last), own))
    return blocks


class _Primitives:
    """The products and the softmax of some heads of a sample for one block."""

    def __init__(self, dnnl: Library, scale: float, block: _Block, moving: Sequence[torch.Tensor]) -> None:
        rows, columns = (stop - start for start, stop in (block.rows, block.keys))
        samples, all_heads = moving[0].shape[:2]
        fitting = max(1, CACHE_BYTES // (4 * rows * columns))
        heads = max(count for count in range(1, all_heads + 1) if all_heads % count == 0 and count <= fitting)
        q, k, v, y = seen = _seen(block, *moving)
        self._begin = [
            4 * int(own.storage_offset() - whole.storage_offset()) for own, whole in zip(seen, moving, strict=True)
        ]
        self._steps = [_steps(_strides(each), heads) for each in seen]
        over = _strides(block.mask) if block.mask is not None else (0, 0, 0, 0)
        self._mask_steps = _steps(over, heads)
        self._parts = samples, all_heads // heads
        q_part, k_part, v_part, y_part = (each[:1, :heads] for each in (q, k, v, y))
        q_layout, k_layout, v_layout, y_layout = map(dnnl.layout_of, (q_part, k_part.mT, v_part, y_part))
        shape = 1, heads, rows, columns
        scores = dnnl.layout(*astuple(Strided.contiguous(shape)))
        self._scores = scratchpad(4 * prod(shape), "scores")
        # the softmax scales and masks, since steps after a product make the product up to a quarter slower
        score = dnnl.describe("matmul", dnnl.engine, q_layout, k_layout, None, scores, dnnl.attributes())
        self._score = Execution(dnnl, score, {SOURCE: q_layout, WEIGHTS: k_layout, DESTINATION: scores})
        self._form, self._scale = np.array([heads, rows, columns, *over[1:3]], np.int64), scale
        mix = dnnl.describe("matmul", dnnl.engine, scores, v_layout, None, y_layout, dnnl.attributes())
        self._mix = Execution(dnnl, mix, {SOURCE: scores, WEIGHTS: v_layout, DESTINATION: y_layout})

    def __call__(self, mask: torch.Tensor | None, *moving: torch.Tensor) -> None:
        scores = self._scores.data_ptr()
        softmax = compiled_kernel(soften, "pcx") if mask is None else compiled_kernel(soften_masked, "pcxp")
        form = self._form.ctypes.data
        begin = [each.data_ptr() + offset for each, offset in zip(moving, self._begin, strict=True)]
        (mask_sample, mask_head), (samples, parts) = self._mask_steps, self._parts
        for i in range(samples):
            for j in range(parts):
                q, k, v, y = (
                    start + i * sample + j * head for start, (sample, head) in zip(begin, self._steps, strict=True)
                )
                added = () if mask is None else (mask.data_ptr() + i * mask_sample + j * mask_head,)
                self._score(q, k, scores)
                softmax(scores, form, self._scale, *added)
                self._mix(scores, v, y)


def _seen(
    block: _Block, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Return views of the parts of queries, keys, values and result that a block reads and writes."""
    rows, keys = slice(*block.rows), slice(*block.keys)
    return q[:, :, rows], k[:, :, keys], v[:, :, keys], y[:, :, rows]


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the distance of a tensor's elements along each axis; 0 where it has one only."""
    return tuple(step if size > 1 else 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _steps(strides: Sequence[int], heads: int) -> tuple[int, int]:
    """Bytes from one sample of a tensor with these strides to the next, and from some heads to the next ones."""
    sample, head, *_ = strides
    return 4 * sample, 4 * head * heads


def _added(mask: torch.Tensor) -> torch.Tensor:
    """Return the term that a mask adds to the scores, with four axes like theirs; -inf where a bool mask is False."""
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape).masked_fill_(mask.logical_not(), -torch.inf)
    return mask[(None,) * (4 - mask.dim())].contiguous()
