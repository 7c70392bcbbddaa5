"""Reads the header of a .gguf file, or of all its shards: key-value pairs, and the name, shape and type of each tensor.

::

    "GGUF"  version  tensors  pairs │ key type value …  │ name axes shape type offset …  │ weights, which are not read
     4 B      4 B      8 B     8 B  │

Texts and lists begin with their length, 8 bytes. The first axis of a shape is the innermost one. A file in shards,
``NAME-00001-of-00003.gguf``, has its pairs in the first shard and says in ``split.count`` how many there are.

Source: ggml's docs/gguf.md, versions 2 and 3; https://github.com/ggml-org/ggml.
"""

import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodels.language_model.formats import FORMATS
from costmodels.language_model.shards import all_shards
from costmodels.language_model.stored_tensor import StoredTensor
from graphs.common.errors import InputError

MAGIC, VERSIONS = b"GGUF", (2, 3)
TEXT, LIST = 8, 9  # types of values
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
MOST_AXES = 8
KEPT_ITEMS = 4096  # of a list; longer ones are words of a tokenizer, of which the number alone is kept

TYPES: Mapping[int, str] = {
    0: "float32",
    1: "float16",
    2: "q4_0",
    3: "q4_1",
    6: "q5_0",
    7: "q5_1",
    8: "q8_0",
    9: "q8_1",
    10: "q2_K",
    11: "q3_K",
    12: "q4_K",
    13: "q5_K",
    14: "q6_K",
    15: "q8_K",
    16: "iq2_xxs",
    17: "iq2_xs",
    18: "iq3_xxs",
    19: "iq1_s",
    20: "iq4_nl",
    21: "iq3_s",
    22: "iq2_s",
    23: "iq4_xs",
    24: "int8",
    25: "int16",
    26: "int32",
    27: "int64",
    28: "float64",
    29: "iq1_m",
    30: "bfloat16",
    34: "tq1_0",
    35: "tq2_0",
    39: "mxfp4",
    40: "nvfp4",
    41: "q1_0",
}
"""Formats by ggml's number; the numbers that are missing are of formats that ggml has removed."""

SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True)
class GgufHeader:
    """Header of a .gguf file, of all its shards together."""

    pairs: Mapping[str, Any]  # a list that is longer than `KEPT_ITEMS` is its length
    tensors: tuple[StoredTensor, ...]


def read_gguf_header(path: Path) -> GgufHeader:
    """Read the header of a .gguf file; the path of any shard stands for all.

    Raises:
        InputError: if the file or a shard is missing, no .gguf, damaged or cut off, or has an unknown type of tensor.
    """
    headers = [_read_file(shard) for shard in all_shards(path, SHARD, "shards")]
    pairs, count = headers[0].pairs, headers[0].pairs.get("split.count", len(headers))
    if count > len(headers):
        raise InputError(
            f"'{path}' is one of {count} shards (split.count), and its name says nothing of the others; name the files "
            f"NAME-00001-of-{count:05d}.gguf and so on, in one folder"
        )
    return GgufHeader(pairs, tuple(tensor for header in headers for tensor in header.tensors))


def _read_file(path: Path) -> GgufHeader:
    try:
        with path.open("rb") as file:
            if not file.read(1):
                raise InputError(f"'{path}' is empty; load the .gguf again")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _Cursor(path, content).header()
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"'{path}' cannot be read ({reason}); give the path of a .gguf file") from error


class _Cursor:
    """A position in the content of a file."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self.path, self.content, self.at, self.order = path, content, 0, "<"

    def header(self) -> GgufHeader:
        """Read from the start up to the last tensor's description."""
        if self._take(4) != MAGIC:
            raise InputError(f"'{self.path}' does not begin with GGUF; give a .gguf file, or load it again")
        version = self._number("I")
        if version & 0xFFFF == 0:  # written on a machine of the other byte order
            self.order, version = ">", int.from_bytes(version.to_bytes(4, "little"), "big")
        if version not in VERSIONS:
            raise InputError(f"'{self.path}' has version {version} of GGUF; convert it to version 3 with llama.cpp")
        tensors, pairs = self._count("tensors"), self._count("key-value pairs")
        values = {}
        for _ in range(pairs):
            key = self._text()
            values[key] = self._value(self._number("I"), key)
        return GgufHeader(values, tuple(self._tensor() for _ in range(tensors)))

    def _take(self, size: int) -> bytes:
        start, self.at = self.at, self.at + size
        if self.at > len(self.content):
            raise InputError(
                f"'{self.path}' ends in its header, after {len(self.content):,} bytes; load it again, as the first "
                "megabytes suffice"
            )
        return self.content[start : self.at]

    def _number(self, kind: str) -> Any:
        kind = self.order + kind
        return struct.unpack(kind, self._take(struct.calcsize(kind)))[0]

    def _count(self, what: str) -> int:
        """Read a number of things, each of which takes a byte at least."""
        count: int = self._number("Q")
        if count > len(self.content):
            raise InputError(
                f"'{self.path}' is damaged or ends in its header: it announces {count:,} {what} in "
                f"{len(self.content):,} bytes; load it again"
            )
        return count

    def _text(self) -> str:
        return self._take(self._count("letters")).decode("utf-8", "replace")

    def _value(self, kind: int, key: str) -> Any:
        if kind == TEXT:
            return self._text()
        if kind == LIST:
            return self._list(key)
        if kind not in SCALARS:
            raise InputError(f"'{self.path}' is damaged: '{key}' has a value of the unknown type {kind}; load it again")
        return self._number(SCALARS[kind])

    def _list(self, key: str) -> Any:
        kind, count = self._number("I"), self._count("values")
        kept = count <= KEPT_ITEMS
        if kind in SCALARS:
            form = f"{self.order}{count}{SCALARS[kind]}"
            content = self._take(struct.calcsize(form))
            return struct.unpack(form, content) if kept else count
        values = [self._value(kind, key) for _ in range(count)]
        return tuple(values) if kept else count

    def _tensor(self) -> StoredTensor:
        name, axes = self._text(), self._number("I")
        if axes > MOST_AXES:
            raise InputError(f"'{self.path}' is damaged: the tensor '{name}' has {axes} axes; load it again")
        shape = tuple(self._number("Q") for _ in range(axes))
        kind, _ = self._number("I"), self._number("Q")
        if kind not in TYPES:
            raise InputError(
                f"the tensor '{name}' of '{self.path}' has ggml's type {kind}, which is not known here; take a file in "
                f"one of {', '.join(list(TYPES.values())[2:25])}"
            )
        return StoredTensor(name, shape[::-1], FORMATS[TYPES[kind]])
