"""The pictures are what is drawn now."""

from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.docs.pictures import PICTURES


@pytest.mark.slow
@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_a_picture_is_drawn_as_it_stands(path: Path) -> None:
    assert PICTURES[path]() == path.read_text(encoding="utf-8"), "`make pages` draws it anew"


def test_every_picture_is_drawn_by_a_function() -> None:
    assert sorted((ROOT / "docs/pictures").iterdir()) == sorted(PICTURES)
