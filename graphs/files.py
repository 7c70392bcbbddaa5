"""graph.json in and out; the same dictionary stands inside plan.json."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from errno import ELOOP
from pathlib import Path
from typing import Any, BinaryIO

from graphs.documents import DAMAGED, read_json
from graphs.errors import InputError
from graphs.footprint import footprint_from_dict, footprint_to_dict
from graphs.ir import Attr, Graph, Op, Role, Tensor
from graphs.visible import visible

VERSION = 2  # with footprints; a graph of version 1 has none, and is read as it is
READABLE = (1, VERSION)
STREAMS = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))


def graph_to_dict(graph: Graph) -> dict[str, Any]:
    """A graph as what JSON can hold; empty fields are left out."""
    return {
        "version": VERSION,
        "name": graph.name,
        "fingerprint": graph.fingerprint,
        "inputs": list(graph.inputs),
        "outputs": list(graph.outputs),
        "tensors": [[t.name, list(t.shape), t.dtype, str(t.role)] for t in graph.tensors],
        "ops": [_op_to_dict(op) for op in graph.ops],
    }


def graph_from_dict(document: Mapping[str, Any]) -> Graph:
    """The inverse of `graph_to_dict`.

    Raises:
        InputError: if the version is newer, a field is missing, or the content does not match its fingerprint.
    """
    version = document.get("version")
    if isinstance(version, bool) or version not in READABLE:
        raise InputError(
            f"the graph has the version {version!r}, this planner reads {' and '.join(map(str, READABLE))}; "
            "import the model again"
        )
    try:
        graph = Graph(
            name=document["name"],
            ops=tuple(_op_from_dict(op) for op in document["ops"]),
            tensors=tuple(Tensor(n, tuple(shape), dtype, Role(role)) for n, shape, dtype, role in document["tensors"]),
            inputs=tuple(document["inputs"]),
            outputs=tuple(document["outputs"]),
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
    """What `read_graph` makes of what stands in the file.

    Raises:
        InputError: as `graph_from_dict`, with the name of the file.
    """
    try:
        return graph_from_dict(document)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def write_text(text: str, path: Path) -> None:
    """Write a file whole or not at all: what was there stays until the new text is on disk.

    Raises:
        InputError: if the folder does not exist or may not be written, or the text has halves of letters.
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
    """Whether it is a pipe, a terminal, /dev/stdout or another device: no file that could be lost or replaced."""
    return path.parent in STREAMS or (path.exists() and not (path.is_file() or path.is_dir()))


def target_of(path: Path) -> Path:
    """What is written if this name is: where it is a symbolic link, the file that this leads to, there or not.

    Raises:
        OSError: for links that lead to each other in a circle.
    """
    if is_stream(path) or not path.is_symlink():
        return path
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(ELOOP, os.strerror(ELOOP))
    return target


def write_bytes(content: bytes, path: Path) -> None:
    """The same for what is no text.

    Raises:
        InputError: as `write_text`.
    """
    try:
        _put(content, path)
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror}; choose another place with -o") from error


def write_cached(document: Mapping[str, Any], path: Path) -> None:
    """Write a file of the cache whole or not at all, and the folders above it where there are none.

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
    """Around what is made of a file of the cache, which an older or foreign program may have written.

    Args:
        what: that the file is, for messages.
        path: of the file.
        again: what to do once it is deleted.

    Raises:
        InputError: if something in it is missing, or is not what it should be.
    """
    try:
        yield
    except DAMAGED as error:
        raise InputError(f"the {what} '{path}' is damaged or foreign ({error}); delete it and {again} again") from error


def _put(content: bytes, path: Path) -> None:
    """Write a file whole or not at all.

    Raises:
        OSError: if it cannot be written; what was there is still there, and nothing beside it.
    """
    if is_stream(path):
        with _stream(path) as stream:
            stream.write(content)
        return
    path = target_of(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


def _stream(path: Path) -> BinaryIO:
    """A pipe or device to write to; what this process has open, such as /dev/stdout, goes on where that stands."""
    number = {"stdout": "1", "stderr": "2"}.get(path.name, path.name) if path.parent in STREAMS else ""
    if number.isdigit():
        return os.fdopen(os.dup(int(number)), "wb")
    return path.open("wb")


def _op_to_dict(op: Op) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": op.name,
        "kind": op.kind,
        "inputs": list(op.inputs),
        "outputs": list(op.outputs),
    }
    if op.module:
        document["module"] = op.module
    if op.attrs:
        document["attrs"] = dict(op.attrs)
    if op.members:
        document["members"] = list(op.members)
    if op.footprint is not None:
        document["footprint"] = footprint_to_dict(op.footprint)
    return document


def _op_from_dict(document: Mapping[str, Any]) -> Op:
    footprint = document.get("footprint")
    return Op(
        name=document["name"],
        kind=document["kind"],
        inputs=tuple(document["inputs"]),
        outputs=tuple(document["outputs"]),
        module=document.get("module", ""),
        attrs={key: _frozen(value) for key, value in document.get("attrs", {}).items()},
        members=tuple(document.get("members", ())),
        footprint=None if footprint is None else footprint_from_dict(footprint),
    )


def _frozen(value: Any) -> Attr:
    """JSON's lists as tuples, all the way down."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
