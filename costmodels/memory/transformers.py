"""Memory of training a transformer in closed form: states under ZeRO, and activations under every way to split them.

States, for each of P parameters in mixed precision: 2 bytes of parameters, 2 of gradients and 12 of Adam (float32
parameters and two moments). ZeRO divides Adam (stage 1), gradients too (2), parameters too (3) among N ranks.

Activations of a layer in 16 bits, with t tensor-parallel ranks, hidden size h, a heads, s tokens and b samples:

::

    whole on every rank           s b h (8 + 2 dropout)                        inputs of norms and products, masks
    divided by t                  s b (4 h (1 + kv) + 4 f)                     = 24 s b h; 6 f if gated
    scores, divided by t          a s^2 b (2 + 3 dropout)                      = 5 a s^2 b; none with selective
                                                                               recomputation or FlashAttention
    sequence parallelism          divides what is whole by t too
    full recomputation            2 s b h, the layer's input

Sources: Rajbhandari et al., ZeRO, SC 2020, arXiv 1910.02054; Korthikanti et al., Reducing activation recomputation in
large transformer models, MLSys 2023, arXiv 2205.05198, table 2; Megatron-LM, training/theoretical_memory_usage.py;
DeepSpeed, runtime/zero, ``estimate_zero2`` and ``estimate_zero3_model_states_mem_needs``.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from costmodels.transformer import Transformer
from graphs.checks import check_fields, whole

RecomputeMode: TypeAlias = Literal["none", "selective", "full"]
RECOMPUTE_MODES: tuple[RecomputeMode, ...] = get_args(RecomputeMode)
"""What runs again in the backward pass: nothing, attention's scores, or the whole layer."""

PARAMETER, GRADIENT, ADAM = 2, 2, 12  # bytes in mixed precision
FLOAT32_GRADIENT = 4
MEGATRON, MEGATRON_WHOLE = 18, 6  # with float32 gradients beside; what its distributed optimizer leaves whole
ZERO_STAGES = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """How a layer's activations are divided and kept.

    Attributes:
        tensor: ranks that share every product.
        sequence_parallel: whether they share norms and dropouts too, by tokens.
        recompute: what runs again in the backward pass.
    """

    tensor: int = 1
    sequence_parallel: bool = False
    recompute: RecomputeMode = "none"

    def __post_init__(self) -> None:
        check_fields(self, "the split of a layer")
        whole(self.tensor, "tensor", 1)


def zero_states(
    parameters: float, ranks: int, stage: int, optimizer_bytes: int = ADAM, gradient_bytes: int = GRADIENT
) -> float:
    """Bytes of parameters, gradients and optimizer on each rank."""
    parts = (PARAMETER, gradient_bytes, optimizer_bytes)
    return sum(part * parameters / (ranks if stage >= 3 - i else 1) for i, part in enumerate(parts))


def deepspeed_states(parameters: float, ranks: int, stage: int, largest_layer: float = 0.0) -> float:
    """Bytes that DeepSpeed itself holds in stage 2 or 3 without offload; gradients are float32."""
    divided = (PARAMETER + FLOAT32_GRADIENT + ADAM) * parameters / ranks
    return divided + (2 * PARAMETER * largest_layer if stage == 3 else PARAMETER * parameters)


def layer_states(network: Transformer, tensor: int, pipeline: int, bytes_each: int = MEGATRON) -> float:
    """Bytes of the layers' products alone, on one device."""
    return bytes_each * network.layers * network.product_parameters / (tensor * pipeline)


def megatron_states(
    network: Transformer, tensor: int, pipeline: int, data: int = 1, distributed: bool = False
) -> float:
    """Bytes of the most loaded device as Megatron-LM reckons: words on the first stage, no biases, no positions.

    Args:
        network: what is trained.
        tensor: tensor-parallel ranks.
        pipeline: stages.
        data: ranks that share the optimizer, if it is distributed.
        distributed: whether it is.
    """
    words = network.vocabulary * network.hidden * (2 if network.untied and pipeline == 1 else 1)
    products = network.layers * network.product_parameters / pipeline + words
    norms = (2 * network.layers + 1) * network.norm_vectors * network.hidden / pipeline
    each = MEGATRON_WHOLE + (MEGATRON - MEGATRON_WHOLE) / data if distributed else MEGATRON
    return each * (products / tensor + norms)


def layer_activations(network: Transformer, samples: int, split: LayerSplit) -> float:
    """Bytes that one layer keeps of a micro-batch for its backward pass, on one rank."""
    tokens, t = samples * network.sequence, split.tensor
    if split.recompute == "full":
        return 2.0 * tokens * network.hidden  # sequence parallelism does not divide it, as published
    undivided = tokens * network.hidden * (8 + 2 * network.dropout)
    ffn = network.ffn * (6 if network.gated else 4)
    divided = tokens * (4 * network.hidden * (1 + network.kv_share) + ffn)
    if split.recompute == "none" and not network.flash:
        divided += network.heads * network.sequence * tokens * (2 + 3 * network.dropout)
    return divided / t + undivided / (t if split.sequence_parallel else 1)


def first_stage_activations(
    network: Transformer, samples: int, split: LayerSplit, pipeline: int = 1, chunks: int = 1
) -> float:
    """Bytes that the first stage keeps under 1F1B: as many micro-batches as there are stages, of its layers each.

    Interleaving with several chunks of layers on a device adds (pipeline - 1) / (pipeline * chunks) of that.
    """
    more = (pipeline - 1) / (pipeline * chunks) if chunks > 1 else 0.0
    return network.layers * (1 + more) * layer_activations(network, samples, split)


def megatron_activations(
    network: Transformer, samples: int, tensor: int, pipeline: int, chunks: int = 1, micro_batches: int | None = None
) -> float:
    """Bytes of the first stage as Megatron-LM reckons, with sequence parallelism and selective recomputation."""
    tokens = samples * network.sequence
    values = tokens * network.hidden
    total = network.layers * values * (18 + 4 * network.ffn / network.hidden)
    total += (8 * tokens + values) * pipeline  # tokens, and dropout of the embedding, for every micro-batch in flight
    if chunks > 1:
        total *= 1 + (pipeline - 1) / (pipeline * chunks)
    elif pipeline > 1 and micro_batches is not None:
        total *= min(1.0, micro_batches / pipeline)
    if pipeline == 1:
        total += 4 * values * (1 + network.vocabulary / network.hidden)  # last norm and logits
    return total / tensor
