"""Files that commands write: none is overwritten unasked."""

import argparse
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


def declare_writes(parser: argparse.ArgumentParser, *names: str) -> None:
    """The command gets ``--force``, and does not start if a file that one of these options names is there."""
    parser.set_defaults(writes=names)


def check_writes(options: argparse.Namespace) -> None:
    """Before a command starts.

    Raises:
        InputError: for a file that is there, without ``--force``.
    """
    refuse_overwriting([getattr(options, name) for name in getattr(options, "writes", ())], options)


def refuse_overwriting(paths: Iterable[Path | None], options: argparse.Namespace) -> None:
    """For paths that no option names.

    Raises:
        InputError: for a file that is there, without ``--force``, or a folder that is not: before anything is computed.
    """
    for path in paths:
        if path is not None and not path.parent.is_dir():
            raise InputError(f"cannot write '{path}': there is no folder '{path.parent}'; choose another place with -o")
        if path is not None and path.is_file() and not (is_stream(path) or options.force):
            raise InputError(f"'{path}' is there already; add --force to overwrite it, or choose another name")
