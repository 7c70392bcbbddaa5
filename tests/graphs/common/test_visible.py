"""What people see of any name, in lines and in documents."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs.common.visible import visible, visible_json

PLAIN = "conv1.weight → 3×3 µs · é 変 “x” 😀"
SHOWN = {
    "\x1b[31m": r"\u001b[31m",
    "a\0b": r"a\u0000b",
    "a\nb\tc": r"a\nb\tc",
    "\x9b2J\x7f": r"\u009b2J\u007f",
    "abc\u202etxt": r"abc\u202etxt",
    "\u200b\ufeff\u2028\xa0": r"\u200b\ufeff\u2028\u00a0",
    "\ud800": r"\ud800",
    "\uffff\U000e0041": r"\uffff\udb40\udc41",
}


@pytest.mark.attack("file")
@pytest.mark.parametrize("text", SHOWN, ids=ascii)
def test_what_cannot_be_seen_is_written_out(text: str) -> None:
    assert visible(text) == SHOWN[text]
    assert json.loads(visible_json([text, {text: 1}])) == [SHOWN[text], {SHOWN[text]: 1}]


def test_what_can_be_seen_stays() -> None:
    assert visible(PLAIN) == PLAIN
    assert visible("a\nb", kept="\n") == "a\nb"
    assert visible_json([PLAIN, 'a\\u0000 "b" \\', 1.5, None]) == json.dumps(
        [PLAIN, 'a\\u0000 "b" \\', 1.5, None], separators=(",", ":")
    )


@given(st.text())
def test_all_is_visible_and_documents_say_the_same(text: str) -> None:
    assert visible(text).isprintable()
    assert json.loads(visible_json(text)) == visible(text)


@given(st.text())
def test_a_document_in_json_stays_what_it_was(text: str) -> None:
    document = json.dumps({text: [text, 1]}, indent=1, ensure_ascii=False)
    assert json.loads(visible(document, kept="\n")) == {text: [text, 1]}
