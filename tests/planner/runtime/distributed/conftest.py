"""What tests of processes share."""

import tempfile
from pathlib import Path

import pytest

from tests.planner.runtime.distributed.leftovers import OURS


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes and folders that begin here are known as this test's."""
    monkeypatch.setenv(OURS, str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # for processes
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
