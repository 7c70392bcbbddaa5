"""Reads the headers of .safetensors files: the name, shape and type of each tensor, and no weights.

::

    length  │ {"name": {"dtype": "BF16", "shape": [4096, 4096], "data_offsets": [0, 33554432]}, …} │ weights
     8 B    │ JSON of that length                                                                  │ not read

A model in several files has an index, ``model.safetensors.index.json``, with the file of each tensor; it has neither
types nor shapes.

Source: https://huggingface.co/docs/safetensors, format.
"""

import re
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

from costmodels.language_model.formats import FORMATS, WeightFormat
from costmodels.language_model.shards import all_shards
from costmodels.language_model.stored_tensor import StoredTensor
from graphs.common.documents import parse_json, read_json
from graphs.common.errors import InputError, first_line

INDEX = "model.safetensors.index.json"
MOST_BYTES = 100_000_000  # of a header, as the library safetensors allows
SHARD = re.compile(r"(.*)-(\d{5,6})-of-(\d{5,6})\.safetensors", re.DOTALL)
PACKED = WeightFormat("float4_e2m1fn_x2", 4, kind="float")

TYPES: Mapping[str, WeightFormat] = {
    "F64": FORMATS["float64"],
    "F32": FORMATS["float32"],
    "F16": FORMATS["float16"],
    "BF16": FORMATS["bfloat16"],
    "F8_E4M3": FORMATS["float8_e4m3fn"],
    "F8_E5M2": FORMATS["float8_e5m2"],
    "F8_E8M0": FORMATS["float8_e8m0fnu"],
    "F4": PACKED,
    "BOOL": FORMATS["bool"],
    **{f"I{bits}": FORMATS[f"int{bits}"] for bits in (64, 32, 16, 8)},
    **{f"U{bits}": FORMATS[f"uint{bits}"] for bits in (64, 32, 16, 8)},
}
"""Formats by the type's name in a header."""


def read_safetensors(path: Path) -> tuple[StoredTensor, ...]:
    """Read the headers of one file, of the files of an index, or of those of a folder.

    Raises:
        InputError: if a file is missing, damaged or cut off, has an unknown type, or lacks a tensor of the index.
    """
    if path.is_dir():
        path = path / INDEX if (path / INDEX).exists() else path
    if path.suffix == ".json":
        return tuple(_by_index(path))
    files = _files(path) if path.is_dir() else all_shards(path, SHARD, "files")
    return tuple(tensor for file in files for tensor in _header(file))


def _by_index(path: Path) -> Iterator[StoredTensor]:
    """Yield the tensors of an index, file by file."""
    files = read_json(path, "index").get("weight_map")
    if not (isinstance(files, dict) and files and all(isinstance(file, str) for file in files.values())):
        raise InputError(f"'{path}' has no weight_map from tensors to files; load it again")
    for file in sorted(set(files.values())):
        if Path(file).name != file or not (path.parent / file).exists():
            raise InputError(f"'{path}' names the file '{file}', which is not in its folder; load that file as well")
        names = {name for name, where in files.items() if where == file}
        for tensor in _header(path.parent / file):
            names.discard(tensor.name)
            yield tensor
        if names:
            raise InputError(
                f"'{path.parent / file}' lacks the tensor '{min(names)}', which '{path.name}' says it has; load both "
                "again"
            )


def _files(folder: Path) -> list[Path]:
    found = sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("*.safetensors"))
    if not found:
        raise InputError(f"the folder '{folder}' has no .safetensors; give a folder with a model's files, or a file")
    return all_shards(found[0], SHARD, "files")


def _header(path: Path) -> Iterator[StoredTensor]:
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            content = file.read(size) if size <= MOST_BYTES else b""
    except OSError as error:
        raise InputError(f"'{path}' cannot be read ({error.strerror}); give a .safetensors file") from error
    if size > MOST_BYTES or size < 2 or (content and content[:1] != b"{"):
        raise InputError(f"'{path}' does not begin with the header of a .safetensors file; load it again")
    if len(content) < size:
        raise InputError(
            f"'{path}' ends in its header, after {8 + len(content):,} bytes of {8 + size:,}; load it again"
        )
    try:
        entries = parse_json(content.decode())
    except ValueError as error:
        raise InputError(f"the header of '{path}' is damaged ({first_line(error)}); load the file again") from error
    for name, entry in entries.items():
        if name != "__metadata__":
            yield _tensor(path, name, entry)


def _tensor(path: Path, name: str, entry: Any) -> StoredTensor:
    entry = entry if isinstance(entry, dict) else {}
    shape, kind = entry.get("shape"), str(entry.get("dtype"))
    if not (isinstance(shape, list) and all(type(axis) is int and axis >= 0 for axis in shape)):
        raise InputError(f"the tensor '{name}' of '{path}' has no shape; load the file again")
    if kind not in TYPES:
        raise InputError(
            f"the tensor '{name}' of '{path}' has the type '{kind}', which is not known here; take a file in one of "
            f"{', '.join(TYPES)}"
        )
    offsets = entry.get("data_offsets")
    have = offsets[1] - offsets[0] if isinstance(offsets, list) and [type(at) for at in offsets] == [int, int] else -1
    if have != TYPES[kind].bytes_of(shape):
        raise InputError(
            f"the tensor '{name}' of '{path}' has {have:,} bytes, and {prod(shape):,} elements of {kind} have "
            f"{TYPES[kind].bytes_of(shape):,}; the header is damaged: load the file again"
        )
    return StoredTensor(name, tuple(shape), TYPES[kind])
