"""Reads an input that a user names: a file, or a pipe with a writer, such as ``<(command)``.

Folders, sockets and devices are refused at once, since they have no content or no end.
"""

import os
import select
import stat
from pathlib import Path

PIPE_TIMEOUT_S = 60.0  # between two pieces from a pipe
PIECE_BYTES = 1 << 20

REFUSED = {stat.S_ISDIR: "it is a folder", stat.S_ISSOCK: "it is a socket", stat.S_ISBLK: "it is a device"}


def content_of(path: Path) -> bytes:
    """All bytes of an input.

    Raises:
        OSError: if the input is no file or pipe, or cannot be read; ``strerror`` says why.
    """
    _check(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # otherwise a pipe without a writer would block forever
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.set_blocking(descriptor, True)
            return file.readall()
        return b"".join(iter(lambda: _piece(descriptor, path), b"")) or _nothing(path)


def _check(path: Path) -> None:
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
