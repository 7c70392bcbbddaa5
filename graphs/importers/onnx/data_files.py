"""Finds the files with the weights of an .onnx file (ONNX's external data)."""

from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # protobuf ships no types
from onnx import GraphProto, TensorProto, external_data_helper


def data_files(path: Path) -> tuple[Path, ...]:
    """The files, sorted by name; none for a file that is no ONNX file, which the import refuses."""
    try:
        model = onnx.load(path, "protobuf", load_external_data=False)
    except (OSError, DecodeError):
        return ()
    held = filter(external_data_helper.uses_external_data, _tensors(model.graph))
    names = {external_data_helper.ExternalDataInfo(tensor).location for tensor in held}
    return tuple(path.parent / name for name in sorted(names))


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """All weights and constants, including those of branches and loop bodies."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors(inner)
