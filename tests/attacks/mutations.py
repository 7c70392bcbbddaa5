"""Break a file: any bytes, or a document whose grammar stays right and whose content does not."""

import json
import marshal
import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any

DEEPER = 0.85  # how often the way to a value goes on into it
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 2**31, 2**63, -(2**63) - 1, 10**40, 0.5, -0.0, 1e-320, 1e308, -1e308),
    *(
        float("inf"),
        float("-inf"),
        float("nan"),
        "",
        " ",
        "\0",
        "a",
        "gpu0",
        "cpu0",
        "../../etc/passwd",
        "é" * 3,
        "\ud7ff",
    ),
    *("1e400", "NaN", "0x10", "__import__('os').abort()", "{0.__class__}", "%s%n", [], {}, [[]], [0] * 50, {"": 0}),
)
"""Values that one document or another has no sense for."""


def broken_bytes(content: bytes, rng: random.Random) -> bytes:
    """Change, cut, repeat or insert bytes in a few places."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        at, length = rng.randrange(len(data) + 1), rng.choice((1, 1, 2, 4, 8, 64))
        rng.choice((_flip, _cut, _repeat, _insert, _zero, _shorten))(data, at, length, rng)
    return bytes(data)


def _flip(data: bytearray, at: int, _: int, rng: random.Random) -> None:
    if at < len(data):
        data[at] ^= 1 << rng.randrange(8)


def _cut(data: bytearray, at: int, length: int, _: random.Random) -> None:
    del data[at : at + length]


def _repeat(data: bytearray, at: int, length: int, rng: random.Random) -> None:
    data[at:at] = data[at : at + length] * rng.choice((1, 2, 100))


def _insert(data: bytearray, at: int, length: int, rng: random.Random) -> None:
    data[at:at] = rng.choice(
        (rng.randbytes(length), b"\xff" * length, b"[" * length, b"-", b"9" * length, b'"', b"\\u")
    )


def _zero(data: bytearray, at: int, length: int, rng: random.Random) -> None:
    data[at : at + length] = rng.choice((b"\0", b"\xff")) * len(data[at : at + length])


def _shorten(data: bytearray, at: int, _: int, rng: random.Random) -> None:
    if rng.random() < 0.3:
        del data[at:]


def broken_document(document: Any, rng: random.Random) -> Any:
    """Change a few values of a document: replace, remove, repeat, swap or rename."""
    made = marshal.loads(marshal.dumps(document))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        place = _place(made, rng)
        if place is None:
            return deepcopy(rng.choice(ODD))
        holder, key = place
        rng.choice((_replaced, _replaced, _replaced, _removed, _doubled, _swapped, _renamed))(made, holder, key, rng)
    return made


def _place(document: Any, rng: random.Random) -> tuple[Any, Any] | None:
    """Return a random value's holder and key; None if the document is one value.

    The way down ends sooner or later by chance, so that a field counts as much as a long list next to it.
    """
    place, value = None, document
    while isinstance(value, dict | list) and value and (place is None or rng.random() < DEEPER):
        key = rng.choice([*value]) if isinstance(value, dict) else rng.randrange(len(value))
        place, value = (value, key), value[key]
    return place


def _replaced(_: Any, holder: Any, key: Any, rng: random.Random) -> None:
    value = holder[key]
    near: list[Callable[[], Any]] = [lambda: rng.choice(ODD)]
    if isinstance(value, int | float) and not isinstance(value, bool):
        near += [lambda: -value, lambda: value + 1, lambda: value * 10**9, lambda: str(value), lambda: [value]]
    elif isinstance(value, str):
        near += [lambda: value + "x", lambda: value[:-1], lambda: [value], lambda: value.upper()]
    elif isinstance(value, list):
        near += [lambda: value[::-1], lambda: value[:-1], lambda: value + value[-1:], lambda: {"0": value}]
    else:
        near += [lambda: [value], lambda: list(value) if isinstance(value, dict) else 0]
    holder[key] = deepcopy(rng.choice(near)())


def _removed(_: Any, holder: Any, key: Any, __: random.Random) -> None:
    del holder[key]


def _doubled(_: Any, holder: Any, key: Any, rng: random.Random) -> None:
    if isinstance(holder, list):
        holder.insert(rng.randrange(len(holder) + 1), deepcopy(holder[key]))
    else:
        holder[str(key) + rng.choice(("2", " ", "_s"))] = deepcopy(holder[key])


def _swapped(document: Any, holder: Any, key: Any, rng: random.Random) -> None:
    place = _place(document, rng)
    if place is not None:
        holder[key] = marshal.loads(marshal.dumps(place[0][place[1]]))


def _renamed(_: Any, holder: Any, key: Any, rng: random.Random) -> None:
    if isinstance(holder, dict):
        holder[rng.choice(("", "x", str(key).upper(), str(key) + " "))] = holder.pop(key)
    else:
        holder[key] = {str(key): holder[key]}


def as_json(document: Any, rng: random.Random) -> bytes:
    """Write a document as JSON, now and then with what Python alone takes for it."""
    text = json.dumps(document, ensure_ascii=rng.random() < 0.8)
    return text.encode("utf-8", "surrogatepass")


def as_toml(document: Any, rng: random.Random) -> bytes:
    """Write a document as TOML, as far as TOML has its values; lists of tables as tables."""
    if not isinstance(document, dict):
        return as_json(document, rng)
    tables = {key: value for key, value in document.items() if isinstance(value, list) and value and _all_tables(value)}
    lines = [f"{_key(key)} = {_toml(value)}" for key, value in document.items() if key not in tables]
    for key, value in tables.items():
        for table in value:
            lines += [f"[[{_key(key)}]]", *(f"{_key(name)} = {_toml(inner)}" for name, inner in table.items())]
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _all_tables(value: list[Any]) -> bool:
    return all(isinstance(each, dict) for each in value)


def _key(key: str) -> str:
    return key if key.isidentifier() and key.isascii() else json.dumps(key)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    if value != value:
        return "nan"
    return json.dumps(value) if value is not None else '"none"'
