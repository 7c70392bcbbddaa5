"""Mixers: the parts of a layer in which tokens see each other, and what each keeps of past tokens for each sequence.

::

    GroupedAttention     2 key-value heads · head size values a token; a window caps the tokens
    LatentAttention      the latent and the rotated key, once for all heads
    CompressedAttention  the latest tokens as they are, and one entry for several tokens of all
    Recurrence           a constant: the state, and the last inputs of a short convolution

FLOP are of scores and weighted values alone; products with weights are counted by the tensors. One multiply-add is 2.

Sources: Shazeer, arXiv 1911.02150 (few key heads); DeepSeek-V2, arXiv 2405.04434 (latent attention, and its form that
absorbs the products of keys and values); DeepSeek-V3.2, arXiv 2512.02556 (an indexer that selects tokens); DeepSeek-V4
as transformers has it (compressed attention); Dao and Gu, Mamba-2, ICML 2024; Yang et al., Gated Delta Networks, ICLR
2025; Beck et al., xLSTM, arXiv 2405.04517.
"""

from dataclasses import dataclass
from typing import Literal

from graphs.common.brief import Brief
from graphs.common.checks import check_fields, integer
from graphs.common.errors import InputError

STATE_BYTES = 4  # of a value of a state, which engines keep in float32


def _check_counts(record: object, where: str, least: int, *names: str) -> None:
    for name in names:
        integer(getattr(record, name), f"{where}: {name}", least)


@dataclass(frozen=True)
class GroupedAttention(Brief):
    """Hold the sizes of attention whose heads may share keys and values in groups.

    Raises:
        InputError: for a count below its least, or key heads that do not divide the heads.
    """

    heads: int
    kv_heads: int  # heads of keys and values
    key_size: int  # values of a key of a head
    value_size: int  # values of a value of a head
    window: int = 0  # latest tokens that a token attends to, itself included; 0 for all
    keeps_cache: bool = True  # False if the layer reads the keys and values of an earlier layer

    def __post_init__(self) -> None:
        check_fields(self, "attention")
        _check_counts(self, "attention", 1, "heads", "kv_heads", "key_size", "value_size")
        _check_counts(self, "attention", 0, "window")
        if self.heads % self.kv_heads:
            raise InputError(
                f"attention has {self.heads} heads and {self.kv_heads} key-value heads; give a number that divides "
                f"{self.heads}"
            )

    def cached_tokens(self, tokens: int) -> int:
        """Return how many of a sequence's tokens have keys and values in the cache."""
        return min(tokens, self.window) if self.window else tokens

    def cache_bytes(self, tokens: int, value_bytes: float) -> float:
        """Return the bytes of the cache of a sequence of this length, at ``value_bytes`` for each value."""
        values = self.kv_heads * (self.key_size + self.value_size)
        return self.keeps_cache * self.cached_tokens(tokens) * values * value_bytes

    def read_bytes(self, tokens: int, value_bytes: float) -> float:
        """Return the bytes of a sequence's cache that one more token reads."""
        return self.cached_tokens(tokens) * self.kv_heads * (self.key_size + self.value_size) * value_bytes

    def decode_flops(self, context: int) -> float:
        """Return the FLOP of one token that attends to ``context`` tokens, itself included."""
        return 2.0 * self.heads * (self.key_size + self.value_size) * self.cached_tokens(context)

    def prefill_flops(self, tokens: int, cached: int = 0) -> float:
        """Return the FLOP of a prompt's ``tokens`` after ``cached`` ones; scores that the mask hides do not count."""
        return 2.0 * self.heads * (self.key_size + self.value_size) * visible_pairs(tokens, cached, self.window)


@dataclass(frozen=True)
class LatentAttention(Brief):
    """Multi-head latent attention: keys and values of all heads are products of one latent.

    With ``selected`` tokens, an indexer scores all tokens and attention reads those with the highest scores.

    Raises:
        InputError: for a count below its least.
    """

    heads: int
    latent: int  # values of the latent, of which keys and values are made
    rope_size: int  # rotated values of a key, shared by all heads
    key_size: int  # values of a key of a head that are not rotated
    value_size: int  # values of a value of a head
    query_latent: int = 0  # values of the queries' latent; 0 if queries are one product
    selected: int = 0  # tokens that a token attends to, by the indexer's scores; 0 for all
    index_heads: int = 0  # of the indexer
    index_size: int = 0  # values of a head of the indexer; its key is cached once for all heads

    def __post_init__(self) -> None:
        check_fields(self, "latent attention")
        _check_counts(self, "latent attention", 1, "heads", "latent", "key_size", "value_size")
        _check_counts(self, "latent attention", 0, "rope_size", "query_latent", "selected", "index_heads", "index_size")

    def cached_tokens(self, tokens: int) -> int:
        """Return how many of a sequence's tokens have a latent in the cache."""
        return tokens

    def cache_bytes(self, tokens: int, value_bytes: float) -> float:
        """Return the bytes of the cache of a sequence of this length, at ``value_bytes`` for each value."""
        return tokens * (self.latent + self.rope_size + self.index_size) * value_bytes

    def read_bytes(self, tokens: int, value_bytes: float) -> float:
        """Return the bytes of a sequence's cache that one more token reads."""
        attended = min(tokens, self.selected or tokens)
        return (attended * (self.latent + self.rope_size) + tokens * self.index_size) * value_bytes

    def decode_flops(self, context: int) -> float:
        """Return the FLOP of one token: scores and sums of latents, the products of keys and values absorbed."""
        attended = min(context, self.selected or context)
        index = 2.0 * self.index_heads * self.index_size * context
        return 2.0 * self.heads * (2 * self.latent + self.rope_size) * attended + index

    def prefill_flops(self, tokens: int, cached: int = 0) -> float:
        """Return the FLOP of a prompt's ``tokens`` after ``cached`` ones, with keys and values made of the latents."""
        pairs = visible_pairs(tokens, cached, self.selected)
        index = 2.0 * self.index_heads * self.index_size * visible_pairs(tokens, cached)
        return 2.0 * self.heads * (self.key_size + self.rope_size + self.value_size) * pairs + index


@dataclass(frozen=True)
class CompressedAttention(Brief):
    """Attention to the latest tokens and to entries, each of which is made of several tokens.

    Keys are values, and all heads share them. Tokens wait in a buffer, with the gates that weigh them, until there are
    enough for an entry. Where entries overlap, an entry is made of twice as many tokens, so the buffer has two series,
    and half of the tokens before it are kept. With ``selected`` entries, an indexer scores all entries of its own.

    Raises:
        InputError: for a count below its least, or an indexer without entries.
    """

    heads: int
    key_size: int  # values of a key, which is the value as well
    window: int  # latest tokens that a token attends to, itself included
    rate: int = 0  # tokens for each entry; 0 if the window is all
    overlaps: bool = False  # whether an entry is made of the tokens of the entry before it, too
    selected: int = 0  # entries that a token attends to, by the indexer's scores; 0 for all
    index_heads: int = 0  # of the indexer
    index_size: int = 0  # values of a head of the indexer; its entries are cached once for all heads

    def __post_init__(self) -> None:
        check_fields(self, "compressed attention")
        _check_counts(self, "compressed attention", 1, "heads", "key_size", "window")
        _check_counts(self, "compressed attention", 0, "rate", "selected", "index_heads", "index_size")
        if self.index_size and not self.rate:
            raise InputError("compressed attention has an indexer and no entries; give the tokens of an entry (rate)")

    def cached_tokens(self, tokens: int) -> int:
        """Return how many of a sequence's tokens have keys of their own in the cache."""
        return min(tokens, self.window)

    def entries(self, tokens: int) -> int:
        """Return how many entries some tokens make."""
        return tokens // self.rate if self.rate else 0

    def cache_bytes(self, tokens: int, value_bytes: float) -> float:
        """Return the bytes of the cache of a sequence of this length, its buffers as full as they get."""
        entry = self.key_size + self.index_size
        waiting = min(tokens, max(0, self.rate - 1)) * 2 * (2 if self.overlaps else 1)  # values and gates
        before = 2 * self.rate if self.overlaps and tokens >= self.rate else 0
        values = self.cached_tokens(tokens) * self.key_size + (self.entries(tokens) + waiting + before) * entry
        return values * value_bytes

    def read_bytes(self, tokens: int, value_bytes: float) -> float:
        """Return the bytes of a sequence's cache that one more token reads; buffers are small."""
        entries = self.entries(tokens)
        attended = self.cached_tokens(tokens) + min(entries, self.selected or entries)
        return (attended * self.key_size + entries * self.index_size) * value_bytes

    def decode_flops(self, context: int) -> float:
        """Return the FLOP of one token that attends to ``context`` tokens, itself included."""
        return self.prefill_flops(1, context - 1)

    def prefill_flops(self, tokens: int, cached: int = 0) -> float:
        """Return the FLOP of a prompt's ``tokens`` after ``cached`` ones: scores, sums, and scores of the indexer."""
        last = cached + tokens
        entries = self._entries_seen(last) - self._entries_seen(cached)
        pairs = visible_pairs(tokens, cached, self.window)
        pairs += self._entries_seen(last, self.selected) - self._entries_seen(cached, self.selected)
        return 4.0 * self.heads * self.key_size * pairs + 2.0 * self.index_heads * self.index_size * entries

    def _entries_seen(self, tokens: int, most: int = 0) -> int:
        """Return the sum of min(number // rate, most) over the numbers of all tokens from 1."""
        if not self.rate:
            return 0
        growing = min(tokens, most * self.rate) if most else tokens
        whole, rest = divmod(growing, self.rate)
        return self.rate * whole * (whole - 1) // 2 + whole * (rest + 1) + (tokens - growing) * most


@dataclass(frozen=True)
class Recurrence(Brief):
    """A state that each token updates: state-space models, linear attention, short convolutions.

    Raises:
        InputError: for a count below 0, or a recurrence that keeps nothing.
    """

    kind: Literal["mamba", "mamba2", "delta", "linear", "rwkv", "mlstm", "convolution"]
    state: int  # values of the state of one sequence
    convolution: int = 0  # last inputs of a short convolution that are kept, over all its channels
    heads: int = 0  # of the state; 0 where it has none

    def __post_init__(self) -> None:
        check_fields(self, "a recurrence")
        _check_counts(self, "a recurrence", 0, "state", "convolution", "heads")
        if self.state + self.convolution == 0:
            raise InputError("a recurrence has no state and no convolution; give the values of one of them")

    def cached_tokens(self, tokens: int) -> int:  # noqa: ARG002 - every mixer is asked in the same way
        """Return 0: no token is kept as such."""
        return 0

    def cache_bytes(self, tokens: int, value_bytes: float) -> float:  # noqa: ARG002 - likewise
        """Return the bytes of the state of one sequence, whatever its length; states are float32."""
        return float(self.state * STATE_BYTES + self.convolution * value_bytes)

    def read_bytes(self, tokens: int, value_bytes: float) -> float:
        """Return the bytes of a sequence's state that one more token reads, and writes again."""
        return self.cache_bytes(tokens, value_bytes)

    def decode_flops(self, context: int) -> float:  # noqa: ARG002 - likewise
        """Return the FLOP of one token: each value of the state decays, takes an input, and is read."""
        return {"delta": 8.0}.get(self.kind, 6.0) * self.state

    def prefill_flops(self, tokens: int, cached: int = 0) -> float:
        """Return the FLOP of a prompt's ``tokens``; chunked forms of the recurrence have about as many."""
        return tokens * self.decode_flops(cached)


Mixer = GroupedAttention | LatentAttention | CompressedAttention | Recurrence


def visible_pairs(tokens: int, cached: int = 0, window: int = 0) -> float:
    """Return the pairs of a token and a token that it attends to: ``tokens`` of them follow ``cached`` ones.

    Token i of them (from 1) attends to min(cached + i, window) tokens; a window of 0 is none.
    """
    last = cached + tokens
    if not window or last <= window:
        return tokens * cached + tokens * (tokens + 1) / 2
    growing = max(0, min(tokens, window - cached))  # tokens before the window is full
    return growing * cached + growing * (growing + 1) / 2 + (tokens - growing) * window
