"""What the tests of pages share."""

import os

import pytest


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One cache of measurements for all pages, whichever worker runs them."""
    base = tmp_path_factory.getbasetemp()
    cache = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "planner-cache"
    cache.mkdir(exist_ok=True)
    return {"PLANNER_CACHE": str(cache)}
