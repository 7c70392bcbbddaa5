"""Checks for mistakes in a config.json that transformers accepts silently, with another network as the result."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any

from graphs.common.errors import InputError, nearest
from graphs.common.shortages import failures

COUNTS = (
    *("hidden_size", "intermediate_size", "head_dim", "vocab_size", "max_position_embeddings"),
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
)
"""Fields that are at least 1, under the names to which transformers maps the names of other configs."""

OTHER_COUNTS = (("num_", "n_"), ("_size", "_layers", "_heads", "_dim", "_channels"))
"""Prefixes and suffixes of the names of other counts, which may be 0."""

DTYPES = ("float32", "bfloat16", "float16", "float64")  # of weights that are not quantised
SIMILARITY = 0.85  # least similarity of a name and its misspelling


def check_config(document: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    """Check a config, and the configs within it, before the network is built.

    ``kinds`` are transformers' classes of configs, by model type. Raise InputError for a wrong count, an unknown dtype,
    or quantised weights.
    """
    for where, part, kind in _parts(document, "", kinds):
        _check_dtype(where, part)
        _check_quantised(where, part)
        if kind is not None:
            _check_counts(where, part, kind)
            _check_heads(where, part, kind)


def check_architecture(document: Mapping[str, Any], library: Any, config: Any) -> Any:
    """The class that a config's ``architectures`` names; None if it names none.

    Raise InputError if transformers has no such network for this config.
    """
    names = [] if document.get("architectures") is None else document["architectures"]
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise InputError(f"architectures is {names!r}; write a list with the name of a class")
    if not names:
        return None
    name = names[0]
    network: Any = getattr(library, name, None)
    is_model = isinstance(network, type) and issubclass(network, library.PreTrainedModel)
    if is_model and getattr(network, "config_class", None) is not None:
        if isinstance(config, network.config_class):
            return network
        own = getattr(network.config_class, "model_type", "")
        raise InputError(
            f"the architecture '{name}' is of the model type '{own}', and model_type is '{config.model_type}'; write "
            "those of one network"
        )
    if "auto_map" in document:
        raise InputError(
            f"the architecture '{name}' has code of its own (auto_map), which is not run from a config; give it as "
            "package.module:factory"
        )
    stem, others = name[:4].casefold(), ("Config", "Tokenizer", "Processor", name)
    alike = [other for other in dir(library) if other[:4].casefold() == stem and not other.endswith(others)]
    near = nearest(name, alike) or "; leave architectures out for the network without a head"
    raise InputError(f"the architecture '{name}' is none that transformers {library.__version__} has{near}")


def _parts(
    document: Mapping[str, Any], where: str, kinds: Mapping[str, type]
) -> Iterator[tuple[str, Mapping[str, Any], type | None]]:
    """A config and the configs within it: the path with a dot at its end, the content, and the class if it is known."""
    kind = kinds[document["model_type"]] if document.get("model_type") in kinds else None
    yield where, document, kind
    for key in getattr(kind, "sub_configs", {}):
        part = document.get(key)
        if isinstance(part, Mapping):
            own = getattr(kind, "sub_configs", {})[key]
            typed = {"model_type": getattr(own, "model_type", "")} | dict(part)
            yield from _parts(typed, f"{where}{key}.", kinds)


def _check_dtype(where: str, part: Mapping[str, Any]) -> None:
    for key in ("dtype", "torch_dtype"):
        dtype = part.get(key)
        if dtype is not None and str(dtype).removeprefix("torch.") not in DTYPES:
            raise InputError(f"{where}{key} is {dtype!r}; it must be one of {', '.join(DTYPES)}")


def _check_quantised(where: str, part: Mapping[str, Any]) -> None:
    for key in ("quantization_config", "compression_config"):
        about = part.get(key)
        if about:
            details = about if isinstance(about, Mapping) else {}
            how = str(details.get("quant_method", "an unknown method"))
            bits = f" in {details['bits']} bits" if "bits" in details else ""
            raise InputError(
                f"the weights are quantised by {how}{bits} ({where}{key}), and what such weights take in memory and "
                f"time is not known here; delete '{where}{key}' to plan for the network before quantisation, or give "
                "the quantised one as .pt2 or package.module:factory"
            )


def _check_counts(where: str, part: Mapping[str, Any], kind: type) -> None:
    counts = [_name(kind, name) for name in COUNTS]
    for key, value in part.items():
        items = value if isinstance(value, list) else [value]
        if key in counts:
            least = min(1, _default(kind, key, 1))
            wrong = any(
                isinstance(item, bool | str) or (isinstance(item, int | float) and (item < least or item % 1))
                for item in items
            )
        else:
            least = 0
            counted = key.startswith(OTHER_COUNTS[0]) or key.endswith(OTHER_COUNTS[1])
            wrong = counted and any(type(item) is int and item < min(0, _default(kind, key, 0)) for item in items)
            _check_spelling(where, key, items, part, kind)
        if wrong:
            raise InputError(f"{where}{key} is {value!r}; it must be a whole number from {least}")


def _check_spelling(where: str, key: str, value: list[Any], part: Mapping[str, Any], kind: type) -> None:
    """Refuse a number under an unknown name if a known name is similar and missing."""
    if type(value[0] if value else None) is not int or _default(kind, key, None) is not None or hasattr(kind, key):
        return
    missing = [name for name in (_name(kind, name) for name in COUNTS) if name not in part]
    if near := get_close_matches(key, missing, n=1, cutoff=SIMILARITY):
        raise InputError(f"{where}{key} is no field of a '{part['model_type']}' config; did you mean '{near[0]}'?")


def _check_heads(where: str, part: Mapping[str, Any], kind: type) -> None:
    """Check that counts of heads divide evenly, unless the width is a field, or the kind's defaults do not divide."""
    names = ("num_key_value_heads", "num_attention_heads", "hidden_size", "head_dim")
    groups, heads, width, own = (_name(kind, name) for name in names)
    for parts, whole in ((groups, heads), (heads, width)):
        count, total = part.get(parts), part.get(whole)
        usual, usual_total = _default(kind, parts, 1), _default(kind, whole, 1)
        apart = usual_total % usual > 0 or (parts == heads and part.get(own) is not None)
        if type(count) is int and type(total) is int and total % count and not apart:
            raise InputError(f"{where}{parts} is {count}, which does not divide {where}{whole}, {total}; change one")


def _name(kind: type, name: str) -> str:
    """The name of a field in a kind of config."""
    return str(getattr(kind, "attribute_map", {}).get(name, name))


def _default(kind: type, key: str, otherwise: Any) -> Any:
    """The default of a field in a kind of config, if that is a whole number."""
    value = _defaults(kind).get(key)
    return value if type(value) is int else otherwise


@cache
def _defaults(kind: type) -> Mapping[str, Any]:
    with failures():  # of a config without defaults, or another library's constructor
        return dict(kind().to_dict())
    return {}


def check_no_code(document: Any, where: str = "") -> None:
    """Refuse an implementation that is a repository, such as ``"attn_implementation": "owner/name"``.

    ``where`` is the path of a part of the config. Raise InputError if the document names a repository.
    """
    parts = document.items() if isinstance(document, dict) else ()
    for key, value in parts:
        leaves = value.values() if isinstance(value, dict) else [value]
        if "implementation" in key and any(isinstance(leaf, str) and "/" in leaf for leaf in leaves):
            raise InputError(
                f"the config asks for code from a repository ('{where}{key}' is {value!r}), which is not fetched; "
                "remove that line"
            )
        check_no_code(value, f"{where}{key}.")
