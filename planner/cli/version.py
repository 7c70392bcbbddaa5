"""The output of ``planner --version``: the versions that measurements and answers depend on."""

import platform
from importlib.metadata import version as version_of


def version() -> str:
    """One line, made without importing the libraries."""
    program = f"placement-planner {version_of('placement-planner')}"
    return f"{program}, Python {platform.python_version()}, torch {version_of('torch')}"
