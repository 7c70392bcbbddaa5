"""What is read from a drawing, and whether there is a font to paint one."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

SVG = "{http://www.w3.org/2000/svg}"
FONTS = ("DejaVuSans.ttf", "LiberationSans-Regular.ttf", "NotoSans-Regular.ttf")
HAS_FONT = any(path.name in FONTS for path in Path("/usr/share/fonts").rglob("*.ttf"))
needs_font = pytest.mark.skipif(not HAS_FONT, reason="no font on this machine")


def texts(svg: str) -> list[str]:
    """All that is written in it."""
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
