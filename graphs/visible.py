"""Names as people see them: they may have any characters in them, and terminals and pictures obey some."""

import json
import re

NOT_PLAIN = re.compile(r"[^ -~]")
ESCAPE = re.compile(r"\\ud[89ab]..\\ud[c-f]..|\\u....|\\.")  # of JSON: two halves of a letter, or one character


def visible(text: str, kept: str = "") -> str:
    r"""The text with what is no visible character written out, as JSON writes it: ``\u001b`` for ESC.

    So are characters that turn the direction of writing, halves of letters, and spaces that look like others or like
    nothing.

    Args:
        text: a name, or a line with names in it.
        kept: characters that stay, such as the end of a line.
    """

    def written(found: re.Match[str]) -> str:
        letter = found[0]
        return letter if letter.isprintable() or letter in kept else json.dumps(letter)[1:-1]

    return text if text.isprintable() else NOT_PLAIN.sub(written, text)


def visible_json(document: object) -> str:
    """A document in JSON, in ASCII, whose reader gets its texts as `visible` shows them."""

    def written(found: re.Match[str]) -> str:
        letter: str = json.loads(f'"{found[0]}"')
        return found[0] if letter.isprintable() else found[0].replace("\\", "\\\\")

    return ESCAPE.sub(written, json.dumps(document, separators=(",", ":"), ensure_ascii=True, allow_nan=False))
