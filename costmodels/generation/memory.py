"""Bytes that generating text needs on a device: weights, the cache of keys and values, and compute buffers."""

from costmodels.language_model.feed_forward import Dense
from costmodels.language_model.mixers import Recurrence
from costmodels.language_model.model import DecoderLayer, ModelDescription

FLOAT_BYTES = 4  # of a value in a compute buffer, and of a word's score
LIVE = 4  # tensors of a chunk that a layer keeps at once: its input, its result, and two within it


def compute_bytes(model: ModelDescription, chunk: int, context: int = 0) -> float:
    """Return the bytes of buffers on each device for a chunk of a prompt: values within a layer, and the scores.

    A layer's widest values are those of its feed-forward part, of its experts for all that a token takes, or of
    attention's heads. The scores of all words are of a chunk, as llama.cpp reserves them. The ``context`` is that of
    an engine whose attention keeps its scores in memory, and else 0.
    """
    layers = {id(layer): layer for layer in model.layers}.values()
    widest = max(model.hidden, *(_width(layer, model.hidden) for layer in layers))
    heads = max(
        (mixer.heads for layer in layers for mixer in layer.mixers if not isinstance(mixer, Recurrence)),
        default=0,
    )
    return chunk * FLOAT_BYTES * (LIVE * widest + model.vocabulary + heads * context)


def _width(layer: DecoderLayer, hidden: int) -> int:
    own = layer.feed_forward
    if own is None:
        return hidden
    if isinstance(own, Dense):
        return own.width
    return own.active * own.width + own.shared_width
