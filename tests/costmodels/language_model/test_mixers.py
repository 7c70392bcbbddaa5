"""FLOP and caches of mixers, by hand."""

import pytest

from costmodels.language_model.feed_forward import Experts
from costmodels.language_model.mixers import (
    CompressedAttention,
    GroupedAttention,
    LatentAttention,
    Recurrence,
    visible_pairs,
)
from graphs.common.errors import InputError


@pytest.mark.parametrize(
    ("tokens", "cached", "window", "pairs"),
    [(3, 0, 0, 1 + 2 + 3), (3, 4, 0, 5 + 6 + 7), (5, 0, 2, 1 + 2 * 4), (4, 3, 5, 4 + 5 + 5 + 5), (2, 9, 4, 4 + 4)],
)
def test_pairs_that_the_mask_leaves(tokens: int, cached: int, window: int, pairs: int) -> None:
    assert visible_pairs(tokens, cached, window) == pairs
    each = [min(cached + number, window or cached + number) for number in range(1, tokens + 1)]
    assert sum(each) == pairs


def test_a_prompt_is_its_tokens_one_by_one() -> None:
    attention = GroupedAttention(heads=8, kv_heads=2, key_size=16, value_size=24, window=5)
    assert attention.prefill_flops(7, 3) == sum(attention.decode_flops(context) for context in range(4, 11))
    assert attention.decode_flops(100) == 2 * 8 * (16 + 24) * 5


def test_a_shared_cache_is_read_and_not_kept() -> None:
    attention = GroupedAttention(heads=8, kv_heads=2, key_size=16, value_size=16, keeps_cache=False)
    assert attention.cache_bytes(10, 2) == 0
    assert attention.read_bytes(10, 2) == 10 * 2 * 32 * 2


def test_latent_attention_absorbs_products_for_one_token_and_not_for_a_prompt() -> None:
    """Scores take 512 + 64 products a head and sums 512; a prompt's take 128 + 64 and 128."""
    latent = LatentAttention(heads=128, latent=512, rope_size=64, key_size=128, value_size=128)
    assert latent.decode_flops(10) == 2 * 128 * (512 + 64 + 512) * 10
    assert latent.prefill_flops(4) == 2 * 128 * (128 + 64 + 128) * 10
    assert latent.cache_bytes(10, 1) == 5760


def test_selected_tokens_alone_are_read() -> None:
    sparse = LatentAttention(*(64, 512, 64, 128, 128), query_latent=1536, selected=100, index_heads=32, index_size=128)
    assert sparse.read_bytes(1000, 1) == 100 * 576 + 1000 * 128
    assert sparse.cache_bytes(1000, 1) == 1000 * (576 + 128)
    assert sparse.decode_flops(1000) == 2 * 64 * 1088 * 100 + 2 * 32 * 128 * 1000


def test_a_state_is_constant() -> None:
    state = Recurrence("mamba2", state=1000, convolution=30, heads=2)
    assert state.cache_bytes(1, 2) == state.cache_bytes(10**6, 2) == 4060
    assert state.prefill_flops(10) == 10 * state.decode_flops(5)


def test_experts_that_a_batch_reads() -> None:
    """One token takes its 8 of 64; 8 tokens miss an expert with the chance (7/8)^8."""
    experts = Experts(count=64, active=8, width=10)
    assert experts.expected_distinct(1) == 8
    assert experts.expected_distinct(8) == pytest.approx(64 * (1 - (7 / 8) ** 8))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: GroupedAttention(8, 3, 16, 16), "8 heads and 3 key-value heads; give a number that divides 8"),
        (lambda: Recurrence("mamba", 0), "has no state and no convolution"),
        (lambda: Experts(4, 5, 10), "5 of 4 experts are active; give at most 4"),
        (lambda: CompressedAttention(8, 8, 4, index_size=4), "an indexer and no entries; give the tokens of an entry"),
        (lambda: LatentAttention(8, 0, 64, 128, 128), "latent attention: latent is 0"),
    ],
)
def test_wrong_sizes_are_named(make: object, text: str) -> None:
    assert callable(make)
    with pytest.raises(InputError) as error:
        make()
    assert text in str(error.value)


def test_compressed_attention_is_its_tokens_one_by_one() -> None:
    """Token 11 sees 4 tokens, 2 of the 3 entries of 4 tokens that precede it, and its indexer scores all of these."""
    sparse = CompressedAttention(heads=2, key_size=8, window=4, rate=3, selected=2, index_heads=3, index_size=5)
    assert sparse.decode_flops(11) == 4 * 2 * 8 * (4 + 2) + 2 * 3 * 5 * 3
    for cached, tokens in ((0, 20), (2, 1), (5, 13)):
        each = (sparse.decode_flops(context) for context in range(cached + 1, cached + tokens + 1))
        assert sparse.prefill_flops(tokens, cached) == sum(each)
    alone = CompressedAttention(heads=2, key_size=8, window=4)
    assert alone.cache_bytes(100, 2) == 4 * 8 * 2
    assert alone.decode_flops(100) == 4 * 2 * 8 * 4
