"""What a schema has against a document."""

from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from planner.plans.schemas import schema


@cache
def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(schema(name))


def objections(name: str, document: Any) -> list[str]:
    """What a schema has against a document, with where it stands."""
    found = sorted(validator(name).iter_errors(document), key=lambda error: list(map(str, error.absolute_path)))
    return [f"{'/'.join(map(str, error.absolute_path)) or 'the document'}: {error.message[:200]}" for error in found]
