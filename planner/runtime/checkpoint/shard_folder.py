"""The folder of shards: which files in it are shards, and how new shards take the place of old ones.

::

    program.json        has the fingerprint of plan.json
    inputs.st           has the fingerprint of program.json
    *.safetensors       have the fingerprint of program.json and the name of their device

So a file that bears no such mark was written by somebody else. A folder that holds one is never replaced.
"""

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from os import getpid
from pathlib import Path
from urllib.parse import quote

from graphs.documents import read_json
from graphs.errors import InputError
from planner.runtime.checkpoint.tensor_files import TensorFile

PLAN, PROGRAM, INPUTS, SUFFIX = "plan.json", "program.json", "inputs.st", ".safetensors"
DIGITS = 12  # of a fingerprint


def file_of(device: str) -> str:
    """The file of a device, whatever letters its name has."""
    return quote(device, safe=" ") + SUFFIX


def fingerprint_of(path: Path) -> str:
    """Of a file: it changes with any byte."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:DIGITS]


def check_target(folder: Path, force: bool) -> None:
    """Whether shards may be written there.

    Raises:
        InputError: if something else is there, or shards are and ``force`` is not given.
    """
    if not folder.exists():
        if not folder.absolute().parent.is_dir():
            raise InputError(
                f"there is no folder '{folder.absolute().parent}' to write '{folder.name}' in; make it first"
            )
        return
    if not folder.is_dir():
        raise InputError(f"'{folder}' is a file, no folder; choose another name")
    if any(folder.iterdir()) and not force:
        raise InputError(f"'{folder}' is there already; add --force to overwrite it, or choose another name")
    _refuse_others(folder, folder)


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A draft beside the folder, which takes its place at the end, or is removed where something goes wrong.

    Of what was there, shards are removed and nothing else.

    Raises:
        InputError: if the folder cannot be written, or holds something else by the time that the draft is whole.
    """
    folder = folder.resolve()
    draft, old = (folder.with_name(f".{folder.name}.{getpid()}.{what}") for what in ("new", "old"))
    try:
        draft.mkdir()
    except OSError as error:
        raise InputError(
            f"cannot write '{folder}': {error.strerror} ('{draft.name}' beside it); choose another place"
        ) from error
    try:
        yield draft
        _exchange(folder, draft, old)
    except OSError as error:
        raise InputError(f"cannot write '{folder}': {error.strerror}; choose another place") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _exchange(folder: Path, draft: Path, old: Path) -> None:
    """The draft takes the folder's place, or the folder stays, at whatever moment an interrupt comes."""
    try:
        if folder.exists():
            shutil.copymode(folder, draft)
            folder.rename(old)
            _refuse_others(old, folder)  # again: writing has taken its time
        draft.rename(folder)
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)
    if old.exists():
        for name in _shards(old):
            (old / name).unlink()
        old.rmdir()


def _refuse_others(there: Path, folder: Path) -> None:
    """The folder, which is there now, holds shards and nothing else.

    Raises:
        InputError: with the name of what else is in it.
    """
    others = {path.name for path in there.iterdir()} - set(_shards(there))
    if others:
        raise InputError(
            f"'{folder}' holds '{min(others)}', which is no shard that belongs to a '{PROGRAM}' there; "
            "choose another name, or move it away"
        )


def _shards(folder: Path) -> list[str]:
    """The files that `write_shards` has written together; the one that tells so is the last."""
    program = folder / PROGRAM
    if not _is_file(program):
        return []
    try:
        marks = read_json(program, "program")
    except InputError:
        return []
    if not {"plan", "model", "weights", "program"} <= marks.keys():
        return []
    expected, names = fingerprint_of(program), sorted(path.name for path in folder.iterdir() if _is_file(path))
    found = [name for name in names if name.endswith(SUFFIX) or name == INPUTS]
    found = [name for name in found if _belongs(folder / name, expected)]
    if PLAN in names and fingerprint_of(folder / PLAN) == marks["plan"]:
        found.append(PLAN)
    return [*found, PROGRAM]


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _belongs(path: Path, program: str) -> bool:
    """Whether tensors bear the marks of a program and of their own name."""
    try:
        with TensorFile(path) as file:
            marks = file.metadata
    except InputError:
        return False
    name = file_of(marks["device"]) if "device" in marks else INPUTS
    return (name, program) == (path.name, marks.get("program"))
