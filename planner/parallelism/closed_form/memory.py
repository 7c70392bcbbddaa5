"""Memory of training a transformer in closed form: states under ZeRO, and activations under every way to split them.

States, for each of P parameters in mixed precision: 2 bytes of parameters, 2 of gradients and 12 of Adam (float32
parameters and two moments). ZeRO divides Adam (stage 1), gradients too (2), parameters too (3) among N ranks.

Activations of a layer in 16 bits: t tensor-parallel ranks, hidden size h, n heads with a values, s tokens, b samples:

::

    whole on every rank           s b h (8 + 2 dropout)                        inputs of norms and products, masks
    divided by t                  s b (4 a (1 + kv) + 4 f)                     = 24 s b h if a = h; 6 f if gated
    scores, divided by t          n s^2 b (2 + 3 dropout)                      = 5 n s^2 b; none with selective
                                                                               recomputation or FlashAttention
    sequence parallelism          divides what is whole by t too
    full recomputation            2 s b h, the layer's input
    experts, divided by t         4 s b h for each expert of a token: what the expert read and wrote

Sources: Rajbhandari et al., ZeRO, SC 2020, arXiv 1910.02054; Korthikanti et al., Reducing activation recomputation in
large transformer models, MLSys 2023, arXiv 2205.05198, table 2.
"""

from dataclasses import dataclass

from costmodels.workload import RecomputeMode
from graphs.common.checks import check_fields, integer
from planner.parallelism.closed_form.transformer import Transformer

PARAMETER, GRADIENT, ADAM = 2, 2, 12  # bytes in mixed precision
FLOAT32 = FLOAT32_GRADIENT = 4
ROUTED = 4  # bytes of a value that an expert reads, and of one that an expert wrote


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """How a layer's activations are divided and kept."""

    tensor: int = 1  # ranks that share every product
    sequence_parallel: bool = False  # whether they share norms and dropouts too, by tokens
    recompute: RecomputeMode = "none"  # what runs again in the backward pass

    def __post_init__(self) -> None:
        check_fields(self, "the split of a layer")
        integer(self.tensor, "tensor", 1)


def zero_states(
    parameters: float, ranks: int, stage: int, optimizer_bytes: int = ADAM, gradient_bytes: int = GRADIENT
) -> float:
    """Return bytes of parameters, gradients and optimizer on each rank."""
    parts = (PARAMETER, gradient_bytes, optimizer_bytes)
    return sum(part * parameters / (ranks if stage >= 3 - i else 1) for i, part in enumerate(parts))


def layer_activations(network: Transformer, samples: int, split: LayerSplit) -> float:
    """Return bytes that one layer keeps of a micro-batch for its backward pass, on one rank."""
    tokens, t = samples * network.sequence, split.tensor
    if split.recompute == "full":
        return 2.0 * tokens * network.hidden  # sequence parallelism does not divide it, as published
    undivided = tokens * network.hidden * (8 + 2 * network.dropout)
    ffn: float = network.ffn * (6 if network.gated else 4)
    if network.mixture is not None:
        ffn += ROUTED * network.mixture.active * network.hidden * network.mixture.layers / network.layers
    divided = tokens * (4 * network.attention_values * (1 + network.kv_share) + ffn)
    if split.recompute == "none" and not network.flash:
        divided += network.heads * network.sequence * tokens * (2 + 3 * network.dropout)
    return divided / t + undivided / (t if split.sequence_parallel else 1)
