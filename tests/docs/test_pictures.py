"""The pictures are what is drawn now."""

from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.docs.pictures import PICTURES
from tests.docs.rooms import PACKAGES, Package


@pytest.mark.slow
@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_a_picture_is_drawn_as_it_stands(path: Path) -> None:
    assert PICTURES[path]() == path.read_text(encoding="utf-8"), "`make pages` draws it anew"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_every_folder_is_a_room_of_the_picture(package: Package) -> None:
    drawn = {room.name for rooms in package.columns for room in rooms}
    assert {file.parent.name for file in (ROOT / package.name).glob("*/__init__.py")} <= drawn


def test_every_picture_is_drawn_by_a_function() -> None:
    assert sorted((ROOT / "docs/pictures").iterdir()) == sorted(PICTURES)
