"""A ``repr`` of records that stays one short line, however large the network is."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from itertools import islice
from math import prod
from typing import Any

FEW = 4  # items of a collection that are shown
MOST = 100  # characters of a value


class Brief:
    """The base of dataclasses whose ``repr`` is `brief`."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # in each class itself, or the decorator dataclass writes another
        cls.__repr__ = brief  # type: ignore[method-assign]


def brief(record: Any) -> str:
    """``Name(field=value, ...)`` as dataclasses write it; large values are cut to their ends and sizes."""
    shown = ", ".join(f"{field.name}={_shown(getattr(record, field.name))}" for field in fields(record) if field.repr)
    return f"{type(record).__name__}({shown})"


def _shown(value: Any) -> str:
    match value:
        case _ if type(value).__name__ in ("ndarray", "Tensor") and prod(value.shape) > FEW:
            text = f"<{value.dtype}, {'×'.join(map(str, value.shape))}>"
        case Mapping():
            text = f"{{{_few((f'{_shown(key)}: {_shown(item)}' for key, item in value.items()), value)}}}"
        case tuple():
            text = f"({_few(map(_shown, value), value)}{',' if len(value) == 1 else ''})"
        case list() | set() | frozenset():
            text = f"[{_few(map(_shown, value), value)}]"
        case _:
            text = " ".join(repr(value).splitlines())
    return text if len(text) <= MOST else f"{text[: MOST // 2]} … {text[-MOST // 2 :]}"


def _few(shown: Iterable[str], values: Collection[Any]) -> str:
    first = ", ".join(islice(shown, FEW))
    return first if len(values) <= FEW else f"{first}, … {len(values):,} in all"
