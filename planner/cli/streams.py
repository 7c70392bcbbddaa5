"""Streams of the process: stdout and stderr may be closed or full, or their reader may be gone."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import TextIO

from graphs.common.errors import InputError
from graphs.common.shortages import shortage
from graphs.common.visible import visible

STDOUT, STDERR = 1, 2
_documents: list[TextIO] = []
"""The streams of documents within `documents_alone`, the innermost last."""


def open_what_is_closed() -> None:
    """Discard what is printed to stdout or stderr if the command was started without it (``>&-``)."""
    for number, name in ((STDOUT, "stdout"), (STDERR, "stderr")):
        if getattr(sys, name) is None:
            _lead_nowhere(number)  # else the next file that is opened would get this number
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - open until the end


@contextmanager
def documents_alone(asked: bool) -> Iterator[None]:
    """Keep stdout for documents if they are asked for: other code that prints to stdout prints to stderr instead.

    Such code is a user's model, and libraries in C, which bypass Python's streams.
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
        undo.callback(before.flush)  # code that has kept this stream prints to stderr
        is_stdout = _number(before) == STDOUT
        document = undo.enter_context(open(kept, "w", encoding=before.encoding, closefd=False)) if is_stdout else before
        _documents.append(document)
        undo.callback(_documents.pop)
        undo.enter_context(redirect_stdout(sys.stderr))
        yield


@contextmanager
def printing() -> Iterator[TextIO]:
    """Yield the stream to print tables and documents to.

    Raise InputError if it cannot be written to, as on a full disk; BrokenPipeError if the reader has gone.
    """
    stream = _documents[-1] if _documents else sys.stdout
    try:
        yield stream
        if _documents:
            stream.flush()
    except OSError as error:
        _lead_nowhere(stream.fileno())  # else Python would try to flush it again when it exits
        if isinstance(error, BrokenPipeError):
            raise
        raise InputError(f"cannot print: {error.strerror}; send the output elsewhere") from error


def ignore_shortages() -> None:
    """Show no traceback of a shortage where Python ignores errors, as in what libraries do when the process exits.

    A shortage that a command meets is reported in one line; where none is, the command has done its work.
    """
    hook = sys.unraisablehook

    def hear(lost: "sys.UnraisableHookArgs") -> None:
        if lost.exc_value is None or not shortage(lost.exc_value):
            hook(lost)

    sys.unraisablehook = hear


def complain(line: str) -> None:
    """Print one line on stderr."""
    print(visible(line), file=sys.stderr, flush=True)


def _number(stream: TextIO) -> int | None:
    """Return the file descriptor of a stream; None if it has none."""
    try:
        return stream.fileno()
    except OSError:
        return None


def _flush_c() -> None:
    """Write out what libraries in C have printed."""
    if os.name == "posix":
        import ctypes  # late: only --json needs it

        ctypes.CDLL(None).fflush(None)


def _lead_nowhere(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)
