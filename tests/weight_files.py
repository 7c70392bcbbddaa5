"""Writes headers of files of weights, byte by byte, for tests of their readers. No weights follow the headers."""

import json
import struct
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

BYTES = {"F32": 4, "BF16": 2, "F16": 2, "I32": 4, "I64": 8, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E8M0": 1}
GGML = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14, "MXFP4": 39}

Tensors = Mapping[str, tuple[str, Sequence[int]]]


def write_safetensors(path: Path, tensors: Tensors) -> Path:
    """Write a header with the type and shape of each tensor."""
    path.write_bytes(safetensors_bytes(tensors))
    return path


def safetensors_bytes(tensors: Tensors) -> bytes:
    """Return the header of a .safetensors."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (kind, shape) in tensors.items():
        size = prod(shape) * BYTES[kind]
        entries[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header


def write_index(folder: Path, shards: Mapping[str, Tensors]) -> Path:
    """Write files of a model and their index."""
    for name, tensors in shards.items():
        write_safetensors(folder / name, tensors)
    path = folder / "model.safetensors.index.json"
    names = {tensor: file for file, tensors in shards.items() for tensor in tensors}
    path.write_text(json.dumps({"metadata": {}, "weight_map": names}), encoding="utf-8")
    return path


def gguf_bytes(pairs: Mapping[str, Any], tensors: Tensors, order: str = "<", version: int = 3) -> bytes:
    """Return a .gguf's header; shapes are outermost first, as PyTorch has them."""
    parts = [b"GGUF", struct.pack(f"{order}IQQ", version, len(tensors), len(pairs))]
    for key, value in pairs.items():
        parts += [_text(key, order), _value(value, order)]
    for name, (kind, shape) in tensors.items():
        parts += [_text(name, order), struct.pack(f"{order}I", len(shape))]
        parts += [struct.pack(f"{order}Q", axis) for axis in reversed(shape)]
        parts.append(struct.pack(f"{order}IQ", GGML.get(kind, 99), 0))
    return b"".join(parts)


def _text(text: str, order: str) -> bytes:
    return struct.pack(f"{order}Q", len(text.encode())) + text.encode()


def _value(value: Any, order: str) -> bytes:
    match value:
        case bool():
            return struct.pack(f"{order}I?", 7, value)
        case int():
            return struct.pack(f"{order}II", 4, value)
        case float():
            return struct.pack(f"{order}If", 6, value)
        case str():
            return struct.pack(f"{order}I", 8) + _text(value, order)
    kind = 8 if isinstance(value[0], str) else 7 if isinstance(value[0], bool) else 4
    items = [_text(item, order) if kind == 8 else struct.pack(order + "?I"[kind == 4], item) for item in value]
    return struct.pack(f"{order}IIQ", 9, kind, len(value)) + b"".join(items)
