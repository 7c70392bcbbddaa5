"""What is read from a drawing, and whether there is a font to paint one."""

from xml.etree import ElementTree

import pytest
import resvg_py

from planner.view.picture import LETTER

SVG = "{http://www.w3.org/2000/svg}"
HAS_FONT = resvg_py.svg_to_bytes(LETTER.format("A")) != resvg_py.svg_to_bytes(LETTER.format(""))
needs_font = pytest.mark.skipif(not HAS_FONT, reason="no font on this machine")


def texts(svg: str) -> list[str]:
    """All that is written in it."""
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
