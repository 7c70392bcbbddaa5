"""Counts of campaigns add up on the page, each once, and a campaign goes on after the seeds that were tried."""

import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.attacks import campaign
from tests.attacks.campaign import EACH, KINDS, PATIENCE_S, WANTED, Corpus, attacked, lacking, targets
from tests.attacks.ledger import MARK, Row, merged, read_page, write_page

NOW = version("placement-planner")


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "attacks.md"
    path.write_text(f"# Attacks\n\n{MARK}", encoding="utf-8")
    return path


def found(tried: int, *seeds: int) -> dict[str, object]:
    return {"tried": tried, "faults": [{"seed": seed, "said": "KeyError", "input": "{}"} for seed in seeds]}


def test_counts_of_two_folders_add_up_once(page: Path, tmp_path: Path) -> None:
    one, other = (Corpus.of(tmp_path / name) for name in ("one", "other"))
    one.keep("readers", "plan", found(1500, 7, 9))
    one.keep("readers", "training plan", found(3))
    other.keep("readers", "plan", found(500))
    for corpus in (one, other, one):
        write_page(merged(read_page(page), corpus), corpus, page)
    rows = {"readers plan": Row(2000, 2, NOW), "readers training plan": Row(3, 0, NOW)}
    assert read_page(page) == rows
    assert "| readers | plan | 2,000 | 2 |" in page.read_text(encoding="utf-8")
    again = Corpus.of(tmp_path / "one")
    again.keep("readers", "plan", found(10, 1501))
    assert merged(rows, again)["readers plan"] == Row(2010, 3, NOW)
    assert again.broken_through() == [7, 9, 1501]
    assert again.broken_through("readers training plan") == []


def test_a_new_folder_begins_after_the_seeds_that_were_tried(tmp_path: Path) -> None:
    corpus = Corpus.of(tmp_path)
    corpus.start({"readers plan": 2000})
    corpus.keep("readers", "plan", found(10))
    assert corpus.counts["readers plan"] == 2010
    assert merged({"readers plan": Row(2000, 1, "0.1")}, corpus) == {"readers plan": Row(2010, 1, NOW)}
    corpus.start({"readers plan": 9000})
    assert corpus.counts["readers plan"] == 2010


def test_what_is_wanted_is_of_kinds_that_there_are() -> None:
    assert {kind for kinds in WANTED for kind in kinds} == {*KINDS}
    assert targets(["readers"])[0] == ("readers", "plan")
    assert attacked("readers", "device map", 0, 0.0) == {"tried": 0, "faults": []}


def test_those_that_lack_their_share_come_first() -> None:
    names = [name for _, name in targets(["faults"])]
    done = dict.fromkeys(names, WANTED[EACH])
    assert lacking("faults", done) == done
    assert lacking("faults", done | {names[3]: WANTED[EACH] - 1}) == {names[3]: WANTED[EACH] - 1}
    assert lacking("lies", {"train in processes": 599, "run in processes": 199}) == {"run in processes": 199}


def test_a_round_that_dies_is_a_fault_of_the_target_that_it_was_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = campaign.FOUND + '{"tried": 4, "faults": []}'
    (python := tmp_path / "python").write_text(f"#!/bin/sh\necho '{line}'\nkill -ABRT $$\n", encoding="utf-8")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    one, other = campaign._round("readers", Corpus.of(tmp_path / "corpus"), 1.0, time.monotonic() + PATIENCE_S)
    assert one == ("plan", {"tried": 4, "faults": []})
    assert other[0] == "training plan"
    assert "the process ended with -6" in str(other[1])
