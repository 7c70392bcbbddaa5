"""The folder of shards: its files of tensors, which files in it are shards, and how new shards replace old ones.

::

    program.json        has the fingerprint of plan.json
    inputs.st           has the fingerprint of program.json
    *.safetensors       have the fingerprint of program.json and the name of their device

A file without such a mark is not one of the shards. A folder that holds one is never replaced.
"""

import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from safetensors import SafetensorError, safe_open

from graphs.common.documents import parse_json, read_json
from graphs.common.errors import InputError
from planner.runtime.verification.deviation import form_of

DTYPES: Mapping[torch.dtype, str] = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float64: "F64",
}
"""Complex numbers are written as pairs of real ones."""

ALIGNMENT = 8
SUMS = "crc32"


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> int:
    """Write a new .safetensors file, flush it to the disk, and return how many bytes the tensors have. ::

        8 bytes     length of the header, little-endian
        header      JSON: dtype, shape and position of each tensor; texts under "__metadata__", of which "crc32" has a
                    checksum for each tensor
        data        the tensors' bytes, those with large elements first, so that each is aligned

    The safetensors library reads these files, but can only write all tensors at once from memory; here at most one is
    copied at a time. Format: https://huggingface.co/docs/safetensors.
    The same tensors and metadata give the same bytes; the metadata go into the header. Raise OSError if the file is
    there already, or cannot be written whole.
    """
    real = {name: _real(tensor) for name, tensor in tensors.items()}
    order = sorted(real, key=lambda name: -real[name].element_size())  # stable: else as they were given
    sums = dict.fromkeys(order, checksum(memoryview(b"")))  # as long as the checksums that replace them
    entries: dict[str, Any] = {}
    end = 0
    for name in order:
        start, end = end, end + real[name].nbytes
        entries[name] = {
            "dtype": DTYPES[real[name].dtype],
            "shape": list(real[name].shape),
            "data_offsets": [start, end],
        }
    with path.open("xb") as file:
        file.write(_header(metadata, sums, entries))
        for name in order:
            data = bytes_of(real[name])
            file.write(data)
            sums[name] = checksum(data)
            del data  # before the next one is copied
        file.seek(0)
        file.write(_header(metadata, sums, entries))
        file.flush()
        os.fsync(file.fileno())
    return end


def checksum(data: memoryview) -> str:
    """Return eight hexadecimal digits, which change with any bit."""
    return f"{zlib.crc32(data):08x}"


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of the elements in order, without a copy if a tensor lies so on the CPU."""
    flat = _real(tensor).cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


class TensorFile:
    """A file that `write_tensors` has written; only the tensors that are asked for are read.

    ::

        with TensorFile(path) as file:
            file.metadata["device"], file.names
            file.read_like(tensor, "weight")
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            file: Any = safe_open(path, framework="pt")
        except OSError as error:
            raise InputError(f"cannot read '{path}': {error.strerror or error}; check the path") from error
        except SafetensorError as error:
            raise self._damaged(error) from error
        self._file = file
        metadata: dict[str, str] = file.metadata() or {}
        try:
            self._sums: Mapping[str, str] | None = parse_json(metadata.pop(SUMS, "null"))
        except ValueError as error:
            raise self._damaged(error) from error
        if not isinstance(self._sums, dict | None):
            raise self._damaged(f"its checksums are a {type(self._sums).__name__}")
        self.metadata: Mapping[str, str] = metadata
        self.names: frozenset[str] = frozenset(file.keys())

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Read a tensor of that dtype into memory of its own; raise InputError if the file is damaged."""
        tensor = self._tensor(name).clone()
        return torch.view_as_complex(tensor) if dtype.is_complex else tensor

    def read_like(self, like: torch.Tensor, name: str) -> torch.Tensor:
        """Read a tensor into the strides of another one; raise InputError if it is damaged or differs in form."""
        real, stored = _real(like), self._tensor(name)
        if (stored.shape, stored.dtype) != (real.shape, real.dtype):
            raise InputError(
                f"'{self._path}' has '{name}' as {form_of(stored)}, not {form_of(real)}; write the shards anew"
            )
        tensor = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
        _real(tensor).copy_(stored)
        return tensor

    def _tensor(self, name: str) -> torch.Tensor:
        try:
            tensor: torch.Tensor = self._file.get_tensor(name)
        except SafetensorError as error:
            raise self._damaged(error) from error
        if self._sums is not None and self._sums.get(name) != checksum(bytes_of(tensor)):
            raise self._damaged(f"'{name}' is not what was written")
        return tensor

    def _damaged(self, error: object) -> InputError:
        return InputError(f"'{self._path}' is damaged ({error}); write the shards anew")

    def __enter__(self) -> "TensorFile":
        self._file.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*error)


def _header(metadata: Mapping[str, str], sums: Mapping[str, str], entries: Mapping[str, Any]) -> bytes:
    """Return the length of the header, and its text."""
    texts = {**metadata, SUMS: json.dumps(sums, separators=(",", ":"), ensure_ascii=False)}
    text = json.dumps({"__metadata__": texts, **entries}, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or its pairs of real and imaginary parts."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


PLAN, PROGRAM, INPUTS, SUFFIX = "plan.json", "program.json", "inputs.st", ".safetensors"
DIGITS = 12  # of a fingerprint


def shard_file(device: str) -> str:
    """Return the file of a device, whatever characters its name has."""
    return quote(device, safe=" ") + SUFFIX


def file_fingerprint(path: Path) -> str:
    """Return the fingerprint of a file, which changes with any byte."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:DIGITS]


def check_shard_folder(folder: Path, force: bool) -> None:
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


SPARE = 3
"""Descriptors that are kept to remove a draft with, in case all others are in use."""


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Yield a draft next to the folder, which replaces the folder at the end, or is removed after an error.

    Old shards are removed, and nothing else. Raise InputError if the folder cannot be written, or holds something else.
    """
    folder = folder.resolve()
    draft, old = (folder.with_name(f".{folder.name}.{os.getpid()}.{what}") for what in ("new", "old"))
    with ExitStack() as last:
        last.callback(shutil.rmtree, draft, ignore_errors=True)
        try:
            for _ in range(SPARE):
                last.enter_context(open(os.devnull, "rb"))
            draft.mkdir()
        except OSError as error:
            raise InputError(
                f"cannot write '{folder}': {error.strerror} ('{draft.name}' next to it); choose another place"
            ) from error
        try:
            yield draft
            _exchange(folder, draft, old)
        except OSError as error:
            raise InputError(f"cannot write '{folder}': {error.strerror}; choose another place") from error


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
    expected, names = file_fingerprint(program), sorted(path.name for path in folder.iterdir() if _is_file(path))
    tensor_files = [name for name in names if name.endswith(SUFFIX) or name == INPUTS]
    shards = [name for name in tensor_files if _belongs(folder / name, expected)]
    if PLAN in names and file_fingerprint(folder / PLAN) == marks["plan"]:
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
    name = shard_file(marks["device"]) if "device" in marks else INPUTS
    return (name, program) == (path.name, marks.get("program"))
