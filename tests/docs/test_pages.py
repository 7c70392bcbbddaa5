"""Every command and snippet of the README and of docs/ runs, and prints what stands below it."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import APART, PAGES, ROOT, blocks, check_page, name_of

NOT_RUN = {
    "README.md": [
        "it installs this project, which the tests run in",
        "the demo measures for a minute, and the tests are what runs this page",
    ],
    "docs/api.md": ["every rank of torchrun runs it"],
    "docs/gpu.md": ["it needs a GPU", "it downloads packages"],
    "docs/goals/training.md": ["it starts a process for each device", "every rank of torchrun runs it"],
}
"""Blocks that are shown and not run, and why; every one more is a decision."""


REFERENCE = [page for page in PAGES if page.parent.name not in APART and blocks(page.read_text(encoding="utf-8"))]


@pytest.mark.slow
@pytest.mark.parametrize("page", REFERENCE, ids=name_of)
def test_a_page_runs_and_tells_the_truth(page: Path, environment: dict[str, str], tmp_path: Path) -> None:
    check_page(page, environment, tmp_path)


def test_what_does_not_run_is_known() -> None:
    found = {str(page.relative_to(ROOT)): [b.not_run for b in blocks(page.read_text()) if b.not_run] for page in PAGES}
    assert {page: reasons for page, reasons in found.items() if reasons} == NOT_RUN


def test_every_fence_is_of_a_known_kind() -> None:
    known = {"sh", "python", "text", "toml", "json", "html", ""}
    assert {block.language for page in PAGES for block in blocks(page.read_text())} <= known
    assert all(len(re.findall(r"^```", page.read_text(), re.MULTILINE)) % 2 == 0 for page in PAGES)
