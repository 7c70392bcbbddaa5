"""Reads and writes graph.json, whose dictionary is also a part of plan.json, and writes files atomically."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from errno import ELOOP
from pathlib import Path
from typing import Any, BinaryIO

from graphs.common.documents import DAMAGED, check_version, read_json
from graphs.common.errors import InputError
from graphs.common.visible import visible
from graphs.footprint import footprint_from_dict, footprint_to_dict
from graphs.ir import Attr, Graph, Op, Role, Tensor

VERSION = 1
STREAMS = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))


def graph_to_dict(graph: Graph) -> dict[str, Any]:
    """A graph as a JSON document; empty fields are left out."""
    return {
        "version": VERSION,
        "name": graph.name,
        "fingerprint": graph.fingerprint,
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "tensors": [[t.name, list(t.shape), t.dtype, str(t.role)] for t in graph.tensors],
        "ops": [_op_to_dict(op) for op in graph.ops],
        **({"caches": [list(pair) for pair in graph.caches]} if graph.caches else {}),
    }


def graph_from_dict(document: Mapping[str, Any]) -> Graph:
    """The inverse of `graph_to_dict`.

    Raises:
        InputError: if the version is another, a field is missing, or the content does not match its fingerprint.
    """
    check_version(document, "graph", VERSION, "import the model again")
    try:
        graph = Graph(
            name=document["name"],
            ops=tuple(_op_from_dict(op) for op in document["ops"]),
            tensors=tuple(Tensor(n, tuple(shape), dtype, Role(role)) for n, shape, dtype, role in document["tensors"]),
            inputs=tuple(document["inputs"]),
            outputs=tuple(document["outputs"]),
            caches=tuple((str(cache), str(after)) for cache, after in document.get("caches", ())),
        )
    except InputError:
        raise
    except DAMAGED as error:
        raise InputError(f"the graph is damaged: {error!r}; import the model again") from error
    if graph.fingerprint != document.get("fingerprint"):
        raise InputError(
            f"graph '{graph.name}' was changed by hand: its fingerprint is {graph.fingerprint}, "
            f"the file says {document.get('fingerprint')!r}; import the model again"
        )
    return graph


def write_graph(graph: Graph, path: Path) -> None:
    """Write graph.json: the same bytes for the same graph."""
    text = json.dumps(graph_to_dict(graph), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    write_text(text + "\n", path)


def read_graph(path: Path) -> Graph:
    """Read graph.json.

    Raises:
        InputError: if the file is missing, not JSON, or not a graph of this version. The message names the file.
    """
    return graph_of(read_json(path, "graph"), path)


def graph_of(document: Mapping[str, Any], path: Path) -> Graph:
    """The graph of a document that was read from ``path``.

    Raises:
        InputError: as `graph_from_dict`, with the name of the file.
    """
    try:
        return graph_from_dict(document)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def write_text(text: str, path: Path) -> None:
    """Write a file whole or not at all: the old content stays until the new text is on disk.

    Raises:
        InputError: if the folder does not exist or may not be written, or the text has lone surrogates.
    """
    try:
        content = text.encode()
    except UnicodeEncodeError as error:
        around = visible(text[max(0, error.start - 20) : error.start + 20])
        raise InputError(
            f"cannot write '{path}': '{around}' in it has half a letter; give that another name"
        ) from error
    write_bytes(content, path)


def is_stream(path: Path) -> bool:
    """Whether a path is a pipe, a terminal, /dev/stdout or another device, and so no file that could be replaced."""
    return path.parent in STREAMS or (path.exists() and not (path.is_file() or path.is_dir()))


def target_of(path: Path) -> Path:
    """The file that a write to this path changes: the target of a symbolic link, whether it exists or not.

    Raises:
        OSError: for links that form a cycle.
    """
    if is_stream(path) or not path.is_symlink():
        return path
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(ELOOP, os.strerror(ELOOP))
    return target


def write_bytes(content: bytes, path: Path) -> None:
    """Write bytes as `write_text` writes text.

    Raises:
        InputError: if the file cannot be written.
    """
    try:
        _put(content, path)
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror}; choose another place") from error


def write_cached(document: Mapping[str, Any], path: Path) -> None:
    """Write a file of the cache whole or not at all, and make its folders where they are missing.

    Raises:
        InputError: if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _put((json.dumps(document, indent=1, allow_nan=False) + "\n").encode(), path)
    except OSError as error:
        raise InputError(
            f"cannot write '{path}' into the cache: {error.strerror}; set PLANNER_CACHE to another folder"
        ) from error


@contextmanager
def reading_cached(what: str, path: Path, again: str) -> Iterator[None]:
    """Context for code that builds a record from a cached file, which an older or foreign program may have written.

    Messages call the file ``what``, and name the command to repeat (``again``) once it is deleted.

    Raises:
        InputError: if the content is malformed.
    """
    try:
        yield
    except DAMAGED as error:
        raise InputError(f"the {what} '{path}' is damaged or foreign ({error}); delete it and {again} again") from error


def draft_of(path: Path) -> Path:
    """Return the temporary file in the folder of ``path`` that replaces ``path`` once it is written."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def _put(content: bytes, path: Path) -> None:
    """Write a file whole or not at all; after an OSError the old file is intact, and no draft is left."""
    if is_stream(path):
        with _stream(path) as stream:
            stream.write(content)
        return
    path = target_of(path)
    draft = draft_of(path)
    try:
        draft.write_bytes(content)
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


def _stream(path: Path) -> BinaryIO:
    """A pipe or device to write to; one that this process has open, such as /dev/stdout, keeps its position."""
    number = {"stdout": "1", "stderr": "2"}.get(path.name, path.name) if path.parent in STREAMS else ""
    if number.isdigit():
        return os.fdopen(os.dup(int(number)), "wb")
    return path.open("wb")


def _op_to_dict(op: Op) -> dict[str, Any]:
    required = {"name": op.name, "kind": op.kind, "inputs": list(op.inputs), "outputs": list(op.outputs)}
    optional = {
        "module": op.module,
        "attrs": dict(op.attrs),
        "members": [_op_to_dict(member) for member in op.members],
        "footprint": op.footprint and footprint_to_dict(op.footprint),
    }
    return required | {key: value for key, value in optional.items() if value}


def _op_from_dict(document: Mapping[str, Any]) -> Op:
    footprint = document.get("footprint")
    return Op(
        name=document["name"],
        kind=document["kind"],
        inputs=tuple(document["inputs"]),
        outputs=tuple(document["outputs"]),
        module=document.get("module", ""),
        attrs={key: _frozen(value) for key, value in document.get("attrs", {}).items()},
        members=tuple(map(_op_from_dict, document.get("members", ()))),
        footprint=None if footprint is None else footprint_from_dict(footprint),
    )


def _frozen(value: Any) -> Attr:
    """The value with all lists, nested ones too, as tuples."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
