"""What ``planner --version`` prints: the versions that measurements and answers depend on."""

import platform
from importlib.metadata import version as version_of


def version() -> str:
    """One line; nothing is imported for it. What a device is measured as, is its ``profile`` in cluster.toml."""
    program = f"placement-planner {version_of('placement-planner')}"
    return f"{program}, Python {platform.python_version()}, torch {version_of('torch')}"
