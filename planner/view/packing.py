"""A document in few bytes: what repeats becomes the same text, which deflate stores once; `unpack.js` reads it.

::

    [[0, "a", 7], [1, "b", 7]]    columns: [0, 1], ["a", "b"], [7, 7]
    [4000, 4001, 4003]            steps: 4000, 1, 2; so layers that are equal but for their place have equal steps
    ["a", "b", "b"]               names: the steps of their numbers in one list of all texts
    [[1, 2], [], [3]]             joined: the lengths, and one list
"""

import base64
import zlib
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from graphs.common.visible import visible_json
from planner.view.numbers import Numbers


def packed_text(document: Any) -> str:
    """Return a document for JSON as base64 of deflated JSON, which is safe inside a script element."""
    texts = Numbers()
    packed = _packed(document, texts)
    return base64.b64encode(zlib.compress(visible_json([list(texts), packed]).encode(), level=9)).decode()


def _packed(value: Any, texts: Numbers) -> Any:
    """Pack lists as pairs of the name of a form, which `unpack.js` knows, and the content in that form."""
    if isinstance(value, dict):
        return {key: _packed(each, texts) for key, each in value.items()}
    if not isinstance(value, list | tuple):
        return value
    kinds = set(map(type, value))
    if kinds == {int}:
        return "steps", _steps(value)
    if kinds == {str}:
        return "names", _steps([texts[each] for each in value])
    if kinds and kinds <= {list, tuple}:
        lengths = list(map(len, value))
        if len(set(lengths)) == 1 and 0 < lengths[0] <= len(lengths):
            return "columns", [_packed(column, texts) for column in zip(*value, strict=True)]
        return "joined", [_packed(part, texts) for part in (lengths, _chained(value))]
    return "list", [_packed(each, texts) for each in value]


def _steps(values: Sequence[int]) -> list[int]:
    return [after - before for before, after in zip((0, *values), values, strict=False)]


def _chained(lists: Iterable[Iterable[Any]]) -> list[Any]:
    return list(chain.from_iterable(lists))
