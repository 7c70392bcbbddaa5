"""The folder of shards: which files in it are shards, and how new shards replace old ones.

::

    program.json        has the fingerprint of plan.json
    inputs.st           has the fingerprint of program.json
    *.safetensors       have the fingerprint of program.json and the name of their device

A file without such a mark is not one of the shards. A folder that holds one is never replaced.
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
    """Return the file of a device, whatever characters its name has."""
    return quote(device, safe=" ") + SUFFIX


def fingerprint_of(path: Path) -> str:
    """Return the fingerprint of a file, which changes with any byte."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:DIGITS]


def check_target(folder: Path, force: bool) -> None:
    """Raise InputError if a folder has other files than shards, or has shards and ``force`` is not given."""
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
    """Yield a draft beside the folder, which replaces it at the end, or is removed after an error.

    Old shards are removed, and nothing else. Raise InputError if the folder cannot be written, or holds something else.
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
    """Replace the folder by the draft, or leave it as it was, at whatever moment an interrupt comes."""
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


def _refuse_others(path: Path, folder: Path) -> None:
    """Check that the folder, which is at ``path`` now, holds shards and nothing else."""
    others = {entry.name for entry in path.iterdir()} - set(_shards(path))
    if others:
        raise InputError(
            f"'{folder}' holds '{min(others)}', which is no shard that belongs to a '{PROGRAM}' there; "
            "choose another name, or move it away"
        )


def _shards(folder: Path) -> list[str]:
    """Return the files that `write_shards` has written together; `PROGRAM`, which says so, is the last."""
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
    tensor_files = [name for name in names if name.endswith(SUFFIX) or name == INPUTS]
    shards = [name for name in tensor_files if _belongs(folder / name, expected)]
    if PLAN in names and fingerprint_of(folder / PLAN) == marks["plan"]:
        shards.append(PLAN)
    return [*shards, PROGRAM]


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _belongs(path: Path, program: str) -> bool:
    """Check that a file of tensors has the marks of a program and of its own name."""
    try:
        with TensorFile(path) as file:
            marks = file.metadata
    except InputError:
        return False
    name = file_of(marks["device"]) if "device" in marks else INPUTS
    return (name, program) == (path.name, marks.get("program"))
