"""What tests of processes share."""

import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders that begin here are known as this test's."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # for processes
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
