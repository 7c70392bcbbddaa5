"""Small HTML tables and pictures for notebooks; their styles do not affect the rest of the page."""

from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any

from graphs.common.visible import xml_text

VIEWS: dict[str, Callable[[Any], str]] = {}
"""Functions that show records in a notebook, by the name of the class. Packages register them, so that no record
imports its view."""


def repr_html(record: object) -> str | None:
    """The view of a record in a notebook; None without a registered view, for which a notebook shows the ``repr``."""
    view = VIEWS.get(type(record).__name__)
    return None if view is None else view(record)


CELL = "padding: 3px 12px 3px 0; border-bottom: 1px solid #8884; text-align: {}"
TABLE = "border-collapse: collapse; margin: 8px 0; font-variant-numeric: tabular-nums"
CAPTION = "caption-side: top; text-align: left; font-weight: 600; padding: 4px 0"


def html_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An HTML table with escaped texts; columns of numbers stand on the right."""

    def cells(tag: str, texts: Sequence[str]) -> str:
        sides = ["right" if all(row[i][:1].isdigit() for row in rows if row[i]) else "left" for i in range(len(texts))]
        pairs = zip(texts, sides, strict=True)
        return "".join(f'<{tag} style="{CELL.format(side)}">{xml_text(text)}</{tag}>' for text, side in pairs)

    head = f"<thead><tr>{cells('th', heads)}</tr></thead>" if heads else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    caption = f'<caption style="{CAPTION}">{xml_text(title)}</caption>'
    return f'<table style="{TABLE}">{caption}{head}<tbody>{body}</tbody></table>'


def html_file(page: str, name: str, words: str) -> str:
    """A link that saves a page, which the notebook holds: notebooks do not open pages inside of them."""
    data = b64encode(page.encode()).decode()
    return f'<a download="{xml_text(name)}" href="data:text/html;base64,{data}">{xml_text(words)}</a>'


def html_picture(svg: str, title: str) -> str:
    """An SVG as an inline image, so that its styles do not affect the page."""
    data = b64encode(svg.encode()).decode()
    return f'<img alt="{xml_text(title)}" style="max-width: 100%" src="data:image/svg+xml;base64,{data}">'
