"""Reads a transformer from JSON: its numbers under plain names, or a config.json of transformers (`language_model`).

::

    {"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "vocabulary": 128256, "sequence": 4096,
     "gated": true, "norm": "rms", "biases": false, "positions": false, "untied": true, "dropout": false, "flash": true}

Only the first three are needed. The names of a config.json are known, too; without a ``model_type`` there is no network
to compare them with. One with ``rms_norm_eps`` then is like Llama's: gated products without biases, rotated positions,
no dropout, and weights of its own for the head.
"""

from collections.abc import Mapping
from typing import Any

from graphs.common.errors import InputError
from graphs.common.json_object import JsonObject
from planner.parallelism.closed_form.language_model import MIXTURES, language_model_of
from planner.parallelism.closed_form.mixture import TWO_STACKS
from planner.parallelism.closed_form.transformer import LAYER_NORM, RMS_NORM, Transformer

NAMES: Mapping[str, tuple[str, ...]] = {
    "layers": ("layers", "num_hidden_layers", "n_layer", "num_layers"),
    "hidden": ("hidden", "hidden_size", "n_embd", "d_model"),
    "heads": ("heads", "num_attention_heads", "n_head"),
    "kv_heads": ("kv_heads", "num_key_value_heads"),
    "ffn": ("ffn", "intermediate_size", "n_inner", "ffn_dim"),
    "vocabulary": ("vocabulary", "vocab_size"),
    "sequence": ("sequence",),
    "head_dim": ("head_dim",),
    "window": ("window", "sliding_window"),
}
NEEDED = ("layers", "hidden", "heads")
DROPOUTS = ("resid_pdrop", "hidden_dropout_prob", "hidden_dropout")


def transformer_of(document: Mapping[str, Any], sequence: int | None = None, flash: bool = False) -> Transformer:
    """Return a transformer from the content of its file; one with a ``model_type`` is a config.json.

    Args:
        document: the file's content.
        sequence: tokens of a sample, in place of the file's.
        flash: whether attention keeps no scores, whatever the file says.

    Raises:
        InputError: if a number is missing or wrong, or the network is no stack of equal dense layers.
    """
    if "model_type" in document:
        return language_model_of(document, sequence, flash)
    top = JsonObject("the model", document)
    numbers: dict[str, Any] = {
        name: number for name, names in NAMES.items() if (number := _number(top, names)) is not None
    }
    missing = [name for name in NEEDED if name not in numbers]
    if missing:
        known = " or ".join(NAMES[missing[0]])
        raise InputError(f"the model has no {missing[0]}; add {known}")
    _check_kind(top)
    if sequence is not None:
        numbers["sequence"] = sequence
    modern = top.has("rms_norm_eps") or document.get("norm") == "rms"
    return Transformer(
        **numbers,
        norm_vectors=RMS_NORM if modern else LAYER_NORM,
        gated=_flag(top, ("gated",), modern),
        biases=_flag(top, ("biases", "attention_bias"), not modern),
        positions=_flag(top, ("positions",), not modern),
        untied=not top.flag("tie_word_embeddings")
        if top.has("tie_word_embeddings")
        else _flag(top, ("untied",), modern),
        dropout=_flag(top, ("dropout",), _has_dropout(top, modern)),
        flash=flash or _flag(top, ("flash",), False),
    )


def _check_kind(top: JsonObject) -> None:
    """Check that the network is one stack of equal dense layers."""
    mixture = next((name for name in MIXTURES if top.has(name)), None)
    if mixture is not None:
        raise InputError(
            f"the model has {mixture} and no model_type, without which its experts are not known; add the model_type"
        )
    if top.has("is_encoder_decoder") and top.flag("is_encoder_decoder"):
        raise InputError(TWO_STACKS)


def _number(top: JsonObject, names: tuple[str, ...]) -> int | None:
    found = next((known for known in names if top.content.get(known) is not None), None)
    return None if found is None else top.count(found, 1)


def _flag(top: JsonObject, names: tuple[str, ...], default: bool) -> bool:
    found = next((name for name in names if top.has(name)), None)
    if found == "dropout" and not isinstance(top.content[found], bool):
        return top.number(found) > 0
    return default if found is None else top.flag(found)


def _has_dropout(top: JsonObject, modern: bool) -> bool:
    rates = [top.number(name) for name in DROPOUTS if top.has(name)]
    return any(rates) if rates else not modern
