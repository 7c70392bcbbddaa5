"""What comes through the door for JSON and TOML, and what is told in one line instead."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from graphs.common.documents import DEEPEST, parse_json, read_json, read_json_value, read_toml
from graphs.common.errors import InputError

DEEP = 100_000
TOO_DEEP = f"is not JSON (lists or objects are nested deeper than {DEEPEST}); write it again"
BEYOND = "is not JSON (a number in it is beyond 1e300); write it again"
NUMBER = "is no number of JSON: line 1 column"
FAR = "9" * 5000

REFUSED_JSON = {
    "deep lists": (
        b'{"a": ' + b"[" * DEEP,
        f"is not JSON (lists or objects are nested deeper than {DEEPEST}); write it again",
    ),
    "deep objects": (
        b'{"a": ' * DEEP,
        f"is not JSON (lists or objects are nested deeper than {DEEPEST}); write it again",
    ),
    "closed": (b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}", TOO_DEEP),
    "digits": (f'{{"a": {FAR}}}'.encode(), BEYOND),
    "large": (b'{"a": [1, 1' + b"0" * 301 + b"]}", BEYOND),
    "1e999": (b'{"a": 1e999}', BEYOND),
    "NaN": (b'{"a": NaN}', f"is not JSON (NaN {NUMBER} 7 (char 6)); write it again"),
    "Infinity": (
        b"[-Infinity]",
        f"is not JSON (-Infinity {NUMBER} 2 (char 1)); write it again",
    ),
    "twice": (
        b'{"a": {"b": 1, "c": 2, "b": 3}}',
        "is not JSON (the key 'b' stands twice in one object); write it again",
    ),
    "latin-1": ('{"ä": 1}'.encode("latin-1"), "is no text in UTF-8 (byte 2 is 0xe4); save it as UTF-8"),
    "half a letter": (b'{"a\\ud800": 1}', r"is not JSON (a text in it has half a letter (\ud800)); write it again"),
    "nothing": (b"", "is not JSON (Expecting value: line 1 column 1 (char 0)); write it again"),
}


@pytest.mark.attack("file")
@pytest.mark.parametrize("name", REFUSED_JSON)
def test_json_that_is_refused(name: str, tmp_path: Path) -> None:
    content, said = REFUSED_JSON[name]
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(InputError) as error:
        read_json(tmp_path / "x.json", "plan")
    assert str(error.value).startswith(f"the plan '{tmp_path}/x.json' ")
    assert str(error.value).endswith(said)


REFUSED_TOML = {
    "deep": (b"a = " + b"[" * DEEP, f"lists or objects are nested deeper than {DEEPEST}; mend that line"),
    "closed": (b"a = " + b"[" * 200 + b"]" * 200, f"lists or objects are nested deeper than {DEEPEST}; mend that line"),
    "digits": (f"a = {FAR}".encode(), "a number in it is beyond 1e300; mend that line"),
    "large": (b"a = 1" + b"0" * 301 + b"", "a number in it is beyond 1e300; mend that line"),
    "twice": (b"a = 1\na = 2", "Cannot overwrite a value (at end of document); mend that line"),
}


@pytest.mark.attack("file")
@pytest.mark.parametrize("name", REFUSED_TOML)
def test_toml_that_is_refused(name: str, tmp_path: Path) -> None:
    content, said = REFUSED_TOML[name]
    (tmp_path / "x.toml").write_bytes(content)
    with pytest.raises(InputError) as error:
        read_toml(tmp_path / "x.toml", "cluster")
    assert str(error.value).startswith(f"the cluster '{tmp_path}/x.toml' is no")
    assert str(error.value).endswith(said)


@pytest.mark.attack("file")
@pytest.mark.parametrize("read", [read_json, read_toml])
def test_what_is_no_file(read: Callable[[Path, str], object], tmp_path: Path) -> None:
    """None of these is waited for."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    reasons = {
        tmp_path: "it is a folder",
        tmp_path / "pipe": "it is a pipe that nobody writes to",
        Path("/dev/zero"): "it is a device",
        tmp_path / "none": "No such file or directory",
        tmp_path / "loop": "Too many levels of symbolic links",
        tmp_path / "a\0b": "embedded null byte",
    }
    for path, why in reasons.items():
        with pytest.raises(InputError) as error:
            read(path, "thing")
        assert str(error.value) == f"cannot read the thing '{path}': {why}; check the path"


def test_what_a_shell_hands_over_is_read() -> None:
    here, there = os.pipe()
    os.write(there, b'{"a": 1}')
    os.close(there)
    assert read_json(Path(f"/dev/fd/{here}"), "plan") == {"a": 1}
    os.close(here)


def test_a_byte_order_mark_is_no_letter(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbf" + '{"ä": 1}'.encode())
    assert read_json(tmp_path / "x", "plan") == {"ä": 1}
    (tmp_path / "x").write_bytes('{"ä": 1}'.encode("utf-16"))
    assert read_json(tmp_path / "x", "plan") == {"ä": 1}
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbfa = 1\r\n")
    assert read_toml(tmp_path / "x", "cluster") == {"a": 1}


def test_all_that_json_can_say(tmp_path: Path) -> None:
    text = f'[1, -1.5, 1e300, "\\ud83d\\ude00", {2**63 - 1}, null, true, {"[" * 98}{"]" * 98}]'
    (tmp_path / "x").write_text(text)
    assert read_json_value(tmp_path / "x", "map")[:5] == [1, -1.5, 1e300, "😀", 2**63 - 1]
    assert parse_json("[Infinity, NaN]", finite=False)[0] == float("inf")
