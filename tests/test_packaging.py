"""The wheel has every file that the packages read."""

import tomllib
from pathlib import Path

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
