"""Escapes invisible characters in names, some of which terminals and pictures would interpret."""

import json
import re
from html import escape

NOT_PLAIN = re.compile(r"[^ -~]")
ESCAPE = re.compile(r"\\ud[89ab]..\\ud[c-f]..|\\u....|\\.")  # in JSON: a surrogate pair, or one character


def visible(text: str, kept: str = "") -> str:
    r"""The text with every character that is not visible escaped as in JSON: ``\u001b`` for ESC.

    Marks of the writing direction, lone surrogates and unusual spaces are escaped, too. Characters in ``kept`` stay.
    """

    def written(match: re.Match[str]) -> str:
        letter = match[0]
        return letter if letter.isprintable() or letter in kept else json.dumps(letter)[1:-1]

    return text if text.isprintable() else NOT_PLAIN.sub(written, text)


def xml_text(text: str) -> str:
    """The text as `visible` writes it, escaped for HTML and XML, which allow no control characters."""
    return escape(visible(text))


def visible_json(document: object) -> str:
    """A document as JSON in ASCII, with its texts as `visible` writes them."""

    def written(match: re.Match[str]) -> str:
        letter: str = json.loads(f'"{match[0]}"')
        return match[0] if letter.isprintable() else match[0].replace("\\", "\\\\")

    return ESCAPE.sub(written, json.dumps(document, separators=(",", ":"), ensure_ascii=True, allow_nan=False))
