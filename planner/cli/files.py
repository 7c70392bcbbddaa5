"""Files that commands write: an existing file is overwritten only with --force, a file that the command reads never.

What a command reads need not be declared: it is every path among its options that it does not write, and the files of
MODEL: the model itself, the files with its weights, or the Python file of a factory.
"""

import argparse
import os
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

from graphs.common.errors import InputError
from graphs.files import draft_of, is_stream, target_of
from graphs.importers.sources import sources_of


def declare_output(
    parser: argparse.ArgumentParser, default: str, action: type[argparse.Action] | str = "store"
) -> None:
    """``-o FILE`` with a default, and ``--force``."""
    help = f"file to write ({default})"
    parser.add_argument("-o", "--output", action=action, type=Path, default=Path(default), metavar="FILE", help=help)
    declare_writes(parser, "output")


def declare_writes(parser: argparse.ArgumentParser, *names: str, folder: bool = False) -> None:
    """Give the command ``--force``, and let `check_writes` check the files, or the folders, that these options name."""
    parser.set_defaults(writes=names, writes_folder=folder)


def check_writes(options: argparse.Namespace) -> None:
    """Check the files that the options name, before a command starts, as `refuse_overwriting` does."""
    refuse_overwriting([getattr(options, name) for name in getattr(options, "writes", ())], options)


def refuse_overwriting(paths: Iterable[Path | None], options: argparse.Namespace) -> None:
    """Check files that are to be written, before anything is computed.

    Raise InputError for a file that exists, without ``--force``; for a file that the command reads, even with
    ``--force``; for a file that is to be written twice, or a place where no file can be.
    """
    folder = getattr(options, "writes_folder", False)
    written = [path for path in paths if path is not None]
    reads = _read(options, any(map(os.path.exists, written)))
    for path in written:
        _check_place(path, folder)
        for read in reads:
            around = Path(os.path.realpath(read)).parents if folder and read.exists() else ()
            if _same(path, read) or any(_same(path, parent) for parent in around):
                how = "holds" if folder else "is"
                raise InputError(f"cannot write '{path}': it {how} '{read}', which is read; choose another name")
        if path.is_file() and not (is_stream(path) or options.force):
            raise InputError(f"'{path}' is there already; add --force to overwrite it, or choose another name")
    for one, other in combinations(written, 2):
        if _same(one, other):
            raise InputError(f"'{one}' and '{other}' are one file, which cannot hold both; choose another name")


def _read(options: argparse.Namespace, overwrites: bool) -> list[Path]:
    """Return the files that the command reads; other files of an .onnx, found slowly, only if it overwrites any."""
    written = (*getattr(options, "writes", ()), "output")
    paths = [value for name, value in vars(options).items() if isinstance(value, Path) and name not in written]
    model = getattr(options, "model", None)
    if model is None:
        return paths
    return [*paths, Path(model), *(sources_of(str(model)) if overwrites else ())]


def _same(one: Path, other: Path) -> bool:
    """Return whether two names mean one file, also through links. Streams never do: writing to one loses nothing."""
    try:
        return not is_stream(one) and os.path.samefile(one, other)
    except (OSError, ValueError):  # one of them is not there
        return os.path.realpath(one) == os.path.realpath(other) and not is_stream(one)


def _try_out(path: Path) -> None:
    """Make a draft of a file, or of a file in a folder, and remove it; raise OSError if none can be made there."""
    draft = draft_of(path / "draft" if path.is_dir() else path)
    try:
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    finally:  # also if an interrupt comes in between
        draft.unlink(missing_ok=True)


def _check_place(path: Path, folder: bool) -> None:
    """Refuse a name that no file, or no folder, can have."""
    why = ""
    try:
        parent = target_of(path).parent
        if not parent.is_dir():
            why = f"there is no folder '{parent}'"
        elif path.is_dir() and not folder:
            why = "it is a folder"
        elif not is_stream(path):
            _try_out(path if folder and path.is_dir() else target_of(path))
    except OSError as error:  # a name that is too long, links in a circle
        why = error.strerror or str(error)
    except ValueError as error:  # a name with a zero byte
        why = str(error)
    if why:
        raise InputError(f"cannot write '{path}': {why}; choose another place")
