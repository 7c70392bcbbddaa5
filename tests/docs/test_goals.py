"""Every formula of the pages on goals is what the planner computes."""

from pathlib import Path

import pytest

from tests.docs.pages import PAGES, check_page, name_of


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name == "goals"], ids=name_of)
def test_a_page_runs_and_tells_the_truth(page: Path, environment: dict[str, str], tmp_path: Path) -> None:
    check_page(page, environment, tmp_path)
