"""Reads a language model from the content of a config.json: transformers builds its network with shapes alone.

Nothing is allocated. Values that the config leaves out are the defaults of transformers.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from costmodels.language_model.assembly import IN_LAYER, assembled
from costmodels.language_model.config_facts import ConfigFacts
from costmodels.language_model.formats import FORMATS
from costmodels.language_model.model import ModelDescription
from costmodels.language_model.quantised import Quantised
from costmodels.language_model.stored_tensor import StoredTensor
from graphs.common.errors import InputError

QUANTISED = ("quantization_config", "compression_config")


def model_of_config(document: Mapping[str, Any], name: str = "") -> ModelDescription:
    """Return the language model that the content of a config.json describes.

    Raises:
        InputError: if the config names no network that transformers knows, or its layers are not known here.
    """
    from graphs.importers.from_config import headed_module  # late: transformers takes seconds

    model_type = document.get("model_type")
    if not isinstance(model_type, str):
        raise InputError(
            f"the config{f' of {name}' if name else ''} names no architecture: it has no model_type; add it, as "
            "transformers writes it, such as 'llama'"
        )
    module: Any = headed_module({key: value for key, value in document.items() if key not in QUANTISED})
    name = name or str(document.get("_name_or_path") or model_type)
    tensors = list(_tensors(module))
    facts = ConfigFacts(name, module.config, tied=_is_tied(module), document=document)
    model = facts.assumed(assembled(tensors, facts))
    about = next((document[key] for key in QUANTISED if document.get(key)), None)
    return model if about is None else Quantised.of(about, name).applied(model)


def _tensors(module: Any) -> Iterator[StoredTensor]:
    """Yield the parameters of a network; weights that a later layer uses again come with the layer that owns them."""
    owners: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        first = owners.setdefault(id(parameter), name)
        owner = -1 if first == name else _layer_of(first)
        if first == name or -1 < owner < _layer_of(name):  # a tied head comes once
            weights = FORMATS[str(parameter.dtype).removeprefix("torch.")]
            yield StoredTensor(name, tuple(parameter.shape), weights, owner)


def _layer_of(name: str) -> int:
    """Return the number of the layer that has a tensor; -1 for a tensor besides the layers."""
    match = IN_LAYER.fullmatch(name)
    return -1 if match is None else int(match[2])


def _is_tied(module: Any) -> bool:
    try:
        words, head = module.get_input_embeddings(), module.get_output_embeddings()
    except (AttributeError, NotImplementedError):
        return False
    return head is None or head.weight is words.weight
