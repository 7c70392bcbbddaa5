"""Files of plans for generating text: JSON with the whole division, for `planner export` and for other programs."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from graphs.common import checks
from graphs.common.documents import read_json
from graphs.common.errors import InputError
from planner.generation.plan import FORMAT, VERSION

NEEDED = ("engine", "context", "sequences", "cache", "layers", "modules", "stages", "devices", "hardware")


def is_generation_plan(path: Path) -> bool:
    """Return whether a file is a plan for generating text; the file may be anything."""
    try:
        with path.open(encoding="utf-8") as file:
            return f'"format": "{FORMAT}"' in file.read(200)
    except (OSError, UnicodeDecodeError):
        return False


def load_generation_plan(path: str | PathLike[str]) -> Mapping[str, Any]:
    """Return the document of a plan that was saved.

    Raises:
        InputError: for a file that cannot be read, of another format or version, or that lacks something.
    """
    document = read_json(checks.path(path, "the plan", "the path of a file"), "plan")
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(f"'{path}' is no plan of `planner fit`; write one with -o")
    if document.get("version") != VERSION:
        raise InputError(f"'{path}' has version {document.get('version')!r}, and {VERSION} is known; plan again")
    missing = [key for key in NEEDED if key not in document]
    if missing:
        raise InputError(f"'{path}' has no '{missing[0]}'; plan again with `planner fit -o`")
    return document
