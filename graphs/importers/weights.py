"""Weights of a model in another format: other floats, or integers as torchao keeps them."""

import torch
from torch import nn

from graphs.common.checks import instance, one_of
from graphs.common.errors import InputError
from graphs.importers.tracing_guards import quiet
from graphs.weights import FLOATS, GROUP, WEIGHTS

STEP = 16  # rows that the kernel of int4 takes at once


def with_weights(module: nn.Module, weights: str) -> nn.Module:
    """Keep a model's weights in another format, and return the model, which is changed.

    Floats are those of all parameters; buffers, such as tables of rotations, keep theirs. Integers are those of linear
    layers, by torchao's ``Int8WeightOnlyConfig``, and ``PrototypeInt4WeightOnlyConfig`` with groups of `GROUP`, whose
    kernel is one of CPUs. Layers that are in integers already stay, and so do those that the kernel does not take: rows
    are whole groups, and their number is one of `STEP`.

    Args:
        module: any module, also on the meta device, but for int4.
        weights: "float32", "bfloat16", "float16", "int8" or "int4".

    Raises:
        InputError: for another format, if torchao is not installed, no linear layer can be kept so, or there are no
            numbers to be packed.
    """
    instance(module, nn.Module, "the model", "a torch.nn.Module")
    one_of(weights, "the weights", WEIGHTS)
    if weights in FLOATS:
        for parameter in module.parameters():
            if parameter.is_floating_point() and not _is_wrapped(parameter):
                parameter.data = parameter.data.to(getattr(torch, weights))
    else:
        for layer in _layers(module, weights):
            if not _is_wrapped(layer.weight):
                _quantise(layer, weights)
    return module


def _layers(module: nn.Module, weights: str) -> list[nn.Linear]:
    """Return the layers whose weights can be kept in integers; raise InputError if there are none, or no numbers."""
    columns, rows = (GROUP, STEP) if weights == "int4" else (1, 1)
    layers = [each for each in module.modules() if type(each) is nn.Linear]
    fitting = [each for each in layers if each.in_features % columns == 0 and each.out_features % rows == 0]
    if not fitting:
        sizes = f" with multiples of {columns} inputs and {rows} outputs" if weights == "int4" else ""
        raise InputError(
            f"'{type(module).__name__}' has no linear layer{sizes}, so no weight can be kept in {weights}; leave the "
            "weights as they are"
        )
    if weights == "int4" and any(each.weight.is_meta for each in fitting):
        raise InputError(
            f"'{type(module).__name__}' has shapes and no weights, and torchao packs numbers into int4; give a "
            "function that returns the module with its weights, or take int8"
        )
    return fitting


def _quantise(layer: nn.Linear, weights: str) -> None:
    """Replace the weight of a layer by torchao's."""
    with quiet():  # torchao says what it has no libraries for
        try:
            from torchao.prototype.quantization.int4.inference_workflow import PrototypeInt4WeightOnlyConfig
            from torchao.quantization import Int8WeightOnlyConfig, quantize_
        except ImportError as error:
            raise InputError(
                f"weights in {weights} need torchao, which is not installed; pip install 'placement-planner[weights]'"
            ) from error
        config = Int8WeightOnlyConfig() if weights == "int8" else PrototypeInt4WeightOnlyConfig(group_size=GROUP)
        quantize_(layer, config)


def _is_wrapped(tensor: torch.Tensor) -> bool:
    """Return whether a tensor holds others."""
    return hasattr(tensor, "__tensor_flatten__")
