"""The catalogue of published figures of devices and links with their sources, from catalogue.toml in this folder."""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from graphs.common.checks import instance
from graphs.common.errors import InputError

FILE = Path(__file__).with_name("catalogue.toml")

LISTED = "one that `planner devices` lists"

Section: TypeAlias = Literal["device", "link"]


@dataclass(frozen=True)
class Entry:
    """One device or link."""

    name: str  # the name in ``like = "..."`` of cluster.toml
    keys: Mapping[str, Any]  # the keys of cluster.toml that it provides
    source: str  # the data sheet or standard


@cache
def catalogue(section: Section) -> Mapping[str, Entry]:
    """Return all entries of a section by name, in the order of the file."""
    tables = tomllib.loads(FILE.read_text(encoding="utf-8"))[section]
    return {
        name: Entry(name, {key: value for key, value in table.items() if key != "source"}, table["source"])
        for name, table in tables.items()
    }


def entry_named(section: Section, text: str) -> Entry:
    """An entry by its name, in any case, or by a beginning or an end of it at a hyphen that no other name has.

    Raises:
        InputError: for an unknown name, or one that several have.
    """
    key = instance(text, str, f"the name of a {section}", LISTED).lower()
    meant = [name for name in catalogue(section) if f"{name.lower()}-".startswith(f"{key}-")]
    meant = meant or [name for name in catalogue(section) if name.lower().endswith(f"-{key}")]
    exact = [name for name in meant if name.lower() == key]
    if len(exact or meant) > 1:
        raise InputError(f"the catalogue has several {text}; say which: {', '.join(meant)}")
    return entry(section, (exact or meant or [text])[0])


def entry(section: Section, name: str) -> Entry:
    """An entry by its name.

    Raises:
        InputError: for an unknown name, with the nearest name, or else all.
    """
    entries = catalogue(section)
    if isinstance(name, str) and name in entries:
        return entries[name]
    instance(name, str, f"the name of a {section}", LISTED)
    lowered = {other.lower(): other for other in entries}
    near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.3)
    known = f"known: {', '.join(entries)}"
    if near:
        known = f"did you mean '{lowered[near[0]]}'? `planner devices` lists all"
    raise InputError(f"the catalogue has no {section} '{name}'; {known}")
