"""What long.txt leaves to `make long`."""

import ast
from pathlib import Path

from tests.long_tests import listed, long_ones

ROOT = Path(__file__).parents[1]


def test_the_first_row_of_a_long_test_always_runs() -> None:
    collected = ["a.py::one[x]", "a.py::one[y]", "a.py::two", "b.py::one[x]", "b.py::one[y[0]]", "a.py::three"]
    assert long_ones(collected, {"a.py::one", "a.py::two"}) == {"a.py::one[y]", "a.py::two"}
    assert long_ones(collected[1:2], {"a.py::one"}) == set()


def test_the_list_names_tests_that_are_there() -> None:
    missing = []
    for name in listed():
        path, *inside = name.split("::")
        file = ROOT / path
        nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8")))) if file.exists() else []
        names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        if not names >= set(inside):
            missing.append(name)
    assert not missing
    assert listed()
