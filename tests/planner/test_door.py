"""The public door: its names, what they stand for, and that they are loaded late."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import planner

DOOR = Path(planner.__file__ or "")
CLASHES = ("calibrate", "evaluate", "plan", "solve")  # functions with the names of their modules


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


def printed(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=DOOR.parents[1])
    return done.stdout.strip()


@pytest.mark.parametrize("name", CLASHES)
def test_a_function_comes_before_the_module_of_its_name(name: str) -> None:
    assert callable(getattr(planner, name))
    order = f"import planner.{name}; import planner; from planner import {name}; print(callable({name}))"
    assert printed(order) == printed(f"import planner; planner.{name}; {order}") == "True"
    assert isinstance(sys.modules[f"planner.{name}"], ModuleType)


def test_nothing_large_is_loaded_before_it_is_asked_for() -> None:
    code = "import sys, planner; print(sorted({'numpy', 'scipy', 'torch', 'rich'} & sys.modules.keys()))"
    assert printed(code) == "[]"
    assert printed(f"import planner; planner.Plan; {code}") == "['numpy']"
