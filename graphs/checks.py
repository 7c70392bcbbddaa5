"""Checks at the door of what a caller gives: one sentence for a mistake, with the thing, the value and the way out."""

import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from math import inf
from operator import index
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from graphs.errors import InputError, nearest

WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", types.NoneType: "None"}
SHOWN = 60  # characters of a value in a message


def check_fields(record: Any, where: str) -> None:
    """The fields of a dataclass have the types of their annotations; ranges are for the record itself to check.

    Raises:
        InputError: for the first that has not.
    """
    for name, hint in _hints(record.__class__).items():
        value = getattr(record, name)
        if not fits(value, hint):
            closed = get_origin(hint) is Literal
            way_out = _none_of(value, get_args(hint)) if closed else f"give {_words(hint)}"
            raise InputError(f"{where} has {name} = {shown(value)}; {way_out}")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type: True is no number, a whole number is one, numbers of NumPy are too."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if hint is int:
        return hasattr(value, "__index__") and not isinstance(value, bool)
    if hint is float:
        return hasattr(value, "__float__") and not isinstance(value, bool)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if origin is tuple:
        kinds = (inner[0],) * len(value) if inner[-1] is Ellipsis and isinstance(value, tuple) else inner
        return isinstance(value, tuple) and len(value) == len(kinds) and all(map(fits, value, kinds))
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(fits(k, inner[0]) and fits(v, inner[1]) for k, v in value.items())
    return isinstance(value, origin or hint)


def instance(value: Any, kind: type | tuple[type, ...], what: str, way_out: str) -> Any:
    """A value of this type.

    Raises:
        InputError: for anything else.
    """
    if not isinstance(value, kind):
        raise InputError(f"{what} is {shown(value)}; give {way_out}")
    return value


def function(value: Any, what: str, way_out: str) -> None:
    """Something that can be called.

    Raises:
        InputError: for anything else.
    """
    if not callable(value):
        raise InputError(f"{what} is {shown(value)}; give {way_out}")


def path(value: Any, what: str, way_out: str) -> Path:
    """A path, as a text or a `Path`.

    Raises:
        InputError: for anything else.
    """
    return Path(fspath(instance(value, (str, PathLike), what, way_out)))


def whole(value: Any, what: str, least: int = 0) -> int:
    """A whole number from ``least``.

    Raises:
        InputError: for anything else, True and False too.
    """
    if not fits(value, int) or value < least:
        raise InputError(f"{what} is {shown(value)}; give a whole number of {least} or more")
    return index(value)


def share(value: Any, what: str) -> float:
    """A number from 0 to below 1.

    Raises:
        InputError: for anything else.
    """
    if not fits(value, float) or not 0 <= value < 1:
        raise InputError(f"{what} is {shown(value)}; give a number from 0 to below 1, such as 0.01 for 1 %")
    return float(value)


def seconds(value: Any, what: str) -> float:
    """A finite number of seconds above 0.

    Raises:
        InputError: for anything else.
    """
    if not fits(value, float) or not 0 < value < inf:
        raise InputError(f"{what} is {shown(value)}; give a number of seconds above 0")
    return float(value)


def one_of(value: Any, what: str, known: Iterable[str]) -> str:
    """One of these words, or a member of an enum that is one.

    Raises:
        InputError: for anything else, with the nearest of them.
    """
    words = [str(word) for word in known]
    if not isinstance(value, str) or value not in words:
        raise InputError(f"{what} is {shown(value)}; {_none_of(value, words)}")
    return str(value)


def _none_of(value: Any, words: Sequence[str]) -> str:
    return f"it must be one of {', '.join(words)}{nearest(value, words) if isinstance(value, str) else ''}"


def shown(value: Any) -> str:
    """A value in a message: as Python writes it, if that is short."""
    text = repr(value)
    return text if len(text) <= SHOWN and "\n" not in text else f"a {type(value).__name__}"


@cache
def _hints(record: type) -> dict[str, Any]:
    """The annotations of the fields that a caller gives."""
    hints = get_type_hints(record)
    return {field.name: hints[field.name] for field in fields(record) if field.init}


def _words(hint: Any) -> str:
    """A type, for people."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint in WORDS:
        return WORDS[hint]
    if origin is Literal:
        return " or ".join(f"'{word}'" for word in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_words, inner))
    if origin is tuple:
        return f"a tuple of {_words(inner[0])} each"
    if origin is not None and issubclass(origin, Mapping):
        return f"a mapping from {_words(inner[0])} to {_words(inner[1])}"
    return f"a {getattr(hint, '__name__', hint)}"
