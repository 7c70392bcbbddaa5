"""The files with the weights of an .onnx file (ONNX's external data): which there are, and what they hold."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # protobuf ships no types
from onnx import GraphProto, TensorProto, external_data_helper, helper

from graphs.importers.onnx.control_flow import graphs_of

PER_BYTE: dict[int, int] = {
    TensorProto.INT4: 2,
    TensorProto.UINT4: 2,
    TensorProto.FLOAT4E2M1: 2,
    TensorProto.INT2: 4,
    TensorProto.UINT2: 4,
}
"""Elements in a byte of a file, of the types that share bytes."""


def data_files(path: Path) -> tuple[Path, ...]:
    """The files, sorted by name; none for a file that is no ONNX file, which the import refuses."""
    try:
        model = onnx.load(path, "protobuf", load_external_data=False)
    except (OSError, DecodeError):
        return ()
    names = {external_data_helper.ExternalDataInfo(tensor).location for tensor in held_outside(model.graph)}
    return tuple(path.parent / name for name in sorted(names))


def held_outside(graph: GraphProto) -> Iterator[TensorProto]:
    """Yield the weights and constants that other files hold, including those of branches and loop bodies."""
    for inner in graphs_of(graph):
        constants = (t for node in inner.node for each in node.attribute for t in (each.t, *each.tensors))
        yield from filter(external_data_helper.uses_external_data, (*inner.initializer, *constants))


def read_outside(tensor: TensorProto, folder: Path) -> np.ndarray:
    """Return a tensor's elements from a file in the model's folder, mapped into memory, so that they are read on use.

    Types of which several elements share a byte come as bytes.
    Raise ValueError, OSError or onnx.checker.ValidationError if the file lies elsewhere, can't be read or is too short.
    """
    info = external_data_helper.ExternalDataInfo(tensor)
    probe = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", info.location), ("offset", str(info.offset or 0)), ("length", "0")):
        probe.external_data.add(key=key, value=value)
    external_data_helper.load_external_data_for_tensor(probe, str(folder))  # refuses links and other folders
    dtype, shape = helper.tensor_dtype_to_np_dtype(tensor.data_type), tuple(tensor.dims)
    if tensor.data_type in PER_BYTE:
        dtype, shape = np.dtype(np.uint8), (-(-math.prod(shape) // PER_BYTE[tensor.data_type]),)
    n_bytes = math.prod(shape) * dtype.itemsize
    if info.length not in (None, n_bytes):
        raise ValueError(f"tensor {tensor.name!r} {list(shape)} has {n_bytes} bytes, and the file says {info.length}")
    if n_bytes == 0:
        return np.empty(shape, dtype)
    array = np.memmap(folder / info.location, dtype, "c", info.offset or 0, shape)
    return array if array.flags.aligned else array.copy()
