"""What the tests of pages share."""

import pytest


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One cache of measurements for all pages that a worker runs."""
    return {"PLANNER_CACHE": str(tmp_path_factory.mktemp("cache"))}
