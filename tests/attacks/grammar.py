"""Documents by their grammar: what a JSON Schema allows, or, without one, what a good document looks like.

A document that obeys gets past the checks of form, and reaches those of sense. Names and numbers come from a good
document, so that what refers to something often refers to something that is there.
"""

import marshal
import random
import re
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import getitem
from typing import Any

SEEN = 8  # elements of a list of a good document that say what its elements look like
LENGTHS = (0, 1, 1, 2, 2, 3, 5)
DEEPEST = 12  # after which no optional key and no element is drawn
DEEPER = 0.8  # how often the way to a place goes on into it
WHOLE = 0.05  # how often all of a document is drawn
OFTEN, NEARLY_ALWAYS = 0.4, 0.9  # a key that may be there, of an object that needs others, and of one that needs none
EDGES = (0, 1, 2, 3, 7, 2**31 - 1, 2**53, 10**15, 0.5, 1e-12, 1e12, 1.5e300)
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}

Schema = Any  # a JSON Schema: a mapping, True or False


def inferred(document: Any) -> Schema:
    """Return a schema of documents that look like this one."""
    if isinstance(document, dict):
        return {"type": "object", "properties": {key: inferred(value) for key, value in document.items()}}
    if isinstance(document, list):
        return {"type": "array", "items": {"anyOf": [inferred(value) for value in document[:SEEN]]}}
    return {"type": TYPES.get(type(document), "null")}


class Grammar:
    """Draws documents by a schema, and changes a good one at places that the schema knows.

    Args:
        schema: draft 2020-12, of which ``not``, ``if`` and lengths of texts are left to chance.
        good: a document that is read.
    """

    def __init__(self, schema: Schema, good: Any) -> None:
        self._resources: dict[str, Schema] = {}
        self._schema, self._packed = _registered(schema, "", self._resources), marshal.dumps(good)
        leaves = [*_leaves(good)]
        self._texts = [each for each in leaves if isinstance(each, str)] or ["x"]
        self._numbers = [each for each in leaves if isinstance(each, int | float) and not isinstance(each, bool)] or [1]

    def document(self, rng: random.Random) -> Any:
        """Return a document that the schema allows: all of it drawn, or the good one with a few values drawn."""
        if rng.random() < WHOLE:
            return self._drawn(self._schema, rng, 0)
        made = [marshal.loads(self._packed)]
        for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
            holder, key, schema = self._place(made, rng)
            holder[key] = self._drawn(schema, rng, 0)
        return made[0]

    def _place(self, made: list[Any], rng: random.Random) -> tuple[Any, Any, Schema]:
        """Return a random place: who holds the value, at which key, and the value's schema."""
        holder: Any = made
        key, schema = 0, self._resolved(self._schema)
        while isinstance(value := holder[key], dict | list):
            keys = _keys(schema, value)
            if not keys or (holder is not made and rng.random() >= DEEPER):
                break
            inner = rng.choice(keys)
            if isinstance(value, dict) and inner not in value:  # a key that may be there
                value[inner] = None
            chosen = self._inner(schema, inner)
            if chosen is None:
                break
            holder, key, schema = value, inner, self._resolved(chosen)
        return holder, key, schema

    def _resolved(self, schema: Schema) -> Schema:
        """Return what a reference stands for."""
        while isinstance(schema, dict) and "$ref" in schema:
            base, _, path = schema["$ref"].partition("#")
            schema = reduce(getitem, filter(None, path.split("/")), self._resources[base])
        return schema

    def _inner(self, schema: Schema, key: Any) -> Schema | None:
        """Return the schema of what a value of this schema has at a key or index; None if it says nothing of that."""
        for each in (schema, *map(self._resolved, _choices(schema))):
            if isinstance(key, int) and key < len(each.get("prefixItems", ())):
                return each["prefixItems"][key]
            found = each.get("items") if isinstance(key, int) else each.get("properties", {}).get(key)
            found = found or (each.get("additionalProperties") if isinstance(key, str) else None)
            if found:
                return found
        return None

    def _drawn(self, schema: Schema, rng: random.Random, depth: int) -> Any:
        """Return a value that a schema allows."""
        schema = self._resolved(schema)
        if not isinstance(schema, dict):
            return rng.choice(self._texts)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return rng.choice(schema["enum"])
        if choices := _choices(schema):
            return self._drawn(rng.choice(choices), rng, depth + 1)
        if "examples" in schema and rng.random() < 0.5:
            return rng.choice(schema["examples"])
        kind = schema.get("type", "null")
        return self._of_type(rng.choice(kind) if isinstance(kind, list) else kind, schema, rng, depth)

    def _of_type(self, kind: str, schema: Mapping[str, Any], rng: random.Random, depth: int) -> Any:
        if kind == "object":
            return self._object(schema, rng, depth)
        if kind == "array":
            fixed = schema.get("prefixItems", ())
            rest = rng.choice(LENGTHS) if schema.get("items") and depth < DEEPEST else 0
            count = max(rest, schema.get("minItems", 0) - len(fixed))
            return [self._drawn(each, rng, depth + 1) for each in (*fixed, *[schema.get("items", {})] * count)]
        if kind == "string":
            known = [each for each in self._texts if re.search(schema.get("pattern", ""), each)]
            return rng.choice(known or self._texts)
        if kind in ("integer", "number"):
            number = rng.choice(self._numbers if rng.random() < 0.5 else EDGES) * rng.choice((1, 1, 1, 2, 0.5, -1))
            number = max(number, schema.get("minimum", number))
            return int(number) if kind == "integer" else number
        return rng.random() < 0.5 if kind == "boolean" else None

    def _object(self, schema: Mapping[str, Any], rng: random.Random, depth: int) -> dict[str, Any]:
        required, known = {*schema.get("required", ())}, schema.get("properties", {})
        likely = 0.0 if depth >= DEEPEST else OFTEN if required else NEARLY_ALWAYS
        made = {
            key: self._drawn(each, rng, depth + 1)
            for key, each in known.items()
            if key in required or rng.random() < likely
        }
        others = schema.get("additionalProperties")
        if isinstance(others, dict) and depth < DEEPEST:
            made |= {rng.choice(self._texts): self._drawn(others, rng, depth + 1) for _ in range(rng.choice(LENGTHS))}
        return made


def _registered(schema: Schema, base: str, resources: dict[str, Schema]) -> Schema:
    """Return a schema whose references are absolute; enter it and the resources in it by their names."""
    if isinstance(schema, list):
        return [_registered(each, base, resources) for each in schema]
    if not isinstance(schema, dict):
        return schema
    base = schema.get("$id", base) if isinstance(schema.get("$id", base), str) else base
    made = {key: _registered(value, base, resources) for key, value in schema.items()}
    if isinstance(reference := made.get("$ref"), str) and reference.startswith("#"):
        made["$ref"] = base + reference
    if "$schema" in made:
        resources[base] = made
    return made


def _choices(schema: Mapping[str, Any]) -> list[Schema]:
    """Return the alternatives of a schema that names no type itself."""
    return [] if "type" in schema else [*schema.get("anyOf", ()), *schema.get("oneOf", ())]


def _keys(schema: Mapping[str, Any], value: Any) -> list[Any]:
    """Return the keys that a value has or may have, or its indices."""
    return [*range(len(value))] if isinstance(value, list) else [*{**value, **schema.get("properties", {})}]


def _leaves(document: Any) -> Iterator[Any]:
    """Yield every text and number of a document, keys included."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield key
            yield from _leaves(value)
    elif isinstance(document, list):
        for value in document:
            yield from _leaves(value)
    else:
        yield document
