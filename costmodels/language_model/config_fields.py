"""ConfigFields: the fields of a config.json, or of transformers' record of it, under any of their usual names."""

from collections.abc import Mapping, Sequence
from typing import Any

from graphs.common.errors import InputError


class ConfigFields:
    """A config whose fields are read one by one."""

    def __init__(self, name: str, config: Any) -> None:
        self.name, self.config = name, config

    def text(self) -> "ConfigFields":
        """Return the part of the config that is about text; the whole config if it has no parts."""
        for key in ("text_config", "llm_config", "language_config"):
            part = self.first((key,))
            if part is not None:
                return ConfigFields(self.name, part)
        return self

    def first(self, names: Sequence[str]) -> Any:
        """Return the value of the first of these fields that is there, a list if layers differ; None if none is."""
        return next((value for name in names if (value := self._value(name)) is not None), None)

    def _value(self, name: str) -> Any:
        if isinstance(self.config, Mapping):
            return self.config.get(name)
        try:
            return getattr(self.config, name, None)
        except RuntimeError:  # transformers 5 refuses a single value for a field that differs from layer to layer
            return [getattr(layer, name, None) for layer in self.config.per_layer_config]

    def count(self, names: Sequence[str], what: str) -> int:
        """Return a whole number above 0.

        Raises:
            InputError: if there is none.
        """
        value = self.first(names)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            found = "none" if value is None else repr(value)
            raise InputError(f"the config of '{self.name}' has no {what} ({names[0]} is {found}); add {names[0]}")
        return value

    def greatest(self, names: Sequence[str]) -> int:
        """Return a number that a config may lack, which then is 0; the greatest of a list."""
        value = self.first(names)
        numbers = value if isinstance(value, list | tuple) else [value]
        return max((number for number in numbers if type(number) is int and number > 0), default=0)
