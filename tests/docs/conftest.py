"""What the tests of pages share."""

import os
from collections.abc import Iterator

import pytest

from tests.docs.pages import SLOWER
from tests.efforts import measure_shortly


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One cache of measurements for all pages, whichever worker runs them."""
    base = tmp_path_factory.getbasetemp()
    cache = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "planner-cache"
    cache.mkdir(exist_ok=True)
    return {"PLANNER_CACHE": str(cache)}


@pytest.fixture(scope="module", autouse=True)
def _short_measurements() -> Iterator[None]:
    """What pages show of measurements is compared without its numbers; the clock stops no search on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        measure_shortly(patch)
        patch.setattr("planner.problem.deadline.BRAKE", SLOWER)
        yield
