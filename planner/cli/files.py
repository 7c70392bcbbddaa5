"""Files that commands write: none is overwritten unasked, and none that the command reads, whatever is asked.

What a command reads need not be declared: every path among its options that it does not write is one, and the files
of MODEL: itself, those beside it with its weights, or the Python file of a factory.
"""

import argparse
import os
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

from graphs.errors import InputError
from graphs.files import is_stream, target_of
from graphs.importers.sources import sources_of


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
        InputError: as `refuse_overwriting`.
    """
    refuse_overwriting([getattr(options, name) for name in getattr(options, "writes", ())], options)


def refuse_overwriting(paths: Iterable[Path | None], options: argparse.Namespace) -> None:
    """For paths that no option names.

    Raises:
        InputError: for a file that is there, without ``--force``; for one that the command reads, in any case; for a
            file that is to be written twice, or a place where none can be: before anything is computed.
    """
    folder = getattr(options, "writes_folder", False)
    written = [path for path in paths if path is not None]
    reads = _read(options, any(map(os.path.exists, written)))
    for path in written:
        _check_place(path, folder)
        for read in reads:
            if _same(path, read) or (folder and _inside(read, path)):
                how = "holds" if folder else "is"
                raise InputError(f"cannot write '{path}': it {how} '{read}', which is read; choose another name")
        if path.is_file() and not (is_stream(path) or options.force):
            raise InputError(f"'{path}' is there already; add --force to overwrite it, or choose another name")
    for one, other in combinations(written, 2):
        if _same(one, other):
            raise InputError(f"'{one}' and '{other}' are one file, which cannot hold both; choose another name")


def _read(options: argparse.Namespace, whole: bool) -> list[Path]:
    """What the command reads.

    Args:
        options: of the command.
        whole: find all files of MODEL, which takes a while for an .onnx; nothing is lost where nothing is there yet.
    """
    written = (*getattr(options, "writes", ()), "output")
    found = [value for name, value in vars(options).items() if isinstance(value, Path) and name not in written]
    model = getattr(options, "model", None)
    if model is None:
        return found
    return [*found, Path(model), *(sources_of(model) if whole else ())]


def _same(one: Path, other: Path) -> bool:
    """Whether two names are one file: by other spellings, or links of either kind. A device or pipe loses nothing."""
    try:
        return not is_stream(one) and os.path.samefile(one, other)
    except (OSError, ValueError):  # one of them is not there
        return os.path.realpath(one) == os.path.realpath(other) and not is_stream(one)


def _inside(path: Path, folder: Path) -> bool:
    """Whether a file is in a folder."""
    return path.exists() and any(_same(folder, parent) for parent in Path(os.path.realpath(path)).parents)


def _check_place(path: Path, folder: bool) -> None:
    """Whether there can be a file, or a folder, of this name."""
    why = ""
    try:
        place = target_of(path)
        where = place.parent
        if not where.is_dir():
            why = f"there is no folder '{where}'"
        elif path.is_dir() and not folder:
            why = "it is a folder"
        elif not (is_stream(path) or os.access(where, os.W_OK)):
            why = f"the folder '{where}' is write-protected"
    except OSError as error:  # a name that is too long, links in a circle
        why = error.strerror or str(error)
    except ValueError as error:  # a name with a zero byte
        why = str(error)
    if why:
        raise InputError(f"cannot write '{path}': {why}; choose another place with -o")
