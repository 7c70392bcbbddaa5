"""Transformer: a stack of equal layers between an embedding and a head; its parameters and its FLOP in closed form.

With L layers, hidden size h, feed-forward size f, s tokens of a sample, V words and a micro-batch of b samples:

::

    parameters of a layer   2 (1 + kv) h a + 2 h f (3 h f if gated), biases, two norms     kv: key heads / heads
    FLOP of a layer, forward     2 b s (those products) + 4 b s^2 a                        a: heads * values of a head
    FLOP of the head, forward    2 b s h V

Heads have h / heads values unless a model says otherwise, so a = h. Scores that a causal mask hides count. A window of
w tokens leaves s^2 - (s - w)^2 of the s^2 scores, counted in the same way: twice the pairs that the mask leaves.

A backward pass is twice a forward pass. Of a classic GPT (f = 4 h, kv = 1, biases) a step with everything recomputed
takes 96 b s L h^2 (1 + s / (6 h) + V / (16 L h)) FLOP, and its parameters are
12 L h^2 (1 + 13 / (12 h) + (V + s) / (12 L h)), as printed.

Source: Narayanan et al., Efficient large-scale language model training on GPU clusters using Megatron-LM, SC 2021.
"""

from dataclasses import dataclass

from costmodels.architecture import Architecture
from graphs.common.brief import Brief
from graphs.common.checks import check_fields, integer
from graphs.common.errors import InputError
from planner.parallelism.closed_form.mixture import Mixture

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
    head_dim: int = 0  # values of a head; 0 for ``hidden`` / ``heads``
    position_rows: int = 0  # of learned positions; 0 for as many as ``sequence``
    qkv_biases: bool = False  # whether queries, keys and values have biases where other products have none
    window: int = 0  # tokens that a token attends to, itself included; 0 for all before it
    architecture: Architecture | None = None  # what costs do not depend on, if it is known
    mixture: Mixture | None = None  # of experts; ``ffn`` then is the mean of what a token has within layers

    def __post_init__(self) -> None:
        check_fields(self, "the transformer")
        for name in ("layers", "hidden", "heads", "sequence", "vocabulary"):
            integer(getattr(self, name), name, 1)
        object.__setattr__(self, "ffn", integer(self.ffn or 4 * self.hidden, "ffn", 1))
        object.__setattr__(self, "kv_heads", integer(self.kv_heads or self.heads, "kv_heads", 1))
        for name in ("head_dim", "position_rows", "window"):
            integer(getattr(self, name), name, 0)
        for whole_name, part_name in (("hidden", "heads"), ("heads", "kv_heads")):
            number, part = getattr(self, whole_name), getattr(self, part_name)
            if number % part and not (part_name == "heads" and self.head_dim):
                raise InputError(
                    f"{part_name} = {part} does not divide {whole_name} = {number}; the nearest that does is "
                    f"{nearest_divisor(number, part)}"
                )
        object.__setattr__(self, "head_dim", self.head_dim or self.hidden // self.heads)
        if self.positions and self.position_rows and self.sequence > self.position_rows:
            raise InputError(
                f"a sequence of {self.sequence:,} tokens is longer than the {self.position_rows:,} learned positions; "
                "take a shorter one"
            )

    @property
    def attention_values(self) -> int:
        """Values of a token within attention, over all heads."""
        return self.heads * self.head_dim

    @property
    def kv_share(self) -> float:
        """Heads of keys and values as a share of the heads of queries."""
        return self.kv_heads / self.heads

    @property
    def product_parameters(self) -> float:
        """Parameters of a layer's matrices besides experts, which tensor parallelism splits."""
        if self.mixture is not None:
            return self.mixture.product_parameters / self.layers
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return attention + (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def expert_parameters(self) -> float:
        """Parameters of a layer's experts; 0 without experts."""
        return self.mixture.expert_parameters / self.layers if self.mixture is not None else 0

    @property
    def active_product_parameters(self) -> float:
        """Parameters of a layer's matrices that a token is multiplied by."""
        if self.mixture is None:
            return self.product_parameters
        return self.product_parameters + self.expert_parameters * self.mixture.active_share

    @property
    def vector_parameters(self) -> float:
        """Parameters of a layer's norms and biases."""
        if self.mixture is not None:
            return self.mixture.vector_parameters / self.layers
        qkv = self.head_dim * (self.heads + 2 * self.kv_heads)
        others = 2 * self.hidden + self.ffn * (2 if self.gated else 1)
        biases = qkv * (self.biases or self.qkv_biases) + others * self.biases
        return 2 * self.norm_vectors * self.hidden + biases

    @property
    def layer_parameters(self) -> float:
        """Parameters of a layer; of a mixture, the mean of all layers."""
        return self.product_parameters + self.expert_parameters + self.vector_parameters

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embeddings of words and positions."""
        return (self.vocabulary + (self.position_rows or self.sequence) * self.positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Parameters of the head's own weights; 0 if the head is tied."""
        return self.vocabulary * self.hidden * self.untied

    @property
    def parameters(self) -> int:
        """Parameters of the model; the last norm is left out, as in the closed form."""
        return round(self.layers * self.layer_parameters) + self.embedding_parameters + self.head_parameters

    def product_flops(self, samples: int) -> float:
        """Return the FLOP of a layer's matrices, forward."""
        return 2.0 * samples * self.sequence * self.active_product_parameters

    def expert_flops(self, samples: int) -> float:
        """Return the FLOP of a layer's experts, forward; they are among `product_flops`."""
        return 2.0 * samples * self.sequence * (self.active_product_parameters - self.product_parameters)

    def attention_flops(self, samples: int) -> float:
        """Return the FLOP of a layer's scores and weighted values, forward; scores that a causal mask hides count."""
        beyond = max(0, self.sequence - self.window) if self.window else 0
        return 4.0 * samples * (self.sequence**2 - beyond**2) * self.attention_values

    def layer_flops(self, samples: int) -> float:
        """Return the FLOP of a layer, forward."""
        return self.product_flops(samples) + self.attention_flops(samples)

    def head_flops(self, samples: int) -> float:
        """Return the FLOP of the head, forward."""
        return 2.0 * samples * self.sequence * self.hidden * self.vocabulary

    def step_flops(self, samples: int, recompute: bool = False) -> float:
        """Return the FLOP of a training step; recomputed layers count again only if ``recompute`` is set."""
        return (4 if recompute else 3) * self.layers * self.layer_flops(samples) + 3 * self.head_flops(samples)


def nearest_divisor(number: int, wanted: int) -> int:
    """Return the divisor of a number that is closest to the wanted one; the smaller of two."""
    return min(
        (part for part in range(1, number + 1) if number % part == 0), key=lambda part: (abs(part - wanted), part)
    )
