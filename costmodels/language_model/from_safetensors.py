"""Reads a language model from a config.json and the headers of its .safetensors, without weights.

The config says what the tensors do not: heads, windows, states, how many experts a token takes. The headers say what
is stored: the format of each tensor, and layers that a checkpoint has besides.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from costmodels.language_model.assembly import assembled
from costmodels.language_model.config_facts import ConfigFacts
from costmodels.language_model.from_config import QUANTISED
from costmodels.language_model.model import ModelDescription
from costmodels.language_model.packed import PackedAs, unpacked
from costmodels.language_model.safetensors_header import read_safetensors
from graphs.common.errors import InputError


def model_of_safetensors(path: Path, document: Mapping[str, Any], name: str) -> ModelDescription:
    """Return the language model whose weights lie at a path: a file, an index or a folder.

    Args:
        path: of the weights.
        document: content of the model's config.json.
        name: of the model, in messages.

    Raises:
        InputError: if a header is damaged, tensors and config contradict each other, or layers are not known here.
    """
    from graphs.importers.from_config import config_of  # late: transformers takes seconds

    own = {key: value for key, value in document.items() if key not in QUANTISED}
    about: Mapping[str, Any] = next((document[key] for key in QUANTISED if isinstance(document.get(key), Mapping)), {})
    config = config_of(own)
    facts = ConfigFacts(name, own if config is None else config, document=own)
    model = facts.assumed(assembled(unpacked(read_safetensors(path), _packing(about, facts.hidden)), facts))
    _check(model)
    return model


def _packing(about: Mapping[str, Any], hidden: int) -> PackedAs:
    """Return how weights are packed, as a quantization_config says."""
    method = str(about.get("quant_method", ""))
    bits = about.get("bits") or about.get("w_bit") or 0
    groups = about.get("config_groups")
    if isinstance(groups, Mapping) and groups:
        weights = next(iter(groups.values())).get("weights") or {}
        bits = weights.get("num_bits", 0)
    return PackedAs(bits if isinstance(bits, int) else 0, method, hidden)


def _check(model: ModelDescription) -> None:
    """Check the sizes that config and tensors both have."""
    words = [tensor for tensor in model.tensors if tensor.part == "embedding"]
    fits = any(tensor.shape[-1] == model.hidden or tensor.shape[0] == model.hidden for tensor in words)
    if not fits:
        raise InputError(
            f"the embedding of '{model.name}' has the shape {words[0].shape}, and its config says hidden_size "
            f"{model.hidden:,}; put the config.json and the weights of one model together"
        )
