"""A few odd command lines for commands that are quick; `tests.benchmarks.attack --hours N` has the rest."""

from pathlib import Path

import pytest

from tests.attacks import options
from tests.attacks.options import LIGHT, attacked, fault, folder_with_files

SLOW = {"explain"}  # it plans again


@pytest.mark.attack("first-try")
@pytest.mark.parametrize("command", [name for name in LIGHT if name not in SLOW])
def test_odd_options_are_answered(command: str, tmp_path: Path) -> None:
    folder_with_files(tmp_path)
    found = [(line, said) for said, line in (attacked(command, seed, tmp_path) for seed in range(12)) if said]
    assert found == []


def test_what_breaks_through_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plan.json").write_text("{}")

    def overwrites(_: list[str]) -> int:
        Path("plan.json").write_text("[]")
        return 0

    def fails(_: list[str]) -> int:
        raise KeyError("x")

    monkeypatch.setattr(options, "main", overwrites)
    assert fault(["show"], tmp_path) == "has written over ('plan.json',)"
    monkeypatch.setattr(options, "main", fails)
    assert fault(["show"], tmp_path) == "ends with \"KeyError: 'x'\""
    monkeypatch.setattr(options, "main", lambda _: 2)
    assert fault(["show"], tmp_path) == "says nothing of what is wrong"
    monkeypatch.setattr(options, "main", lambda _: 7)
    assert fault(["show"], tmp_path) == "ends with 7"
