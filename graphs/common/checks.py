"""Checks of a caller's arguments. Each check returns the value, or raises an `InputError` that names the mistake."""

import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from math import inf
from operator import index
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from graphs.common.errors import InputError, nearest

WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", types.NoneType: "None"}
NUMBERS = {int: "__index__", float: "__float__"}  # the method that makes a value such a number, numpy's included
SHOWN = 60  # characters of a value in a message
MOST_WORDS = 40  # that a message lists


def check_fields(record: Any, where: str) -> None:
    """Check that the fields of a dataclass have the types of their annotations; the record checks ranges itself."""
    for name, hint in _hints(record.__class__).items():
        value = getattr(record, name)
        if not fits(value, hint):
            closed = get_origin(hint) is Literal
            way_out = _none_of(value, get_args(hint)) if closed else f"give {_words(hint)}"
            raise InputError(f"{where} has {name} = {shown(value)}; {way_out}")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type. A bool is no number; an integer is a float, too."""
    if hint is Any:
        return True
    if hint in NUMBERS:
        return hasattr(value, NUMBERS[hint]) and not isinstance(value, bool)
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin in (Union, types.UnionType):
        return any(fits(value, option) for option in inner)
    return isinstance(value, origin or hint) and _items_fit(value, origin, inner)


def _items_fit(value: Any, origin: Any, inner: tuple[Any, ...]) -> bool:
    """Whether the items of a tuple or mapping are of the types in its annotation."""
    if origin is tuple:
        kinds = (inner[0],) * len(value) if inner[-1] is Ellipsis else inner
        return len(value) == len(kinds) and all(map(fits, value, kinds))
    if origin is not None and issubclass(origin, Mapping):
        return all(fits(key, inner[0]) and fits(item, inner[1]) for key, item in value.items())
    return True


def instance(value: Any, kind: type | tuple[type, ...], what: str, way_out: str) -> Any:
    """Check that a value is of a type."""
    if not isinstance(value, kind):
        raise InputError(f"{what} is {shown(value)}; give {way_out}")
    return value


def function(value: Any, what: str, way_out: str) -> None:
    """Check that a value is callable."""
    if not callable(value):
        raise InputError(f"{what} is {shown(value)}; give {way_out}")


def path(value: Any, what: str, way_out: str) -> Path:
    """Check a path, which may be a text or a `Path`."""
    return Path(fspath(instance(value, (str, PathLike), what, way_out)))


def integer(value: Any, what: str, least: int = 0) -> int:
    """Check a whole number of at least ``least``; True and False are refused."""
    if not fits(value, int) or value < least:
        raise InputError(f"{what} is {shown(value)}; give a whole number of {least} or more")
    return index(value)


def share(value: Any, what: str) -> float:
    """Check a number from 0 to below 1."""
    if not fits(value, float) or not 0 <= value < 1:
        raise InputError(f"{what} is {shown(value)}; give a number from 0 to below 1, such as 0.01 for 1 %")
    return float(value)


def seconds(value: Any, what: str) -> float:
    """Check a finite number of seconds above 0."""
    if not fits(value, float) or not 0 < value < inf:
        raise InputError(f"{what} is {shown(value)}; give a number of seconds above 0")
    return float(value)


def one_of(value: Any, what: str, known: Iterable[str]) -> str:
    """Check a word, or a member of a string enum; the error suggests the nearest known word."""
    words = [str(word) for word in known]
    if not isinstance(value, str) or value not in words:
        raise InputError(f"{what} is {shown(value)}; {_none_of(value, words)}")
    return str(value)


def _none_of(value: Any, words: Sequence[str]) -> str:
    told = words if len(words) <= MOST_WORDS else [*words[:MOST_WORDS], f"... ({len(words):,} in all)"]
    return f"it must be one of {', '.join(told)}{nearest(value, words) if isinstance(value, str) else ''}"


def shown(value: Any) -> str:
    """A value as a message shows it: its ``repr`` if that is short, else its type."""
    text = repr(value)
    return text if len(text) <= SHOWN and "\n" not in text else f"a {type(value).__name__}"


@cache
def _hints(record: type) -> dict[str, Any]:
    """The annotations of the fields that the constructor takes."""
    hints = get_type_hints(record)
    return {field.name: hints[field.name] for field in fields(record) if field.init}


def _words(hint: Any) -> str:
    """An annotated type in words."""
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
