"""The public door: its names, what they stand for, and that they are loaded late."""

import ast
import sys
from importlib import import_module
from pathlib import Path

import pytest

import planner
from tests.children import ran

DOOR = Path(planner.__file__ or "")


def declared() -> dict[str, str]:
    """What type checkers see: each name and its module."""
    (block,) = (node for node in ast.parse(DOOR.read_text(encoding="utf-8")).body if isinstance(node, ast.If))
    found = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert all(alias.asname == alias.name for node in found for alias in node.names)
    return {alias.name: node.module or "" for node in found for alias in node.names}


def test_type_checkers_and_users_see_the_same() -> None:
    assert declared() == planner.HOMES
    assert sorted(planner.__all__) == sorted(planner.HOMES)
    assert set(planner.__all__) <= set(dir(planner))


@pytest.mark.parametrize("name", planner.HOMES)
def test_every_name_is_there(name: str) -> None:
    assert getattr(planner, name) is getattr(import_module(planner.HOMES[name]), name)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'planner' has no attribute 'plann'"):
        planner.plann  # noqa: B018  # the access is what is tested


def test_no_module_has_the_name_of_a_function() -> None:
    """A room of this name would take the function's place as soon as one of its modules is imported."""
    rooms = {path.stem for path in DOOR.parent.iterdir()}
    assert not rooms & planner.HOMES.keys()


def printed(code: str) -> str:
    done = ran([sys.executable, "-c", code], cwd=DOOR.parents[1])
    return done.stdout.strip()


def test_nothing_large_is_loaded_before_it_is_asked_for() -> None:
    code = "import sys, planner; print(sorted({'numpy', 'scipy', 'torch', 'rich'} & sys.modules.keys()))"
    assert printed(code) == "[]"
    assert printed(f"import planner; planner.Plan; {code}") == "['numpy']"
