"""Converts ONNX tensors and dtypes to PyTorch's."""

from collections.abc import Sequence

import numpy as np
import torch
from onnx import TensorProto, numpy_helper

from graphs.errors import InputError

DTYPES: dict[int, torch.dtype] = {
    TensorProto.FLOAT: torch.float32,
    TensorProto.DOUBLE: torch.float64,
    TensorProto.FLOAT16: torch.float16,
    TensorProto.BFLOAT16: torch.bfloat16,
    TensorProto.BOOL: torch.bool,
    TensorProto.INT8: torch.int8,
    TensorProto.INT16: torch.int16,
    TensorProto.INT32: torch.int32,
    TensorProto.INT64: torch.int64,
    TensorProto.UINT8: torch.uint8,
    TensorProto.UINT16: torch.uint16,
    TensorProto.UINT32: torch.uint32,
    TensorProto.UINT64: torch.uint64,
}


def dtype_of(onnx_type: int, owner: str) -> torch.dtype:
    """PyTorch's dtype for an ONNX element type.

    Messages name the owner of the type.

    Raises:
        InputError: if PyTorch can't compute with that type (strings, 4- and 8-bit formats, complex numbers).
    """
    if onnx_type not in DTYPES:
        names = {number: name.lower() for name, number in TensorProto.DataType.items()}
        raise InputError(
            f"{owner} has the element type {names.get(onnx_type, onnx_type)}, which the importer can't compute with; "
            f"export the model in float32 or float16"
        )
    return DTYPES[onnx_type]


def tensor_of(proto: TensorProto) -> torch.Tensor:
    """A copy of the value of an ONNX tensor.

    Raises:
        InputError: if PyTorch can't compute with the element type.
    """
    dtype = dtype_of(proto.data_type, f"tensor {proto.name!r}")
    array = numpy_helper.to_array(proto)
    if dtype is torch.bfloat16:  # numpy has no such dtype, so its bits are copied
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))  # np.array copies, since onnx may return a read-only array


def to_dtype(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor in a dtype; the tensor itself if it has the dtype, so that no operator is recorded."""
    return x if x.dtype == dtype else x.to(dtype)


def to_shape(x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The tensor expanded to a shape; the tensor itself if it has the shape."""
    return x if x.shape == tuple(shape) else x.expand(*shape)
