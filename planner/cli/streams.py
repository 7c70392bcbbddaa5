"""stdout and stderr: closed, full or left by their reader as a shell may hand them over, and who prints where."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import TextIO

from graphs.errors import InputError
from graphs.visible import visible

STDOUT, STDERR = 1, 2
_documents: list[TextIO] = []
"""What stdout was before `documents_alone`, the latest last."""


def open_what_is_closed() -> None:
    """A command may be started without stdout or stderr (``>&-``): what is printed there goes nowhere."""
    for number, name in ((STDOUT, "stdout"), (STDERR, "stderr")):
        if getattr(sys, name) is None:
            _lead_nowhere(number)  # else the next file that is opened would be in its place
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - open until the end


@contextmanager
def documents_alone(asked: bool) -> Iterator[None]:
    """While documents are asked for, stdout has nothing else: what others print there goes to stderr.

    Others are a user's code, which is loaded and run, and libraries in C, which know nothing of Python's streams.
    """
    if not asked:
        yield
        return
    before = sys.stdout
    with ExitStack() as undo:
        kept = os.dup(STDOUT)
        undo.callback(os.close, kept)
        before.flush()
        os.dup2(STDERR, STDOUT)
        undo.callback(os.dup2, kept, STDOUT)
        undo.callback(_flush_c)
        undo.callback(before.flush)  # who has kept it prints to stderr
        real = _number(before) == STDOUT
        document = undo.enter_context(open(kept, "w", encoding=before.encoding, closefd=False)) if real else before
        _documents.append(document)
        undo.callback(_documents.pop)
        undo.enter_context(redirect_stdout(sys.stderr))
        yield


@contextmanager
def printing() -> Iterator[TextIO]:
    """The stream to print tables and documents to.

    Raises:
        InputError: if it does not take them, as on a full disk. A reader that has gone stays a BrokenPipeError.
    """
    stream = _documents[-1] if _documents else sys.stdout
    try:
        yield stream
        if _documents:
            stream.flush()
    except OSError as error:
        _lead_nowhere(stream.fileno())  # at its end, Python would try again
        if isinstance(error, BrokenPipeError):
            raise
        raise InputError(f"cannot print: {error.strerror}; send the output elsewhere") from error


def complain(line: str) -> None:
    """One line on stderr."""
    print(visible(line), file=sys.stderr, flush=True)


def _number(stream: TextIO) -> int | None:
    """Of the file that it writes to, where that is one."""
    try:
        return stream.fileno()
    except OSError:
        return None


def _flush_c() -> None:
    """What libraries in C have printed and not yet written."""
    if os.name == "posix":
        import ctypes  # late: only --json needs it

        ctypes.CDLL(None).fflush(None)


def _lead_nowhere(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)
