"""Decisions are numbered without gaps, have all of their parts, and are listed once."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, name_of

FOLDER = ROOT / "docs/decisions"
RECORDS = sorted(FOLDER.glob("[0-9]*.md"))
PARTS = ["Context", "Decision", "Alternatives", "Figures", "Code"]
HEAD = r"# {number} .+\n\n- Status: (accepted|replaced by \d{{4}}).*\n- Date: \d{{4}}-\d\d-\d\d.*\n\n"
MOST_LINES = 30


def test_decisions_are_numbered_without_gaps() -> None:
    assert [int(path.name[:4]) for path in RECORDS] == list(range(1, len(RECORDS) + 1))


@pytest.mark.parametrize("path", RECORDS, ids=name_of)
def test_a_decision_has_all_of_its_parts_and_is_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.match(HEAD.format(number=path.name[:4]), text)
    assert re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE) == PARTS
    assert len(text.splitlines()) <= MOST_LINES


def test_every_decision_is_listed_once_in_order() -> None:
    listed = re.findall(r"^- \[(\d{4})\]\((.+?)\): ", (FOLDER / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == [(path.name[:4], path.name) for path in RECORDS]


@pytest.mark.parametrize("path", [*RECORDS, ROOT / "ARCHITECTURE.md"], ids=name_of)
def test_every_path_that_is_named_exists(path: Path) -> None:
    named = re.findall(r"`((?:graphs|costmodels|simulator|planner|tests)/[\w/.]+)`", path.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / name).exists()] == []
