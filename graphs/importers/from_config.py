"""Imports the network of a transformers config.json with its real shapes, and with weights on the meta device.

Nothing is allocated and nothing is downloaded, so a network of any size can be imported, planned and simulated.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from graphs.common.documents import read_json
from graphs.common.errors import InputError, first_line, foreign_code, nearest, one_line, say_once
from graphs.importers.config_checks import check_architecture, check_config, check_no_code
from graphs.importers.config_inputs import Inputs, example_inputs, reads_more_than_text, text_inputs
from graphs.importers.tracing_guards import quiet
from graphs.program.program import Program

META, CPU = torch.device("meta"), torch.device("cpu")


def read_config(path: Path, batch: int | None = None, training: bool = False, weights: bool = False) -> Program:
    """Import the network that a config.json describes, without weights, or with random ones that are always the same.

    The path is a file of ``config.save_pretrained``, with a ``model_type``, and with ``architectures`` for a head. A
    training import has the config's dropout. A network of texts and pictures or sounds that cannot be traced with both
    is imported with texts alone, and a `FallbackWarning` says so. Raise InputError if the file is no such config,
    transformers does not know it, or the network cannot be traced.
    """
    from graphs.importers.from_torch import program_from_module  # late: tracing takes half a second to load

    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        module = build(path, CPU if weights else META)

    def imported(inputs_of: Callable[[nn.Module, int], Inputs]) -> Program:
        with CPU if weights else META:
            inputs = inputs_of(module, batch or 1)
        return program_from_module(module, (), inputs, training=training)

    try:
        return imported(example_inputs)
    except InputError as error:
        if reads_more_than_text(module):
            with suppress(InputError):
                program = imported(text_inputs)
                say_once(str(error), f"{first_line(error)}; so its texts alone are planned for")
                return program
        raise


def build(path: Path, device: torch.device = META) -> nn.Module:
    """The module in evaluation mode; on the meta device its tensors have shapes alone.

    Raise InputError as `read_config`.
    """
    document = config_document(path)
    check_no_code(document)
    with _building(f"'{path}' ({document['model_type']})", document):
        try:
            return module_of(document, device)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error


def config_document(path: Path) -> Mapping[str, Any]:
    """The content of a config.json; raise InputError if the file is no such config."""
    document = read_json(path, "config", finite=False)  # some configs have limits of Infinity
    if not isinstance(document.get("model_type"), str):
        raise InputError(f"'{path}' has no 'model_type'; it is neither a transformers config nor a graph.json")
    return document


def headed_module(document: Mapping[str, Any]) -> nn.Module:
    """The network of a config's content with shapes alone, and with its head of words if it names no architecture.

    Raise InputError as `read_config`.
    """
    with _building(f"'{document['model_type']}'", document):
        return module_of(_with_known_type(document), META, head=True)


def config_of(document: Mapping[str, Any]) -> Any:
    """The config that transformers makes of a config.json's content, with its defaults; None for an unknown type.

    Raise InputError if a value is wrong.
    """
    import transformers

    document = _with_known_type(document)
    if document.get("model_type") not in transformers.CONFIG_MAPPING:
        return None
    with _building(f"'{document['model_type']}'", document), quiet():
        return transformers.AutoConfig.for_model(**document)


def _with_known_type(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The document, its type replaced by that of the architecture if transformers knows the architecture alone.

    Models that are published with code of their own often have another family's network: Kimi K2 is DeepSeek V3's.
    """
    import transformers

    names = document.get("architectures")
    with quiet():  # transformers loads the network, and with it whatever libraries of kernels there are
        network = getattr(transformers, str(names[0]), None) if isinstance(names, list) and names else None
    own = getattr(getattr(network, "config_class", None), "model_type", None)
    if own is None or document.get("model_type") in transformers.CONFIG_MAPPING:
        return document
    return {**document, "model_type": own}


def _building(what: str, document: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Turn the errors of transformers' constructors into InputErrors."""
    return foreign_code(lambda error: f"transformers cannot build {what}: {_why(error, document)}")


def module_of(document: Mapping[str, Any], device: torch.device, head: bool = False) -> nn.Module:
    """The module of a config's content in evaluation mode; with a head of words if no architecture is named and asked.

    Raise InputError if transformers does not know it, or what its constructors raise.
    """
    import transformers

    kinds, model_type = transformers.CONFIG_MAPPING, document["model_type"]
    if model_type not in kinds:
        near = nearest(model_type, kinds) or "; give the network as package.module:factory"
        raise InputError(
            f"the model type '{model_type}' is none that transformers {transformers.__version__} has{near}"
        )
    check_no_code(document)
    with quiet(), device:
        check_config(document, kinds)
        config = transformers.AutoConfig.for_model(**document)
        architecture = check_architecture(document, transformers, config)
        if architecture is not None:
            module = architecture._from_config(config)  # follows the config's dtype, unlike the constructor
        else:
            with_head = head and type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
            config.architectures = config.architectures or []  # the first of several networks, as of Funnel's
            auto: Any = transformers.AutoModelForCausalLM if with_head else transformers.AutoModel
            own = with_head or "auto_map" in document or type(config) in transformers.MODEL_MAPPING
            part = None if own else _part_of(config)
            module = part._from_config(config) if part else auto.from_config(config, trust_remote_code=False)
    evaluated: nn.Module = module.to(device).eval()  # XLNet's constructor makes some weights by torch.FloatTensor
    return evaluated


def _part_of(config: Any) -> Any:
    """The first network of a config that is part of another model's, such as that of its texts; None if none has it."""
    import transformers

    family = import_module(type(config).__module__.replace("configuration_", "modeling_"))
    classes: list[Any] = [each for each in vars(family).values() if isinstance(each, type)]
    networks = [
        each
        for each in classes
        if issubclass(each, transformers.PreTrainedModel)
        and each.config_class is type(config)
        and each.forward is not nn.Module.forward
    ]
    models = [each for each in networks if each.__name__.endswith(("Model", "Encoder", "Decoder"))]
    return next(iter(models or networks), None)


def _why(error: BaseException, document: Mapping[str, Any]) -> str:
    """The reason of a failure; for an unknown name, the field of the config that has it."""
    if isinstance(error, KeyError):
        for path, value in pytree.tree_leaves_with_path(dict(document)):
            if value in error.args:
                return f"{pytree.keystr(path)} is {value!r}, which it does not know"
    return one_line(error)
