"""Memory of training a transformer as Megatron-LM and DeepSpeed themselves reckon, and as papers print it for a stage.

Sources: Megatron-LM, training/theoretical_memory_usage.py; DeepSpeed, runtime/zero, ``estimate_zero2`` and
``estimate_zero3_model_states_mem_needs``; Korthikanti et al., MLSys 2023, arXiv 2205.05198.
"""

from planner.parallelism.closed_form.memory import ADAM, FLOAT32_GRADIENT, PARAMETER, LayerSplit, layer_activations
from planner.parallelism.closed_form.transformer import Transformer

MEGATRON, MEGATRON_WHOLE = 18, 6  # with float32 gradients beside; what its distributed optimizer leaves whole


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
