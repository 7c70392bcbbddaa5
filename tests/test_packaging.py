"""The wheel has every file that the packages read."""

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
