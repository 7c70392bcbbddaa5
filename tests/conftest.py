"""For all tests: hypothesis draws the same examples in every run, no test depends on how fast the machine is, and no
plan, cluster or run that a test lets the planner write breaks its schema."""

import gc
import json
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from graphs.files import write_text
from tests.children import start_with_default_signals
from tests.forkserver import Forked
from tests.long_tests import listed, long_ones
from tests.planner.plans.schemas.validation import objections

EXAMPLES = 50  # of a law, unless a test says otherwise
settings.register_profile("project", deadline=None, derandomize=True, max_examples=EXAMPLES)
settings.load_profile("project")

gc.set_threshold(20_000, 20, 100)  # what is collected and imported stays: a fifth of the collection went into looking

start_with_default_signals()


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the long tests."""
    found = long_ones([item.nodeid for item in items], listed())
    for item in items:
        if item.nodeid in found:
            item.add_marker("long")


@pytest.fixture(scope="session", autouse=True)
def _what_is_written_keeps_its_schema() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("planner.plans.files.write_text", _checked("plan", json.loads))
        patch.setattr("costmodels.cluster.writer.write_text", _checked("cluster", tomllib.loads))
        patch.setattr("planner.plans.runs.write_text", _checked("run", json.loads))
        yield


@pytest.fixture(scope="session", autouse=True)
def _this_machine_is_as_fast_as_usual() -> Iterator[None]:
    """Tests run beside each other: what is said of that before a plan is made has tests of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("planner.cli.plan_.unusual_pace", lambda _: {})
        yield


@pytest.fixture(scope="session", autouse=True)
def _python_modules_start_as_forks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", Forked)
        yield


@pytest.fixture(autouse=True)
def _garbage_is_looked_for_among_new_objects() -> Iterator[None]:
    """Millions of objects of libraries and earlier tests would be looked through again and again."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU: this host's, or a processor that pretends to be one."""
    import torch  # late: many tests do without

    if not torch.cuda.is_available():
        from tests.pretended_gpu import pretend_gpus

        pretend_gpus(monkeypatch)


@pytest.fixture
def afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this test starts is a new interpreter, as with a user."""
    monkeypatch.setattr(subprocess, "Popen", Forked.__base__)


def _checked(name: str, read: Callable[[str], Any]) -> Callable[[str, Path], None]:
    def write(text: str, path: Path) -> None:
        wrong = objections(name, read(text))
        assert not wrong, f"planner/schemas/{name}.schema.json does not allow what {path.name} holds: {wrong[:3]}"
        write_text(text, path)

    return write


@pytest.fixture
def one_thread() -> Iterator[None]:
    """A device of one core, whose kernels are oneDNN's and this package's own; random numbers are always the same."""
    import torch  # late: most tests need none of it

    from costmodels.host.affinity import use_threads

    before = use_threads(1)
    torch.manual_seed(0)
    yield
    use_threads(before)
