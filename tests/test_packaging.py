"""The wheel has every file that the packages read."""

import ast
import re
import runpy
import tomllib
from pathlib import Path

from tests.benchmarks.gpu.wheels import MISSING, pinned
from tests.benchmarks.matrix import requirements

ROOT = Path(__file__).parents[1]
PACKAGES = ("graphs", "costmodels", "simulator", "planner")


def test_every_data_file_is_package_data() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    packed = {
        path
        for package, globs in patterns.items()
        for glob in globs
        for path in (ROOT / package.replace(".", "/")).glob(glob)
    }
    there = {
        path for package in PACKAGES for path in (ROOT / package).rglob("*.*") if path.suffix not in (".py", ".pyc")
    }
    caches = {path for path in there if "__pycache__" in path.parts}
    assert there - caches == packed


def test_a_bill_of_materials_has_what_the_project_needs_and_no_tools_of_developers() -> None:
    sbom = runpy.run_path(str(ROOT / ".ci" / "sbom.py"))
    names = sbom["needed"]("placement-planner", set())
    direct = {re.split(r"[><=;]", line)[0] for line in requirements()}
    assert {"torch", "numpy", "sympy", "llvmlite"} | direct <= names
    assert not names & {"pytest", "mypy", "ruff", "hypothesis"}
    parts = [{"bom-ref": f"{name}==1", "name": name} for name in sorted({*names, "pytest"} - {"placement-planner"})]
    edges = [{"ref": "root", "dependsOn": ["torch==1", "pytest==1"]}, {"ref": "pytest==1"}]
    bill = {"metadata": {"component": {"bom-ref": "root"}}, "components": parts, "dependencies": edges}
    found = sbom["kept"](bill)
    assert {each["name"] for each in found["components"]} == names - {"placement-planner"}
    assert found["dependencies"] == [{"ref": "root", "dependsOn": ["torch==1"]}]


def test_a_version_has_a_page() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = project["version"]
    assert (ROOT / "docs" / "releases" / f"{version.rpartition('.')[0]}.md").exists()
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()


def test_what_is_carried_to_a_gpu_has_the_versions_of_the_tests() -> None:
    assert [line.partition("==")[0] for line in pinned(list(MISSING))] == list(MISSING)


COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def hidden(function: ast.AST, module: ast.Module) -> set[str]:
    """Return names of a module that a function reads, and that are variables of its comprehensions elsewhere."""
    known = {each.name for each in module.body if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    known |= {a.asname or a.name for each in module.body if isinstance(each, ast.ImportFrom) for a in each.names}
    inside: dict[str, set[ast.AST]] = {}
    for each in ast.walk(function):
        if isinstance(each, COMPREHENSIONS):
            for name in {n.id for part in each.generators for n in ast.walk(part.target) if isinstance(n, ast.Name)}:
                inside.setdefault(name, set()).update(ast.walk(each))
    names = [each for each in ast.walk(function) if isinstance(each, ast.Name)]
    stored = {each.id for each in names if isinstance(each.ctx, ast.Store) and each not in inside.get(each.id, ())}
    read = {each.id for each in names if each.id in inside and each not in inside[each.id]}
    return (read & known) - stored


def test_no_comprehension_hides_a_function_that_is_called_beside_it() -> None:
    """Python 3.12.0 and 3.12.1 take the function's name for the variable: pages could not be drawn with them."""
    found = [
        f"{path.relative_to(ROOT)}:{each.lineno} {name}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for module in [ast.parse(path.read_text(encoding="utf-8"))]
        for each in ast.walk(module)
        if isinstance(each, ast.FunctionDef)
        for name in hidden(each, module)
    ]
    assert found == []
    example = ast.parse("def f(): ...\ndef g(x):\n    return [f(y) for y in x], {f for f in x}")
    assert hidden(example.body[1], example) == {"f"}
