"""Transformer: a stack of equal layers between an embedding and a head; its parameters and its FLOP in closed form.

With L layers, hidden size h, feed-forward size f, s tokens of a sample, V words and a micro-batch of b samples:

::

    parameters of a layer   2 (1 + kv) h^2 + 2 h f (3 h f if gated), biases, two norms     kv: key heads / heads
    FLOP of a layer, forward     2 b s (those products) + 4 b s^2 h
    FLOP of the head, forward    2 b s h V

A backward pass is twice a forward pass. Of a classic GPT (f = 4 h, kv = 1, biases) a step with everything recomputed
takes 96 b s L h^2 (1 + s / (6 h) + V / (16 L h)) FLOP, and its parameters are
12 L h^2 (1 + 13 / (12 h) + (V + s) / (12 L h)), as printed.

Source: Narayanan et al., Efficient large-scale language model training on GPU clusters using Megatron-LM, SC 2021.
"""

from dataclasses import dataclass

from graphs.brief import Brief
from graphs.checks import check_fields, whole
from graphs.errors import InputError

LAYER_NORM, RMS_NORM = 2, 1
"""Vectors of a norm: scale and shift, or scale alone."""


@dataclass(frozen=True)
class Transformer(Brief):
    """A language model, as far as costs depend on it.

    Raises:
        InputError: for a number below 1, or heads that do not divide.
    """

    layers: int  # how many there are
    hidden: int  # values of a token between layers
    heads: int  # attention heads; they divide ``hidden``
    sequence: int = 2048  # tokens of a sample
    vocabulary: int = 51200  # words; rows of the embedding
    ffn: int = 0  # values of a token within the feed-forward part; 0 for four times ``hidden``
    kv_heads: int = 0  # heads of keys and values; 0 for as many as ``heads``
    gated: bool = False  # whether the feed-forward part multiplies two products, as SwiGLU does
    norm_vectors: int = LAYER_NORM  # `LAYER_NORM` or `RMS_NORM`
    biases: bool = True  # whether products have biases
    positions: bool = True  # whether positions are learned, a row each
    untied: bool = False  # whether the head has weights of its own
    dropout: bool = True  # whether masks are kept for the backward pass
    flash: bool = False  # whether attention keeps no scores (Dao et al., FlashAttention, NeurIPS 2022)

    def __post_init__(self) -> None:
        check_fields(self, "the transformer")
        for name in ("layers", "hidden", "heads", "sequence", "vocabulary"):
            whole(getattr(self, name), name, 1)
        object.__setattr__(self, "ffn", whole(self.ffn or 4 * self.hidden, "ffn", 1))
        object.__setattr__(self, "kv_heads", whole(self.kv_heads or self.heads, "kv_heads", 1))
        for whole_name, part_name in (("hidden", "heads"), ("heads", "kv_heads")):
            number, part = getattr(self, whole_name), getattr(self, part_name)
            if number % part:
                raise InputError(
                    f"{part_name} = {part} does not divide {whole_name} = {number}; the nearest that does is "
                    f"{nearest_divisor(number, part)}"
                )

    @property
    def kv_share(self) -> float:
        """Heads of keys and values, as a share of those of queries."""
        return self.kv_heads / self.heads

    @property
    def product_parameters(self) -> int:
        """Of a layer's matrices, which tensor parallelism splits."""
        attention = 2 * self.hidden * (self.hidden + self.hidden * self.kv_heads // self.heads)
        return attention + (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def vector_parameters(self) -> int:
        """Of a layer's norms and biases."""
        kv = self.hidden * self.kv_heads // self.heads
        biases = self.hidden + 2 * kv + self.hidden + self.ffn * (2 if self.gated else 1) + self.hidden
        return 2 * self.norm_vectors * self.hidden + biases * self.biases

    @property
    def layer_parameters(self) -> int:
        """Of a layer."""
        return self.product_parameters + self.vector_parameters

    @property
    def embedding_parameters(self) -> int:
        """Of words and positions."""
        return (self.vocabulary + self.sequence * self.positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Of the head's own weights."""
        return self.vocabulary * self.hidden * self.untied

    @property
    def parameters(self) -> int:
        """Of all; the last norm is left out, as in the closed form."""
        return self.layers * self.layer_parameters + self.embedding_parameters + self.head_parameters

    def product_flops(self, samples: int) -> float:
        """FLOP of a layer's matrices, forward."""
        return 2.0 * samples * self.sequence * self.product_parameters

    def attention_flops(self, samples: int) -> float:
        """FLOP of a layer's scores and of what they weigh, forward; masked ones count."""
        return 4.0 * samples * self.sequence**2 * self.hidden

    def layer_flops(self, samples: int) -> float:
        """FLOP of a layer, forward."""
        return self.product_flops(samples) + self.attention_flops(samples)

    def head_flops(self, samples: int) -> float:
        """FLOP of the head, forward."""
        return 2.0 * samples * self.sequence * self.hidden * self.vocabulary

    def step_flops(self, samples: int, recompute: bool = False) -> float:
        """FLOP of a training step; what is recomputed counts again only where that is said."""
        return (4 if recompute else 3) * self.layers * self.layer_flops(samples) + 3 * self.head_flops(samples)


def nearest_divisor(number: int, wanted: int) -> int:
    """The divisor of a number that is closest to the wanted one; the smaller of two."""
    return min(
        (part for part in range(1, number + 1) if number % part == 0), key=lambda part: (abs(part - wanted), part)
    )
