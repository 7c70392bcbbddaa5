"""Small HTML tables and pictures for notebooks; their styles do not affect the rest of the page."""

from base64 import b64encode
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from graphs.visible import visible

VIEWS: dict[str, Callable[[Any], str]] = {}
"""Functions that show records in a notebook, by the name of the class. Packages register them, so that no record
imports its view."""


def repr_html(record: object) -> str | None:
    """The view of a record in a notebook; None without a registered view, for which a notebook shows the ``repr``."""
    view = VIEWS.get(type(record).__name__)
    return None if view is None else view(record)


def html_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An HTML table with escaped texts."""
    head = f"<thead><tr>{''.join(f'<th>{_text(text)}</th>' for text in heads)}</tr></thead>" if heads else ""
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><caption>{_text(title)}</caption>{head}<tbody>{body}</tbody></table>"


def html_picture(svg: str, title: str) -> str:
    """An SVG as an inline image, so that its styles do not affect the page."""
    data = b64encode(svg.encode()).decode()
    return f'<img alt="{_text(title)}" style="max-width: 100%" src="data:image/svg+xml;base64,{data}">'


def _text(text: str) -> str:
    """A text, escaped for HTML."""
    return escape(visible(text))
