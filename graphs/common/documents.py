"""Reads JSON and TOML files that a user supplies: a file, or a pipe with a writer, such as ``<(command)``.

Folders, sockets and devices are refused at once, since they have no content or no end.

A document that passes has Unicode text, no duplicate key, no number beyond `LARGEST`, no number that is not finite (in
JSON), and no nesting deeper than `DEEPEST`.
"""

import codecs
import json
import os
import re
import select
import stat
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

from graphs.common.errors import InputError, first_line

PIPE_TIMEOUT_S = 60.0  # between two pieces from a pipe
PIECE_BYTES = 1 << 20

REFUSED = {stat.S_ISDIR: "it is a folder", stat.S_ISSOCK: "it is a socket", stat.S_ISBLK: "it is a device"}


def content_of(path: Path) -> bytes:
    """All bytes of an input.

    Raises:
        OSError: if the input is no file or pipe, or cannot be read; ``strerror`` says why.
    """
    _check_kind(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # otherwise a pipe without a writer would block forever
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.set_blocking(descriptor, True)
            return file.readall()
        return b"".join(iter(lambda: _piece(descriptor, path), b"")) or _nothing(path)


def _check_kind(path: Path) -> None:
    try:
        mode = os.stat(path).st_mode
    except ValueError as error:  # a NUL in the name
        raise OSError(0, str(error), str(path)) from error
    for is_kind, reason in REFUSED.items():
        if is_kind(mode):
            raise OSError(0, reason, str(path))
    if stat.S_ISCHR(mode) and not _is_terminal(path):
        raise OSError(0, "it is a device", str(path))


def _piece(descriptor: int, path: Path) -> bytes:
    """The next bytes of a pipe; empty at its end."""
    while True:
        try:
            return os.read(descriptor, PIECE_BYTES)
        except BlockingIOError:
            if not select.select([descriptor], [], [], PIPE_TIMEOUT_S)[0]:
                raise OSError(0, f"nothing came out of the pipe for {PIPE_TIMEOUT_S:g} s", str(path)) from None


def _nothing(path: Path) -> bytes:
    raise OSError(0, "it is a pipe that nobody writes to", str(path))


def _is_terminal(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        return os.isatty(descriptor)
    finally:
        os.close(descriptor)


DEEPEST = 100  # lists and objects within each other
DAMAGED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""The exceptions that a malformed document causes in code that builds a record from it."""

MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
"""Byte order marks, which editors on Windows write, with the encoding that each marks."""
LARGEST = 10**300  # finite as a float

HALF_LETTER = re.compile(r"\\u[dD][89abAB]")


def read_json(path: Path, what: str, finite: bool = True) -> dict[str, Any]:
    """A JSON file that holds one object.

    Messages call it ``what``. If ``finite``, ``NaN`` and ``Infinity``, which are no JSON, are refused.

    Raises:
        InputError: if the file is missing or holds something else.
    """
    document = read_json_value(path, what, finite)
    if not isinstance(document, dict):
        raise InputError(f"the {what} '{path}' holds a {type(document).__name__}, not an object; write it again")
    return document


def read_json_value(path: Path, what: str, finite: bool = True, mend: str = "write it again") -> Any:
    """A JSON file that holds any value; ``mend`` is the advice for a file that is no JSON. See `read_json`.

    Raises:
        InputError: if the file is missing or no JSON.
    """
    text = _read_text(path, what)
    try:
        return parse_json(text, finite)
    except ValueError as error:
        raise InputError(f"the {what} '{path}' is not JSON ({first_line(error)}); {mend}") from error


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """A TOML file.

    Raises:
        InputError: if the file is missing or no TOML.
    """
    text = _read_text(path, what)
    try:
        document = _parsed(text, tomllib.loads, tomllib.TOMLDecodeError)
        _check(document, finite=False)
    except ValueError as error:
        raise InputError(f"the {what} '{path}' is not TOML: {first_line(error)}; mend that line") from error
    return dict(document)


def check_version(document: Mapping[str, Any], what: str, version: int, way_out: str) -> None:
    """Check that a document has the version that is read; ``way_out`` is the advice for any other one.

    Raises:
        InputError: if it has another version, or none.
    """
    found: Any = document.get("version")
    if isinstance(found, bool) or found != version:
        raise InputError(f"the {what} has the version {found!r}, this planner reads {version}; {way_out}")


def parse_json(text: str, finite: bool = True) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: if it is no JSON, or breaks a rule of this module.
    """

    def refuse(word: str) -> NoReturn:
        raise json.JSONDecodeError(f"{word} is no number of JSON", text, max(0, text.find(word)))

    hooks: dict[str, Any] = {"object_pairs_hook": _object} | ({"parse_constant": refuse} if finite else {})
    document = _parsed(text, lambda content: json.loads(content, **hooks), json.JSONDecodeError, _TwiceError)
    _check(document, finite)
    if HALF_LETTER.search(text):
        _check_letters(document)
    return document


def _read_text(path: Path, what: str) -> str:
    try:
        content = content_of(path)
        return content.decode(next((name for mark, name in MARKS.items() if content.startswith(mark)), "utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the {what} '{path}': {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"the {what} '{path}' is no text in UTF-8 (byte {error.start} is 0x{error.object[error.start]:02x}); "
            "save it as UTF-8"
        ) from error


class _TwiceError(ValueError):
    """A key stands twice in one object."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise _TwiceError(f"the key '{twice}' stands twice in one object")
    return document


def _parsed(text: str, parse: Callable[[str], Any], *known: type[ValueError]) -> Any:
    """The result of a parser; the parser's own errors are passed on."""
    try:
        return parse(text)
    except known:
        raise
    except RecursionError:
        raise _too_deep() from None
    except ValueError:  # Python does not read numbers of thousands of digits
        raise ValueError("a number in it is beyond 1e300") from None


def _too_deep() -> ValueError:
    return ValueError(f"lists or objects are nested deeper than {DEEPEST}")


def _check(document: Any, finite: bool) -> None:
    """Check depth and numbers level by level, which no depth can overflow as recursion would."""
    level: list[Any] = [[document]]
    for _ in range(DEEPEST + 1):
        deeper: list[Any] = []
        for container in level:
            for value in container.values() if type(container) is dict else container:
                kind = type(value)
                if kind is dict or kind is list:
                    deeper.append(value)
                elif (kind is int and not -LARGEST <= value <= LARGEST) or (
                    finite and kind is float and not isfinite(value)
                ):
                    raise ValueError("a number in it is beyond 1e300")
        if not deeper:
            return
        level = deeper
    raise _too_deep()


def _check_letters(document: Any) -> None:
    """Refuse lone surrogates (``\\ud800`` alone), which no file can hold."""
    try:
        json.dumps(document, ensure_ascii=False, check_circular=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise ValueError(f"a text in it has half a letter ({half.encode('unicode-escape').decode()})") from None
