"""Documents by a grammar obey it, come from their seed, and get past the checks of form."""

import random
from pathlib import Path

import pytest

from graphs.common.errors import InputError
from tests.attacks.grammar import Grammar, inferred
from tests.attacks.readers import reader
from tests.planner.plans.schemas.validation import validator

TREE = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "urn:tree",
    "type": "object",
    "additionalProperties": False,
    "required": ["name"],
    "properties": {"name": {"type": "string"}, "below": {"type": "array", "items": {"$ref": "#"}}},
}


def test_a_schema_that_refers_to_itself_ends() -> None:
    grammar = Grammar(TREE, {"name": "a", "below": [{"name": "b"}]})
    made = [grammar.document(random.Random(seed)) for seed in [*range(200)] * 2]
    assert made[:200] == made[200:]
    assert {each["name"] for each in made} == {"a", "b", "name", "below"}
    assert len({str(each) for each in made}) > 20


def test_a_document_without_a_schema_looks_like_a_good_one() -> None:
    good = {"a": [1, "x"], "b": {"c": None, "d": True}}
    assert inferred(good) == {
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]}},
            "b": {"type": "object", "properties": {"c": {"type": "null"}, "d": {"type": "boolean"}}},
        },
    }
    grammar = Grammar(inferred(good), good)
    for seed in range(100):
        document = grammar.document(random.Random(seed))
        assert isinstance(document.get("a", []), list)
        assert isinstance(document.get("b", {}), dict)
    assert good == {"a": [1, "x"], "b": {"c": None, "d": True}}


@pytest.mark.parametrize(("name", "share"), [("graph", 0.9), ("run", 0.6)])
def test_most_obey_the_schema(name: str, share: float) -> None:
    """What a schema says of lengths, alternatives and patterns is left to chance."""
    of = reader(name)
    obey = [validator(name).is_valid(of._grammar.document(random.Random(seed))) for seed in range(60)]
    assert sum(obey) >= share * len(obey)


def test_some_clusters_are_taken(tmp_path: Path) -> None:
    of, taken = reader("cluster"), 0
    for seed in range(60):
        rng = random.Random(seed)
        try:
            of.read(of.put(of.write(of._grammar.document(rng), rng), tmp_path))
            taken += 1
        except InputError:
            pass
    assert 5 <= taken < 60
