"""Attention by oneDNN against PyTorch's operator."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs.kernels import attention
from graphs.kernels.attention import Attention
from graphs.kernels.dnnl import library
from graphs.rewrites.patterns import Step

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(library() is None, reason="oneDNN's wheel is for Linux on x86-64"),
]
attend = torch.nn.functional.scaled_dot_product_attention


def laid_out(shape: tuple[int, ...], heads_first: bool) -> torch.Tensor:
    """Numbers [batch, heads, tokens, width], in this order or as a product of all heads leaves them."""
    batch, heads, tokens, width = shape
    return torch.randn(shape) if heads_first else torch.randn(batch, tokens, heads, width).transpose(1, 2)


@settings(max_examples=30)
@given(data=st.data())
def test_it_agrees_with_pytorch_wherever_tensors_lie(data: st.DataObject) -> None:
    batch, heads, m, n, k, v = (data.draw(st.integers(1, most)) for most in (3, 6, 9, 9, 5, 5))
    torch.manual_seed(0)
    firsts = data.draw(st.tuples(st.booleans(), st.booleans(), st.booleans()), "order")
    shapes = (batch, heads, m, k), (batch, heads, n, k), (batch, heads, n, v)
    q, key, value = (laid_out(shape, first) for shape, first in zip(shapes, firsts, strict=True))
    causal = data.draw(st.booleans(), "causal")
    over = tuple(size if data.draw(st.booleans(), "wide") else 1 for size in (batch, heads, m))
    masks = [None, torch.rand(*over, n) > 0.3, torch.randn(*over, n), torch.randn(m, n)]
    mask = None if causal else data.draw(st.sampled_from(masks), "mask")
    scale = data.draw(st.sampled_from([None, 0.3]), "scale")
    own = Attention((q.shape, key.shape, value.shape), scale, causal, data.draw(st.booleans(), "same mask"))
    expected = attend(q, key, value, mask, is_causal=causal, scale=scale)
    result = torch.empty_strided(own.result.shape, own.result.strides).fill_(7.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "CACHE_BYTES", data.draw(st.sampled_from([64, 2**20]), "cache"))
        patch.setattr(attention, "BLOCK", data.draw(st.sampled_from([1, 2, 64]), "block"))
        for _ in range(2):  # made, and made use of again
            torch.testing.assert_close(own(q, key, value, mask), expected, rtol=1e-4, atol=1e-5)
            own(q, key, value, mask, result=result)
            torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


def test_keys_that_no_query_of_a_block_reads_are_not_looked_at() -> None:
    """Queries read themselves and the three before: of eight, queries 4 and 5 read keys 1 to 5."""
    q = torch.randn(1, 2, 8, 4)
    distance = torch.arange(8)[:, None] - torch.arange(8)
    mask = (distance >= 0) & (distance < 4)
    own = Attention((q.shape, q.shape, q.shape), None, causal=False, same_mask=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "BLOCK", 2)
        torch.testing.assert_close(own(q, q, q, mask), attend(q, q, q, mask), rtol=1e-4, atol=1e-5)
    (blocks,) = attention._of_masks[mask].values()
    assert [block.keys for block in blocks] == [(0, 2), (0, 4), (1, 6), (3, 8)]


def test_rows_that_are_whole_pages_apart() -> None:
    q, k, v = (laid_out((1, 16, 70, 64), heads_first=False) for _ in range(3))
    own = Attention((q.shape, k.shape, v.shape), None, causal=False)
    torch.testing.assert_close(own(q, k, v), attend(q, k, v), rtol=1e-4, atol=1e-5)


def test_queries_that_read_no_key_are_as_pytorch_has_them() -> None:
    q, k, v = (torch.randn(1, 2, 8, 4) for _ in range(3))
    mask = torch.ones(8, 8, dtype=torch.bool)
    mask[3] = False
    own = Attention((q.shape, k.shape, v.shape), None, causal=False)
    torch.testing.assert_close(own(q, k, v, mask), attend(q, k, v, mask), equal_nan=True)


@pytest.mark.parametrize("mask", [(1, 1, 1, 196), (1, 1, 196, 196), (1, 12, 1, 196), (1, 12, 196, 196)])
def test_no_mask_leads_to_the_reference_implementation(mask: tuple[int, ...]) -> None:
    """It takes 250 times as long as PyTorch's operator; a half of the heads at once are no dense part of all."""
    q, added = torch.randn(1, 12, 196, 16), torch.randn(mask)
    own = Attention((q.shape, q.shape, q.shape), None, causal=False)
    torch.testing.assert_close(own(q, q, q, added), attend(q, q, q, added), rtol=1e-4, atol=1e-5)
    assert None not in own._parts.values()


def test_what_only_the_reference_implementation_knows_is_left_to_pytorch() -> None:
    dnnl = library()
    assert dnnl is not None
    odd = dnnl.layout((1, 6, 20, 20), (4800, 400, 20, 1))  # the stride beside the axis of 1 is that of twelve
    scores, q = dnnl.layout((1, 6, 20, 20), (2400, 400, 20, 1)), dnnl.layout((1, 6, 20, 4), (960, 80, 4, 1))
    k, after = dnnl.layout((1, 6, 4, 20), (960, 80, 1, 4)), dnnl.attributes([Step("add", other="mask")], odd)
    with pytest.raises(OSError, match="oneDNN has no quick matmul for these layouts"):
        dnnl.describe("matmul", dnnl.engine, q, k, None, scores, after)


@pytest.mark.parametrize(
    ("shapes", "known"),
    [
        (((1, 12, 128, 64),) * 3, True),
        (((1, 12, 1, 64), (1, 12, 128, 64), (1, 12, 128, 64)), False),  # a token at a time
        (((1, 12, 128, 64), (1, 4, 128, 64), (1, 4, 128, 64)), False),  # groups of heads
        (((12, 128, 64),) * 3, False),
        (((1, 1, 16384, 64),) * 3, False),  # a gigabyte of scores
        (((1, 2, 8, 4),) * 3, False),
        (((64, 3, 49, 32),) * 3, False),  # small windows
        (((1, 8, 2000, 64), (1, 8, 2, 64), (1, 8, 2, 64)), False),
    ],
)
def test_what_it_is_quick_at(shapes: tuple[tuple[int, ...], ...], known: bool) -> None:
    assert Attention.knows(*shapes) is known
