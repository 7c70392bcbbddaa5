"""JsonObject: an object of a file of JSON, whose fields are read one by one; messages name the object and the field."""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from graphs.common.errors import InputError


class JsonObject:
    """An object of the file, with the name that messages give it."""

    def __init__(self, where: str, content: Any) -> None:
        if not isinstance(content, Mapping):
            raise InputError(f"{where} is {shown_briefly(content)}; it must be an object")
        self.where, self.content = where, content

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number, 0 or more."""
        return float(self._value(key, "a number of 0 or more", _is_amount, default))

    def whole(self, key: str) -> int:
        """Any whole number."""
        return int(self._value(key, "a whole number", _is_whole))

    def count(self, key: str, least: int = 0) -> int:
        """A whole number, ``least`` or more."""
        self.whole(key)
        return int(self._value(key, f"a whole number of {least} or more", lambda value: value >= least))

    def above_zero(self, key: str) -> float:
        """A finite number above 0."""
        return float(self._value(key, "a number above 0", lambda value: _is_amount(value) and value > 0))

    def object(self, key: str) -> "JsonObject":
        """An object within this one."""
        return JsonObject(f"{key} of {self.where}", self._value(key, "an object", lambda v: isinstance(v, Mapping)))

    def flag(self, key: str) -> bool:
        """A truth value, written as true and false or as 1 and 0."""
        return bool(self._value(key, "true or false", lambda value: value in (0, 1)))  # True == 1

    def label(self, key: str) -> int | str | None:
        """A name or a number, or None if it is left out."""
        if self.content.get(key) is None:
            return None
        label: int | str = self._value(key, "a whole number or a text", lambda value: isinstance(value, int | str))
        return label

    def records(self, key: str) -> list[Any]:
        """A list."""
        return list(self._value(key, "a list", lambda value: isinstance(value, list)))

    def wholes(self, key: str, n: int | None = None, least: int = 0) -> tuple[int, ...]:
        """A list of whole numbers, ``n`` if given."""
        kind = f"a list of {'' if n is None else f'{n} '}whole numbers of {least} or more"
        return tuple(self._value(key, kind, lambda v: _is_list(v, n) and all(_is_whole(i) and i >= least for i in v)))

    def numbers(self, key: str, n: int) -> tuple[float, ...]:
        """A list of ``n`` finite numbers, 0 or more."""
        kind = f"a list of {n} numbers of 0 or more"
        return tuple(
            map(float, self._value(key, kind, lambda value: _is_list(value, n) and all(map(_is_amount, value))))
        )

    def has(self, key: str) -> bool:
        """Whether a field is there, and not null."""
        return self.content.get(key) is not None

    def _value(self, key: str, kind: str, fits: Callable[[Any], bool], default: Any = None) -> Any:
        """The value of a key."""
        value = self.content.get(key, default)
        if value is None:
            raise InputError(f"{self.where} has no {key}; add it, {kind}")
        if not fits(value):
            raise InputError(f"{self.where} has {key} = {shown_briefly(value)}; it must be {kind}")
        return value


def _is_amount(value: Any) -> bool:
    """Whether a value is a finite number, 0 or more."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value >= 0


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_list(value: Any, n: int | None) -> bool:
    return isinstance(value, list) and (n is None or len(value) == n)


def shown_briefly(value: Any) -> str:
    """A value as messages show it."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
