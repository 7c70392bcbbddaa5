"""The house rules that no linter knows: who may import whom, and where the heavy libraries live.

::

    graphs  ←  costmodels  ←  simulator  ←  planner        tests and examples see all
"""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

from tests.children import ran

ROOT = Path(__file__).parent.parent
LAYERS = ("graphs", "costmodels", "simulator", "planner")  # each sees itself and those before it
EVERYBODY = ("examples", "tests")

RANKS = (
    "planner.cli.rank",
    "planner.cli.rank_model",
    "planner.cli.training_rank",
    "planner.cli.hybrid_rank",
)  # what torchrun starts

ROOMS = {
    "torch": (
        "graphs.importers",
        "graphs.program",
        "costmodels.calibrate",
        "costmodels.host",
        "planner.runtime",
        *RANKS,
        *EVERYBODY,
    ),
    "onnx": ("graphs.importers.from_onnx", "graphs.importers.onnx", "planner.exports.onnx_devices", "tests"),
    "pulp": ("planner.solvers", "tests"),
    "highspy": ("planner.solvers", "tests"),
    "safetensors": ("planner.runtime", "tests"),
    "transformers": ("graphs.importers.from_config", *EVERYBODY),
    "quickjs": ("planner.view", "tests"),
    "resvg_py": ("planner.view", "tests"),
    "rich": ("planner.cli",),
    "planner.cli": ("planner.cli", "planner.__main__", *EVERYBODY),
}
"""Who may load a heavy library, at once or when a function is called; likewise who may know of the command line."""

LIGHT = (
    "graphs",
    "costmodels.table",
    "simulator.simulate",
    "simulator.pipeline",
    "simulator.schedules",
    "planner",
    "planner.cli",
    "planner.problem.evaluate",
)
"""What has to load without torch, which takes seconds."""


When = Literal["start", "call", "never"]
"""A module is loaded with its importer, when a function is called, or only by the type checker."""


class Import(NamedTuple):
    """One import statement's target."""

    importer: str
    target: str
    line: int
    when: When


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    """Every module of the project by its dotted name."""
    files = [path for package in (*LAYERS, *EVERYBODY) for path in sorted((ROOT / package).rglob("*.py"))]
    return {module_name(path): path for path in files}


def imports(tree: ast.AST, importer: str, when: When = "start") -> Iterator[Import]:
    """The targets of all import statements; ``from a import b`` counts as a.b where that is a module, else as a."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(importer, alias.name, node.lineno, when) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{importer}:{node.lineno} imports relatively; write the whole name"
            base = node.module or ""
            for alias in node.names:
                target = f"{base}.{alias.name}"
                yield Import(importer, target if target in modules() else base, node.lineno, when)
        elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from imports(ast.Module(node.body, []), importer, "never")
            yield from imports(ast.Module(node.orelse, []), importer, when)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and when == "start":
            yield from imports(node, importer, "call")
        else:
            yield from imports(node, importer, when)


@cache
def all_imports() -> tuple[Import, ...]:
    return tuple(
        found
        for name, path in modules().items()
        for found in imports(ast.parse(path.read_text(encoding="utf-8")), name)
    )


def within(module: str, room: str) -> bool:
    return module == room or module.startswith(f"{room}.")


def test_there_is_something_to_look_at() -> None:
    assert {"graphs.ir", "costmodels.table", "simulator.engine", "planner.problem.evaluate"} <= modules().keys()
    assert any(
        found.importer == "planner.problem.evaluate" and found.target == "simulator.simulate" for found in all_imports()
    )


def test_no_layer_imports_upwards() -> None:
    wrong = [
        f"{found.importer}:{found.line} imports {found.target}"
        for found in all_imports()
        if (mine := found.importer.partition(".")[0]) in LAYERS
        and (other := found.target.partition(".")[0]) in (*LAYERS, *EVERYBODY)
        and other not in LAYERS[: LAYERS.index(mine) + 1]
    ]
    assert wrong == []


@pytest.mark.parametrize("library", ROOMS)
def test_heavy_libraries_stay_in_their_rooms(library: str) -> None:
    wrong = [
        f"{found.importer}:{found.line} imports {found.target}"
        for found in all_imports()
        if found.when != "never"
        and within(found.target, library)
        and not any(within(found.importer, room) for room in ROOMS[library])
    ]
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Wherever the imports stand, late ones and those of types included."""
    needs: dict[str, set[str]] = {name: set() for name in modules()}
    for found in all_imports():
        if found.target in needs and found.target != found.importer:
            needs[found.importer].add(found.target)
    assert circle(needs) is None


def circle(needs: dict[str, set[str]]) -> list[str] | None:
    """A circle in a directed graph, or None: take away what needs nothing until nothing changes, then walk."""
    left = {name: set(others) for name, others in needs.items()}
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    if not left:
        return None
    walk = [min(left)]
    while walk[-1] not in walk[:-1]:
        walk.append(min(left[walk[-1]] & left.keys()))
    return walk[walk.index(walk[-1]) :]


def test_a_circle_would_be_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": set()}) is None
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["b", "c", "b"]
    assert circle({"a": {"a"}}) == ["a", "a"]


@pytest.mark.parametrize("module", [name for name in LIGHT if name in modules()])
def test_what_must_start_quickly_does_not_load_torch(module: str) -> None:
    heavy = "{'torch', 'onnx', 'transformers'}"
    code = f"import sys, {module}; print(sorted({heavy} & sys.modules.keys()))"
    done = ran([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def example(source: str) -> list[tuple[str, When]]:
    return [(found.target, found.when) for found in imports(ast.parse(source), "planner.example")]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import torch.nn, os", [("torch.nn", "start"), ("os", "start")]),
        ("from planner import cli, Plan", [("planner.cli", "start"), ("planner", "start")]),
        ("def f():\n    if x:\n        from torch import nn", [("torch", "call")]),
        ("class A:\n    import os\n    async def f(self):\n        import onnx", [("os", "start"), ("onnx", "call")]),
        ("if TYPE_CHECKING:\n    import torch\nelse:\n    import onnx", [("torch", "never"), ("onnx", "start")]),
        ("try:\n    import torch\nexcept ImportError:\n    import onnx", [("torch", "start"), ("onnx", "start")]),
    ],
)
def test_imports_are_found_with_the_moment_when_they_happen(source: str, found: list[tuple[str, When]]) -> None:
    assert example(source) == found


def test_relative_imports_are_refused() -> None:
    with pytest.raises(AssertionError, match=r"planner\.example:1 imports relatively; write the whole name"):
        example("from . import evaluate")
