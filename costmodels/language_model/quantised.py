"""Reads the quantization_config of a config.json: in which format the weights of each part are stored.

::

    "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": true,
                            "modules_to_not_convert": ["visual"]}

Products of attention, of feed-forward parts and of experts are quantised. Embeddings, routers, norms, the convolutions
of state-space layers and images' towers are not, and the head is where the config says so.

Sources: transformers' quantizers; compressed-tensors; NVIDIA's modelopt; torchao.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from costmodels.language_model.formats import FORMATS, ROW, WeightFormat, grouped_integers
from costmodels.language_model.model import DecoderLayer, ModelDescription
from costmodels.language_model.tensors import Part, WeightTensor
from graphs.common.errors import InputError, nearest
from graphs.common.json_object import JsonObject

PRODUCTS: tuple[Part, ...] = ("mixer", "dense", "experts", "shared")
SKIPPED = ("modules_to_not_convert", "llm_int8_skip_modules", "ignore", "exclude_modules", "ignored_layers", "exclude")
FP4_TENSOR_BYTES = 4  # the float32 scale of an NVFP4 tensor


@dataclass(frozen=True)
class Quantised:
    """Formats of the weights of a quantised model."""

    weights: WeightFormat
    parts: tuple[Part, ...]  # whose products are quantised
    skipped: tuple[str, ...]  # modules that are not, by name, end or pattern

    @staticmethod
    def of(about: Any, name: str) -> "Quantised":
        """Return what the content of a quantization_config says.

        Raises:
            InputError: if the method is unknown, or a number is missing or wrong.
        """
        top = JsonObject(f"quantization_config of {name}", about)
        method = _method(top)
        if method not in _METHODS:
            known = ", ".join(_METHODS)
            raise InputError(
                f"the weights of '{name}' are quantised by '{method}', whose formats are not known here; take one of "
                f"{known}, or give its .safetensors{nearest(method, _METHODS)}"
            )
        weights = _METHODS[method](top)
        parts: tuple[Part, ...] = ("experts",) if method == "mxfp4" else PRODUCTS
        return Quantised(weights, (*parts, "head") if _with_head(top, method) else parts, _skipped(top))

    def applied(self, model: ModelDescription) -> ModelDescription:
        """Return the model with its quantised weights in their format."""
        made: dict[tuple[WeightTensor, ...], DecoderLayer] = {}
        layers = []
        for number, layer in enumerate(model.layers):
            own = tuple(self._stored(tensor, f"{model.layer_prefix}{number}.{tensor.name}") for tensor in layer.tensors)
            layers.append(made.setdefault(own, replace(layer, tensors=own)) if own != layer.tensors else layer)
        outer = tuple(self._stored(tensor, tensor.name) for tensor in model.tensors)
        return replace(model, layers=tuple(layers), tensors=outer)

    def _stored(self, tensor: WeightTensor, name: str) -> WeightTensor:
        matrix = len(tensor.shape) == (3 if tensor.part == "experts" else 2) and "bias" not in name
        product = matrix and (tensor.part == "experts" or name.endswith("weight")) and min(tensor.shape) > 1
        if not product or tensor.part not in self.parts or self._is_skipped(name):
            return tensor
        return replace(tensor, format=self.weights)

    def _is_skipped(self, name: str) -> bool:
        module = name.removesuffix(".weight")
        return any(_names(pattern, module) for pattern in self.skipped)


def _names(pattern: str, module: str) -> bool:
    """Return whether a pattern names a module, or one that the module is part of."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    if "*" in pattern:
        return re.match(re.escape(pattern).replace(r"\*", ".*"), module) is not None
    return f".{pattern}." in f".{module}."


def _method(top: JsonObject) -> str:
    method = str(top.content.get("quant_method") or top.content.get("quant_algo") or "").casefold()
    if method in ("modelopt", "modelopt_fp4"):
        return f"modelopt {str(top.content.get('quant_algo', 'nvfp4')).casefold()}"
    if not method and (top.content.get("load_in_4bit") or top.content.get("load_in_8bit")):
        return "bitsandbytes"
    return {"gptqmodel": "gptq", "compressed_tensors": "compressed-tensors"}.get(method, method)


def _with_head(top: JsonObject, method: str) -> bool:
    """Return whether the head is quantised unless it is skipped by name."""
    return method == "compressed-tensors" or bool(top.content.get("lm_head"))


def _skipped(top: JsonObject) -> tuple[str, ...]:
    found: list[str] = []
    for key in SKIPPED:
        own = top.content.get(key)
        found += [item for item in own if isinstance(item, str)] if isinstance(own, Sequence) else []
    dynamic = top.content.get("dynamic")
    if isinstance(dynamic, Mapping):  # GPTQModel: "-:" before the patterns of modules that are left as they are
        found += [f"re:{key[2:]}" for key in dynamic if key.startswith("-:")]
    return tuple(found)


def _integers(method: str) -> Callable[[JsonObject], WeightFormat]:
    def read(top: JsonObject) -> WeightFormat:
        bits = top.count("bits" if top.has("bits") else "w_bit", 1)
        group = top.whole("group_size" if top.has("group_size") else "q_group_size")
        return grouped_integers(method, bits, max(ROW, group))

    return read


def _fp8(top: JsonObject) -> WeightFormat:
    block = top.wholes("weight_block_size", 2, 1) if top.has("weight_block_size") else ()
    if not block:
        return FORMATS["float8_e4m3fn tensors"]
    return WeightFormat(f"float8_e4m3fn blocks of {block[0]}x{block[1]}", 8, block, 4, kind="float")


def _bitsandbytes(top: JsonObject) -> WeightFormat:
    if not top.content.get("load_in_4bit"):
        return FORMATS["int8 rows"]
    kind = str(top.content.get("bnb_4bit_quant_type", "fp4"))
    if top.content.get("bnb_4bit_use_double_quant"):
        return WeightFormat(f"{kind}, scales quantised", 4, (64,), 1 + 4 / 256, kind="integer")
    return WeightFormat(kind, 4, (64,), 4)


def _compressed(top: JsonObject) -> WeightFormat:
    groups = top.object("config_groups")
    if not groups.content:
        raise InputError(f"{groups.where} is empty; add a group with the weights' num_bits and type")
    weights = groups.object(next(iter(groups.content))).object("weights")
    bits, kind = weights.count("num_bits", 1), str(weights.content.get("type", "int"))
    group = weights.content.get("group_size")
    strategy = str(weights.content.get("strategy") or ("group" if group else "channel"))
    if kind == "float" and bits == 4:
        return _fp4(top)
    if kind == "float":
        block = weights.content.get("block_structure")
        if strategy == "block" and isinstance(block, list):
            return WeightFormat(f"float8_e4m3fn blocks of {block[0]}x{block[1]}", 8, tuple(block), 4, kind="float")
        return FORMATS["float8_e4m3fn rows" if strategy == "channel" else "float8_e4m3fn tensors"]
    if strategy in ("group", "tensor_group") and isinstance(group, int) and group > 0:
        return grouped_integers("compressed", bits, group, zeros=weights.content.get("symmetric") is False)
    return WeightFormat(f"int{bits} rows", bits, (ROW,), 4)


def _fp4(_: JsonObject) -> WeightFormat:
    return replace(FORMATS["nvfp4"], tensor_bytes=FP4_TENSOR_BYTES)


def _torchao(top: JsonObject) -> WeightFormat:
    own: Any = top.content.get("quant_type")
    if isinstance(own, Mapping):
        own = own.get("default", own)
    kind = str(own.get("_type", "") if isinstance(own, Mapping) else own).casefold().replace("_", "")
    data = own.get("_data", {}) if isinstance(own, Mapping) else top.content.get("quant_type_kwargs") or {}
    group = data.get("group_size", 128) if isinstance(data, Mapping) else 128
    if kind.startswith("int4"):
        return grouped_integers("torchao", 4, group if isinstance(group, int) and group > 0 else 128)
    if kind.startswith("int8"):
        return FORMATS["int8 rows"]
    if kind.startswith("float8"):
        return FORMATS["float8_e4m3fn rows"]
    raise InputError(
        f"{top.where} has torchao's quant_type '{kind}', whose format is not known here; take int4, int8 or float8 "
        "weights"
    )


_METHODS: Mapping[str, Callable[[JsonObject], WeightFormat]] = {
    "awq": _integers("awq"),
    "gptq": _integers("gptq"),
    "auto-round": _integers("gptq"),
    "fp8": _fp8,
    "fbgemm_fp8": lambda _: FORMATS["float8_e4m3fn rows"],
    "mxfp4": lambda _: FORMATS["mxfp4"],
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed,
    "torchao": _torchao,
    "modelopt fp8": lambda _: FORMATS["float8_e4m3fn tensors"],
    "modelopt nvfp4": _fp4,
}
"""Readers of what each method says, by the names that transformers gives them."""
