"""After every test of the runtime: no thread of a device is left."""

from collections.abc import Iterator

import pytest

from tests.planner.runtime.small import device_threads


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert device_threads() == []
