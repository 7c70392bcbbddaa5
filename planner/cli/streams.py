"""stdout and stderr as a shell may hand them over: closed, full, or with a reader that goes away."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from graphs.errors import InputError


def open_what_is_closed() -> None:
    """A command may be started without stdout or stderr (``>&-``): what is printed there goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open until the end


@contextmanager
def printing() -> Iterator[None]:
    """Around what prints.

    Raises:
        InputError: if stdout does not take it, as on a full disk. A reader that has gone stays a BrokenPipeError.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        print_no_more()
        raise InputError(f"cannot print: {error.strerror}; send the output elsewhere") from error


def print_no_more() -> None:
    """What is still to be printed goes nowhere: at its end, Python would try again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
