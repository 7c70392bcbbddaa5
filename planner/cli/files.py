"""Files that commands write: none is overwritten unasked."""

import argparse
import os
from collections.abc import Iterable
from pathlib import Path

from graphs.errors import InputError
from graphs.files import is_stream


def declare_output(parser: argparse.ArgumentParser, default: str) -> None:
    """``-o FILE`` with a default, and ``--force``."""
    parser.add_argument(
        "-o", "--output", type=Path, default=Path(default), metavar="FILE", help=f"file to write ({default})"
    )
    declare_writes(parser, "output")


def declare_writes(parser: argparse.ArgumentParser, *names: str, folder: bool = False) -> None:
    """The command gets ``--force``, and does not start if a file that one of these options names is there.

    Args:
        parser: of the command.
        names: of the options.
        folder: whether they name folders, which may be there.
    """
    parser.set_defaults(writes=names, writes_folder=folder)


def check_writes(options: argparse.Namespace) -> None:
    """Before a command starts.

    Raises:
        InputError: for a file that is there, without ``--force``.
    """
    refuse_overwriting([getattr(options, name) for name in getattr(options, "writes", ())], options)


def refuse_overwriting(paths: Iterable[Path | None], options: argparse.Namespace) -> None:
    """For paths that no option names.

    Raises:
        InputError: for a file that is there, without ``--force``, or a place where none can be: before anything is
            computed.
    """
    for path in paths:
        if path is not None:
            _check_place(path, getattr(options, "writes_folder", False))
            if path.is_file() and not (is_stream(path) or options.force):
                raise InputError(f"'{path}' is there already; add --force to overwrite it, or choose another name")


def _check_place(path: Path, folder: bool) -> None:
    """Whether there can be a file, or a folder, of this name."""
    why = ""
    try:
        if not path.parent.is_dir():
            why = f"there is no folder '{path.parent}'"
        elif path.is_dir() and not folder:
            why = "it is a folder"
        elif not (is_stream(path) or os.access(path.parent, os.W_OK)):
            why = f"the folder '{path.parent}' is write-protected"
    except OSError as error:  # a name that is too long
        why = error.strerror or str(error)
    if why:
        raise InputError(f"cannot write '{path}': {why}; choose another place with -o")
