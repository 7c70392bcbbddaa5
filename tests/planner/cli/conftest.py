"""Every command is tried in a folder of its own, with a cache of its own, and measures shortly."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.cli import main
from tests.efforts import measure_shortly
from tests.planner.cli.given import PAPER, Refused
from tests.planner.cli.started import Started


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLANNER_CACHE", str(tmp_path / "cache"))
    measure_shortly(monkeypatch)


@pytest.fixture
def _paper() -> None:
    Path("paper.toml").write_text(PAPER, encoding="utf-8")


@pytest.fixture
def started() -> Iterator[Started]:
    with Started() as ranks:
        yield ranks


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """The one line on stderr of a command that is refused; it ends with status 2 and leaves everything as it was."""

    def files() -> dict[Path, bytes]:
        found = (path for path in Path().rglob("*") if path.is_file() and path.suffix != ".pyc")  # Python writes these
        return {path: path.read_bytes() for path in found}

    def line_of(command: list[str]) -> str:
        capsys.readouterr()  # what was said before
        before = files()
        assert main(command) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert files() == before
        (line,) = [line for line in captured.err.splitlines() if not line.endswith("…")]  # those are progress
        return line

    return line_of
