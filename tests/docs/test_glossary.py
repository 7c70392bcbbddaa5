"""The glossary names every public name and every option, and nothing uses a word that was given up."""

import argparse
import re
from collections import Counter
from collections.abc import Iterator

import pytest

import planner
from planner.cli import COMMANDS
from planner.cli.parser import Parser, command_module, declare
from tests.docs.pages import PAGES, ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"
GIVEN_UP = (
    "handover",
    "hand-over",
    "ideals",
    "Recipe",
    "culprit",
    "vigil",
    "crew",
    "in company",
    "unsplit",
    "no-trial",
)
"""Words that the field does not have, or uses for something else."""


def rows() -> list[list[str]]:
    """Term, meaning, unit, source and names of each row."""
    lines = [line for line in GLOSSARY.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] != "term"]


def options() -> Iterator[str]:
    """Every long option of every command, but for ``--help``."""
    for command in COMMANDS:
        parser: argparse.ArgumentParser = Parser(prog=command)
        declare(parser, command_module(command))
        for action in parser._actions:
            if action.help != argparse.SUPPRESS:
                yield from (option for option in action.option_strings if option.startswith("--"))


def test_a_term_stands_once_and_has_a_meaning() -> None:
    assert all(len(row) == 5 and row[0] and row[1] for row in rows())
    assert [term for term, count in Counter(row[0] for row in rows()).items() if count > 1] == []


def test_every_public_name_and_option_goes_by_one_term() -> None:
    named = [name for row in rows() for name in re.findall(r"`([^`]+)`", row[4])]
    assert sorted(named) == sorted({*planner.__all__, *options()} - {"--help"})


@pytest.mark.parametrize("word", GIVEN_UP)
def test_pages_and_code_do_not_use_words_that_were_given_up(word: str) -> None:
    sources = [p for room in ("graphs", "costmodels", "simulator", "planner") for p in (ROOT / room).rglob("*.py")]
    pattern = re.compile(rf"\b{re.escape(word)}\b")
    pages = {page for page in (*PAGES, GLOSSARY) if page.parent.name != "releases"} - {ROOT / "CHANGELOG.md"}
    using = [p for p in {*sources, *pages} if pattern.search(p.read_text(encoding="utf-8"))]
    assert [str(path.relative_to(ROOT)) for path in sorted(using)] == []
