"""ONNX tensors and data types as PyTorch knows them."""

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
    """PyTorch's name of an ONNX element type.

    Args:
        onnx_type: a value of `TensorProto.DataType`.
        owner: who has that type, for the message.

    Raises:
        InputError: PyTorch can't compute with that type (strings, 4- and 8-bit formats, complex numbers).
    """
    if onnx_type not in DTYPES:
        known = {number: name.lower() for name, number in TensorProto.DataType.items()}
        raise InputError(
            f"{owner} has the element type {known.get(onnx_type, onnx_type)}, which the importer can't compute with; "
            f"export the model in float32 or float16"
        )
    return DTYPES[onnx_type]


def tensor_of(proto: TensorProto) -> torch.Tensor:
    """The value of an ONNX tensor, in memory of its own.

    Raises:
        InputError: an element type that PyTorch can't compute with.
    """
    dtype = dtype_of(proto.data_type, f"tensor {proto.name!r}")
    array = numpy_helper.to_array(proto)
    if dtype is torch.bfloat16:  # numpy has no such type of its own: go by the bits
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))  # np.array copies: what onnx returns may be read-only


def to_dtype(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor with elements of that type; itself if they are, so that nothing is recorded."""
    return x if x.dtype == dtype else x.to(dtype)


def to_shape(x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The tensor with dimensions of size 1 repeated; itself if there is nothing to repeat."""
    return x if x.shape == tuple(shape) else x.expand(*shape)
