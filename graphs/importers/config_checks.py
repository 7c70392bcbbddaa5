"""What transformers takes silently in a config.json, and makes another network of than its author meant."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any

from graphs.errors import InputError, nearest

COUNTS = (
    *("hidden_size", "intermediate_size", "head_dim", "vocab_size", "max_position_embeddings"),
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
)
"""What a network has at least one of, under the names that transformers maps those of other configs to."""

OTHER_COUNTS = (("num_", "n_"), ("_size", "_layers", "_heads", "_dim", "_channels"))
"""How the names of other counts begin or end; these may be 0."""

DTYPES = ("float32", "bfloat16", "float16", "float64")  # of weights; others only come out of quantisation
LIKE = 0.85  # as alike as a name and its misspelling


def check_config(document: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    """Check a config, and those within it, before anything is built of them.

    Args:
        document: what stands in config.json, with a ``model_type``.
        kinds: the classes of configs that transformers knows, by model type.

    Raises:
        InputError: for a count that is none, an unknown dtype, or quantised weights.
    """
    for where, part, kind in _parts(document, "", kinds):
        _check_dtype(where, part)
        _check_quantised(where, part)
        if kind is not None:
            _check_counts(where, part, kind)
            _check_heads(where, part, kind)


def check_architecture(document: Mapping[str, Any], library: Any, config: Any) -> Any:
    """The class that a config's ``architectures`` names; None if it names none.

    Args:
        document: what stands in config.json.
        library: transformers.
        config: what it made of the document.

    Raises:
        InputError: if transformers has no such network for such a config.
    """
    names = [] if document.get("architectures") is None else document["architectures"]
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise InputError(f"architectures is {names!r}; write a list with the name of a class")
    if not names:
        return None
    name = names[0]
    found: Any = getattr(library, name, None)
    if _is_network(found, library):
        if isinstance(config, found.config_class):
            return found
        own = getattr(found.config_class, "model_type", "")
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
    alike = [known for known in dir(library) if known[:4].casefold() == stem and not known.endswith(others)]
    near = nearest(name, alike) or "; leave architectures out for the network without a head"
    raise InputError(f"the architecture '{name}' is none that transformers {library.__version__} has{near}")


def _is_network(found: Any, library: Any) -> bool:
    """Whether it is a class that transformers can build from a config."""
    is_model = isinstance(found, type) and issubclass(found, library.PreTrainedModel)
    return is_model and getattr(found, "config_class", None) is not None


def _parts(
    document: Mapping[str, Any], where: str, kinds: Mapping[str, type]
) -> Iterator[tuple[str, Mapping[str, Any], type | None]]:
    """A config and those within it: the path to it with a dot behind, what stands there, and its class if known."""
    kind = kinds[document["model_type"]] if document.get("model_type") in kinds else None
    yield where, document, kind
    for key in getattr(kind, "sub_configs", {}):
        part = document.get(key)
        if isinstance(part, Mapping):
            own = getattr(kind, "sub_configs", {})[key]
            known = {"model_type": getattr(own, "model_type", "")} | dict(part)
            yield from _parts(known, f"{where}{key}.", kinds)


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
        single = value if isinstance(value, list) else [value]
        if key in counts:
            least = min(1, _default(kind, key, 1))
            wrong = any(isinstance(one, bool | str) or (_is_number(one) and (one < least or one % 1)) for one in single)
        else:
            least = 0
            counted = key.startswith(OTHER_COUNTS[0]) or key.endswith(OTHER_COUNTS[1])
            wrong = counted and any(type(one) is int and one < min(0, _default(kind, key, 0)) for one in single)
            _check_spelling(where, key, single, part, kind)
        if wrong:
            raise InputError(f"{where}{key} is {value!r}; it must be a whole number from {least}")


def _check_spelling(where: str, key: str, value: list[Any], part: Mapping[str, Any], kind: type) -> None:
    """A number under a name that a config of the kind does not have, while one that is like it is missing."""
    if type(value[0] if value else None) is not int or _default(kind, key, None) is not None or hasattr(kind, key):
        return
    missing = [name for name in (_name(kind, name) for name in COUNTS) if name not in part]
    if near := get_close_matches(key, missing, n=1, cutoff=LIKE):
        raise InputError(f"{where}{key} is no field of a '{part['model_type']}' config; did you mean '{near[0]}'?")


def _check_heads(where: str, part: Mapping[str, Any], kind: type) -> None:
    """Heads divide what they are cut from, unless their width is a field of its own, or the kind's own do not."""
    names = ("num_key_value_heads", "num_attention_heads", "hidden_size", "head_dim")
    groups, heads, width, own = (_name(kind, name) for name in names)
    for parts, whole in ((groups, heads), (heads, width)):
        count, total = part.get(parts), part.get(whole)
        usual, usual_total = _default(kind, parts, 1), _default(kind, whole, 1)
        apart = usual_total % usual > 0 or (parts == heads and part.get(own) is not None)
        if type(count) is int and type(total) is int and total % count and not apart:
            raise InputError(f"{where}{parts} is {count}, which does not divide {where}{whole}, {total}; change one")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _name(kind: type, name: str) -> str:
    """What a kind of config calls something."""
    return str(getattr(kind, "attribute_map", {}).get(name, name))


def _default(kind: type, key: str, otherwise: Any) -> Any:
    """A whole number that a kind of config has where a file says nothing."""
    value = _defaults(kind).get(key)
    return value if type(value) is int else otherwise


@cache
def _defaults(kind: type) -> Mapping[str, Any]:
    try:
        return dict(kind().to_dict())
    except Exception:  # a config that has to be told something, or another library's constructor
        return {}
