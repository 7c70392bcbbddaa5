"""Derives a transformer's numbers from the description of a model, for models with experts or latent attention.

Parameters and FLOP are the means of all layers. A latent attention trains as heads with keys and values of their own:
sizes of keys and values differ, and their mean stands for both.
"""

from costmodels.architecture import Architecture
from costmodels.language_model.mixers import GroupedAttention, LatentAttention
from costmodels.language_model.model import ModelDescription
from graphs.common.errors import InputError
from planner.parallelism.closed_form.mixture import INSTEAD, Mixture
from planner.parallelism.closed_form.transformer import LAYER_NORM, RMS_NORM, Transformer

USUAL_TOKENS = 2048


def transformer_of_description(
    model: ModelDescription, sequence: int | None, flash: bool, architecture: Architecture, dropout: bool = False
) -> Transformer:
    """Return the transformer of a mixture of experts.

    Args:
        model: with experts.
        sequence: tokens of a sample; None for the usual number, within what the model was trained for.
        flash: whether attention keeps no scores.
        architecture: what costs do not depend on.
        dropout: whether masks are kept for the backward pass.

    Raises:
        InputError: if layers differ in their attention or experts, or are not of attention.
    """
    attention = _attention_of(model)
    tokens = sequence or min(USUAL_TOKENS, model.trained_tokens or USUAL_TOKENS)
    mixture = Mixture.of(model)
    if mixture is None:
        raise InputError(f"the model '{model.name}' has no experts; give it as a config.json")
    names = [tensor.name for tensor in model.layers[0].tensors if tensor.part == "norm"]
    if isinstance(attention, LatentAttention):
        size, kv_heads = (attention.key_size + attention.rope_size + attention.value_size) / 2, attention.heads
    else:
        size, kv_heads = (attention.key_size + attention.value_size) / 2, attention.kv_heads
    return Transformer(
        layers=len(model.layers),
        hidden=model.hidden,
        heads=attention.heads,
        sequence=tokens,
        vocabulary=model.vocabulary,
        ffn=max(1, mixture.ffn_values // len(model.layers)),
        kv_heads=kv_heads,
        gated=_is_gated(model),
        norm_vectors=LAYER_NORM if any(name.endswith("bias") for name in names) else RMS_NORM,
        biases=False,
        positions=False,
        untied=not model.tied,
        dropout=dropout,
        flash=flash,
        head_dim=round(size),
        window=_window(model, tokens),
        architecture=architecture,
        mixture=mixture,
    )


def _attention_of(model: ModelDescription) -> GroupedAttention | LatentAttention:
    """Return the attention of all layers, which may differ in their windows."""
    found = {layer.mixers for layer in model.layers}
    first = next(iter(model.layers[0].mixers), None)
    if isinstance(first, GroupedAttention):
        sizes = {
            (mixer.heads, mixer.kv_heads, mixer.key_size, mixer.value_size)
            for mixers in found
            for mixer in mixers
            if isinstance(mixer, GroupedAttention)
        }
        plain = all(len(mixers) == 1 and isinstance(mixers[0], GroupedAttention) for mixers in found)
        if plain and len(sizes) == 1:
            return first
    elif isinstance(first, LatentAttention) and found == {(first,)}:
        return first
    kinds = sorted({type(mixer).__name__ for mixers in found for mixer in mixers}) or ["nothing"]
    raise InputError(
        f"layers of the model differ in what mixes tokens ({', '.join(kinds)}); choose divides equal layers of "
        f"attention: {INSTEAD}"
    )


def _is_gated(model: ModelDescription) -> bool:
    return all(layer.feed_forward is None or layer.feed_forward.gated for layer in model.layers)


def _window(model: ModelDescription, tokens: int) -> int:
    """Return the window of all layers, 0 for none; windows that no sample fills do not count.

    Where only some layers have one, scores that the window hides count as computed.
    """
    windows = {
        mixer.window if 0 < mixer.window < tokens else 0
        for layer in model.layers
        for mixer in layer.mixers
        if isinstance(mixer, GroupedAttention)
    }
    return windows.pop() if len(windows) == 1 else 0
