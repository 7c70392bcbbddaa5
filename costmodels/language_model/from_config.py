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
    _check_own_weights(module, name)
    tensors = list(_tensors(module))
    facts = ConfigFacts(name, module.config, tied=_is_tied(module))
    model = assembled(tensors, facts)
    about = next((document[key] for key in QUANTISED if document.get(key)), None)
    return model if about is None else Quantised.of(about, name).applied(model)


def _tensors(module: Any) -> Iterator[StoredTensor]:
    """Yield the parameters of a network; a tensor that is used twice comes once."""
    for name, parameter in module.named_parameters():
        yield StoredTensor(name, tuple(parameter.shape), FORMATS[str(parameter.dtype).removeprefix("torch.")])


def _check_own_weights(module: Any, name: str) -> None:
    """Check that each layer has weights of its own."""
    tensors = dict(module.named_parameters())
    every = (other for other, _ in module.named_parameters(remove_duplicate=False))
    shared = next((other for other in every if other not in tensors and IN_LAYER.fullmatch(other)), None)
    if shared is not None:
        raise InputError(
            f"a layer of '{name}' uses the weights of another one ('{shared}'), which no record of layers has here; "
            "give the network as package.module:factory, which is planned operator by operator"
        )


def _is_tied(module: Any) -> bool:
    try:
        words, head = module.get_input_embeddings(), module.get_output_embeddings()
    except (AttributeError, NotImplementedError):
        return False
    return head is None or head.weight is words.weight
