"""The house rules that no linter knows: who may import whom, where heavy libraries live, sizes, names and words.

::

    graphs  ←  costmodels  ←  simulator  ←  planner        tests and examples see all
"""

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.children import ran
from tests.structure import (
    LAYERS,
    ROOT,
    Import,
    Source,
    When,
    imports_of,
    not_english,
    sizes,
    source_of,
    within,
    words_not_english,
)

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
        "graphs.kernels",
        "planner.runtime",
        *RANKS,
        *EVERYBODY,
    ),
    "onnx": ("graphs.importers.from_onnx", "graphs.importers.onnx", "planner.exports.onnx_devices", "tests"),
    "pulp": ("planner.solvers", "planner.literature", "tests"),
    "highspy": ("planner.solvers", "planner.literature", "tests"),
    "safetensors": ("planner.runtime", "tests"),
    "transformers": (
        "graphs.importers.from_config",
        "graphs.importers.fixed_cache",
        "graphs.importers.encoder_cache",
        *EVERYBODY,
    ),
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


PLANNER_ROOMS = (
    *("problem", "solvers", "plans", "generation", "parallelism", "runtime", "planning", "explanations", "exports"),
    "view",
)
FLOORS = (
    "graphs",
    "costmodels",
    "simulator",
    *(f"planner.{room}" for room in PLANNER_ROOMS),
)
"""Rooms from the lowest to the highest; the rest of the planner is above them."""

FENCED = {"planner.literature": ("planner.cli.solve",)}
"""Rooms that are kept for themselves, and who else may import them."""

LINES = {
    "costmodels": 2152,
    "costmodels/calibrate": 2399,
    "costmodels/cluster": 2018,
    "costmodels/estimates": 720,
    "costmodels/generation": 955,
    "costmodels/host": 743,
    "costmodels/language_model": 2529,
    "costmodels/learning": 714,
    "costmodels/memory": 617,
    "costmodels/operators": 884,
    "graphs": 924,
    "graphs/common": 1079,
    "graphs/importers": 6267,
    "graphs/importers/onnx": 980,
    "graphs/importers/onnx/operators": 2686,
    "graphs/kernels": 3352,
    "graphs/program": 1981,
    "graphs/rewrites": 2453,
    "planner": 197,
    "planner/cli": 5511,
    "planner/cli/solve": 410,
    "planner/explanations": 2203,
    "planner/exports": 1346,
    "planner/exports/generation": 493,
    "planner/generation": 2223,
    "planner/literature": 1,
    "planner/literature/hybrid_pipeline": 994,
    "planner/literature/layerwise": 867,
    "planner/literature/layouts": 237,
    "planner/literature/placement": 1794,
    "planner/literature/strategies": 695,
    "planner/parallelism": 153,
    "planner/parallelism/closed_form": 3365,
    "planner/parallelism/exports": 371,
    "planner/parallelism/network": 1062,
    "planner/parallelism/stages": 720,
    "planner/planning": 4095,
    "planner/plans": 1854,
    "planner/plans/schemas": 34,
    "planner/problem": 1886,
    "planner/runtime": 429,
    "planner/runtime/benchmark": 1127,
    "planner/runtime/checkpoint": 752,
    "planner/runtime/distributed": 9,
    "planner/runtime/distributed/inference": 587,
    "planner/runtime/distributed/training": 1757,
    "planner/runtime/distributed/transport": 1200,
    "planner/runtime/generation": 674,
    "planner/runtime/hybrid": 1538,
    "planner/runtime/inference": 1223,
    "planner/runtime/stages": 886,
    "planner/runtime/training": 2770,
    "planner/runtime/verification": 815,
    "planner/solvers": 1903,
    "planner/solvers/dp": 1,
    "planner/solvers/dp/chains": 1002,
    "planner/solvers/dp/downsets": 1734,
    "planner/solvers/latency": 1105,
    "planner/solvers/list_scheduling": 473,
    "planner/solvers/local_search": 708,
    "planner/solvers/milp": 1206,
    "planner/solvers/strategies": 950,
    "planner/view": 1504,
    "simulator": 2807,
}
"""The most lines of a room. Who raises a figure says why in the same commit."""

AMBIGUOUS_CLASSES, AMBIGUOUS_FUNCTIONS = 0, 4
TOO_LONG, TOO_BRANCHING, TOO_WIDE = 0, 0, 3
NOT_ENGLISH_IN_SOURCE, NOT_ENGLISH_IN_PAGES = 3, 0
"""Today's figures, which only fall."""


@cache
def project() -> Source:
    return source_of(*LAYERS)


@cache
def everything() -> Source:
    return source_of(*LAYERS, *EVERYBODY)


def test_there_is_something_to_look_at() -> None:
    assert {"graphs.ir", "costmodels.table", "simulator.engine", "planner.problem.evaluate"} <= project().paths.keys()
    assert any(
        found.importer == "planner.problem.evaluate" and found.target == "simulator.simulate"
        for found in project().imports
    )


def test_no_room_imports_one_above_it() -> None:
    assert project().upward(FLOORS) == []


@pytest.mark.parametrize("room", FENCED)
def test_nothing_outside_imports_a_room_that_is_fenced(room: str) -> None:
    wrong = [
        f"{found.importer}:{found.line} imports {found.target}"
        for found in project().imports
        if within(found.target, room) and not any(within(found.importer, user) for user in (room, *FENCED[room]))
    ]
    assert wrong == []


@pytest.mark.parametrize("library", ROOMS)
def test_heavy_libraries_stay_in_their_rooms(library: str) -> None:
    wrong = [
        f"{found.importer}:{found.line} imports {found.target}"
        for found in everything().imports
        if found.when != "never"
        and within(found.target, library)
        and not any(within(found.importer, room) for room in ROOMS[library])
    ]
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Wherever the imports stand, late ones and those of types included."""
    assert everything().circles == []


def test_a_circle_and_an_import_that_runs_upward_would_be_found() -> None:
    source = Source({name: Path(__file__) for name in ("graphs.a", "planner.b", "planner.c")})
    arrows = (("graphs.a", "planner.b"), ("planner.b", "planner.c"), ("planner.c", "planner.b"))
    source.__dict__["imports"] = tuple(Import(one, other, 1, "start") for one, other in arrows)
    assert source.circles == ["planner.b - planner.c"]
    assert source.upward(("graphs", "planner")) == ["graphs.a:1 imports planner.b"]


def test_rooms_do_not_grow_unnoticed() -> None:
    lines = project().lines
    assert {room: n for room, n in lines.items() if n > LINES.get(room, 0)} == {}
    assert LINES.keys() == lines.keys(), "rooms that are gone leave the list"


def test_functions_stay_small() -> None:
    for (name, found), most in zip(sizes(project()).items(), (TOO_LONG, TOO_BRANCHING, TOO_WIDE), strict=True):
        assert len(found) <= most, f"{name}: {found}"


def test_a_name_has_one_meaning() -> None:
    for kind, most in ((ast.ClassDef, AMBIGUOUS_CLASSES), (ast.FunctionDef, AMBIGUOUS_FUNCTIONS)):
        found = project().ambiguous(kind)
        assert len(found) <= most, found


def test_prose_is_english() -> None:
    pages = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
    for paths, most in (
        (project().paths.values(), NOT_ENGLISH_IN_SOURCE),
        ([*pages, *(ROOT / "docs").rglob("*.md")], NOT_ENGLISH_IN_PAGES),
    ):
        found = not_english(paths)
        assert len(found) <= most, found


def test_a_word_that_is_not_english_would_be_found(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text('"""What stands behind."""\n\n# beside `behind`\nx = "so many are told"\n', encoding="utf-8")
    assert list(words_not_english(file)) == [
        (1, "behind"),
        (1, "What"),
        (3, "beside"),
        (4, "are told"),
        (4, "so many"),
    ]


@pytest.mark.parametrize("module", [name for name in LIGHT if name in project().paths])
def test_what_must_start_quickly_does_not_load_torch(module: str) -> None:
    heavy = "{'torch', 'onnx', 'transformers'}"
    code = f"import sys, {module}; print(sorted({heavy} & sys.modules.keys()))"
    done = ran([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def example(source: str) -> list[tuple[str, When]]:
    return [(i.target, i.when) for i in imports_of(ast.parse(source), "planner.example", everything().paths.keys())]


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
