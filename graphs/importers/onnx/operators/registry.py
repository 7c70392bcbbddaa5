"""The table of operators, the nodes with their attributes, and tensors and dtypes in PyTorch's form."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnx import NodeProto, TensorProto, defs, external_data_helper, numpy_helper

from graphs.common.errors import InputError, first_line
from graphs.importers.onnx.data_files import read_outside

STANDARD = ("", "ai.onnx")

ORIGINS = {
    "com.microsoft": "onnxruntime's optimizer or quantizer, or onnxruntime-genai wrote this, so give the file from "
    "before, let it write with SessionOptions.graph_optimization_level = ORT_DISABLE_ALL, or write standard operators "
    "with optimum-cli export onnx",
    "ai.onnx.ml": "it is of classical machine learning, which is no network",
    "ai.onnx.preview": "it is a preview, so export the model with operators of the standard",
    "ai.onnx.preview.training": "it is of training, so export the model for inference",
}
"""By domain: where its operators come from, and what undoes them."""

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
    TensorProto.FLOAT8E4M3FN: torch.float8_e4m3fn,
    TensorProto.FLOAT8E4M3FNUZ: torch.float8_e4m3fnuz,
    TensorProto.FLOAT8E5M2: torch.float8_e5m2,
    TensorProto.FLOAT8E5M2FNUZ: torch.float8_e5m2fnuz,
    TensorProto.FLOAT8E8M0: torch.float8_e8m0fnu,
    TensorProto.INT4: torch.int8,
    TensorProto.UINT4: torch.uint8,
    TensorProto.INT2: torch.int8,
    TensorProto.UINT2: torch.uint8,
    TensorProto.FLOAT4E2M1: torch.float8_e4m3fn,  # has all of its 15 numbers
}

NARROW: dict[int, tuple[int, int]] = {
    TensorProto.INT4: (-8, 7),
    TensorProto.UINT4: (0, 15),
    TensorProto.INT2: (-2, 1),
    TensorProto.UINT2: (0, 3),
    TensorProto.FLOAT4E2M1: (-6, 6),
}
"""The least and the largest number of the types of fewer than 8 bits; here a byte holds each element."""


def dtype_of(onnx_type: int, owner: str) -> torch.dtype:
    """PyTorch's dtype for an ONNX element type.

    Messages name the owner of the type. Raise InputError if PyTorch can't compute with that type (strings, floats
    of fewer than 8 bits, complex numbers).
    """
    if onnx_type not in DTYPES:
        names = {number: name.lower() for name, number in TensorProto.DataType.items()}
        raise InputError(
            f"{owner} has the element type {names.get(onnx_type, onnx_type)}, which the importer can't compute with; "
            f"export the model in float32 or float16"
        )
    return DTYPES[onnx_type]


def tensor_of(proto: TensorProto, folder: Path | None = None) -> torch.Tensor:
    """The value of an ONNX tensor, whose elements may be in a file of a folder.

    Raise InputError if PyTorch can't compute with the element type, or elements are missing.
    """
    dtype = dtype_of(proto.data_type, f"tensor {proto.name!r}")
    if folder is not None and external_data_helper.uses_external_data(proto):
        array = read_outside(proto, folder)
        if proto.data_type in NARROW:
            packed = TensorProto(data_type=proto.data_type, dims=proto.dims, raw_data=array.tobytes())
            array = numpy_helper.to_array(packed)
    else:
        try:
            array = np.array(numpy_helper.to_array(proto))  # a copy, since onnx may return a read-only array
        except ValueError as error:
            raise InputError(
                f"tensor {proto.name!r} has not the elements that its shape {list(proto.dims)} asks for: "
                f"{first_line(error)}; the file is damaged, export the model again"
            ) from error
    if proto.data_type in NARROW:
        return torch.from_numpy(array.astype(np.float32)).to(dtype)
    if dtype is torch.bfloat16 or dtype in FLOAT8:  # numpy has no such dtypes, so their bits are taken
        return torch.from_numpy(array.view(f"i{dtype.itemsize}")).view(dtype)
    return torch.from_numpy(array)


def node_kind(proto: NodeProto) -> str:
    """The kind of a node: "Gelu" of the standard, "com.microsoft::Gelu" of another domain."""
    return str(proto.op_type) if proto.domain in STANDARD else f"{proto.domain}::{proto.op_type}"


FLOAT8 = frozenset(dtype for dtype in DTYPES.values() if dtype.is_floating_point and dtype.itemsize == 1)
"""The types of 8 bits, which PyTorch converts and does not compute with."""

UNSIGNED = frozenset({torch.uint16, torch.uint32, torch.uint64})
"""The types that PyTorch holds and hardly computes with. Operators see them as int64, which holds the same bits."""

_BY_ORDER = frozenset(
    re.findall(
        r"\w+",
        "Abs ArgMax ArgMin Clip Div Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Pow PRelu ReduceMax "
        "ReduceMean ReduceMin Relu Sign TopK",
    )
)
"""Operators for which the numbers of uint64 from 2^63 on would be negative as int64."""


def to_dtype(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor in a dtype; the tensor itself if it has the dtype, so that no operator is recorded."""
    return x if x.dtype == dtype else x.to(dtype)


def to_float8(x: torch.Tensor, dtype: torch.dtype, saturate: bool) -> torch.Tensor:
    """The tensor in a type of 8 bits; what is beyond its ends becomes the nearest end, or infinite or NaN."""
    largest, x = torch.finfo(dtype).max, to_dtype(x, torch.float32)
    if saturate:
        x = torch.clamp(x, -largest, largest)
    elif dtype is torch.float8_e4m3fn:  # has no infinity, and PyTorch saturates; 464 is halfway to the next number
        x = torch.where(x.abs() > 464, float("nan"), x)
    return x.to(dtype)


def to_narrow(x: torch.Tensor, onnx_type: int) -> torch.Tensor:
    """The tensor in a type of fewer than 8 bits: the low bits of whole numbers, the nearest float of 4 bits."""
    low, high = NARROW[onnx_type]
    if onnx_type == TensorProto.FLOAT4E2M1:  # steps of 1/2 below 2, of 1 below 4, of 2 below 6
        x = torch.where(x.isnan(), 0.0, x.to(torch.float32))  # the type has no NaN
        step = torch.where(x.abs() < 2, 0.5, torch.where(x.abs() < 4, 1.0, 2.0))
        return torch.clamp(torch.round(x / step) * step, low, high).to(torch.float8_e4m3fn)
    return ((x.to(torch.int32) - low & high - low) + low).to(DTYPES[onnx_type])


def to_shape(x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The tensor expanded to a shape; the tensor itself if it has the shape."""
    return x if x.shape == tuple(shape) else x.expand(*shape)


class Attributes(dict[str, Any]):
    """The attributes of a node, which record the attributes that an operator has read."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or the default."""
        self.read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)


@dataclass(frozen=True)
class Node:
    """One node of an ONNX graph, as an operator sees it."""

    kind: str  # the operator, such as "Conv" or "com.microsoft::Gelu"
    name: str  # the node's name, or its first output's where the file gives none
    opset: int  # version of the file's operator set
    attributes: Attributes = field(default_factory=Attributes)  # plain Python values; tensors are PyTorch tensors
    wanted: tuple[bool, ...] = (True,)  # for every output that the node lists, whether it has a reader
    narrow: tuple[int | None, ...] = ()  # for every operand its ONNX type if that is one of `NARROW`

    def number(self, key: str, default: float) -> float:
        """A float attribute."""
        return float(self.attributes.get(key, default))

    def integer(self, key: str, default: int) -> int:
        """An integer attribute."""
        return int(self.attributes.get(key, default))

    def flag(self, key: str, default: bool = False) -> bool:
        """An integer attribute that means yes or no."""
        return bool(self.attributes.get(key, default))

    def integers(self, key: str, default: Sequence[int] = ()) -> list[int]:
        """An attribute that is a list of integers."""
        return [int(value) for value in self.attributes.get(key, default)]

    def text(self, key: str, default: str = "") -> str:
        """A string attribute."""
        return str(self.attributes.get(key, default))

    def axis(self, axis: int, rank: int) -> int:
        """The axis, counted from the front, of a tensor of this rank. Raise InputError if it has no such axis."""
        if not -rank <= axis < rank:
            raise InputError(
                f"node {self.name!r} ({self.kind}, opset {self.opset}): a tensor of {rank} axes has no axis {axis}; "
                "check the model with onnx.checker"
            )
        return axis % rank

    def wants(self, output: int) -> bool:
        """Whether the output with this index has a reader."""
        return output < len(self.wanted) and self.wanted[output]

    def inherited(self, types: Sequence[Any]) -> list[Any]:
        """For each output the type of the operand whose type it has by the standard, or None without such an operand.

        ``types`` has for each operand a type, or None if the type does not matter.
        """
        if "::" in self.kind:
            raise self.unsupported("an operand of uint16, uint32 or uint64")
        schema = defs.get_schema(self.kind, self.opset)
        variables = [parameter.type_str for parameter in schema.inputs]
        variables += variables[-1:] * (len(types) - len(variables))  # the last one may stand for any number
        found = {variable: each for variable, each in zip(variables, types, strict=False) if each is not None}
        results = [found.get(parameter.type_str) for parameter in schema.outputs]
        return results + results[-1:] * (len(self.wanted) - len(results))

    def unsupported(self, what: str) -> InputError:
        """The error for an unsupported variant of an operator."""
        origin = ORIGINS.get(self.kind.split("::")[0])
        return InputError(
            f"node {self.name!r} ({self.kind}, opset {self.opset}): {what} is not supported; "
            f"{f'{origin}; or ' if origin else ''}export the PyTorch model itself (.pt2 or package.module:factory), or "
            f"add it to graphs/importers/onnx/operators"
        )


Compute = Callable[..., Any]  # (node, operand 0, operand 1, ...) -> a tensor, or a tuple with one per output
Prepare = Callable[[Node, Sequence[torch.Tensor | None]], dict[str, torch.Tensor]]  # weights -> weights, by name


@dataclass(frozen=True)
class Operator:
    """The computation of one kind of node.

    Operands in ``known`` determine the result's shape. A number in ``scalars`` stays one, as in handwritten PyTorch
    (x / 8.0), unless the result would lose its dtype. An attribute that is neither read nor ignored is an error.
    """

    compute: Compute  # function from the node and its operands (None if omitted) to a tensor or a tuple of them
    known: tuple[int, ...] = ()  # positions of operands passed as Python lists, which the file must determine
    lists: tuple[int, ...] = ()  # positions of operands passed as Python lists if the file determines them
    scalars: tuple[int, ...] = ()  # positions of operands passed as Python numbers if they are known and of rank 0
    described: tuple[int, ...] = ()  # positions of operands of which only shape and dtype matter
    folded: bool = False  # whether every operand must be known when the file is read
    ignores: tuple[str, ...] = ()  # names of attributes that do not affect the computation here
    state: tuple[int, ...] = ()  # positions of operands that are running statistics, not trainable
    prepare: Prepare | None = None  # function from ONNX's weights to those of PyTorch's function; see `weights`
    weights: tuple[int, ...] = ()  # positions that `prepare` gets; its results follow the others, which count without
    arity: int = 0  # number of operands before the prepared weights, filled up with None; 0 without such weights
    holds: bool = False  # whether it takes unsigned operands as they are: it moves them, or only looks at their type

    def results(self, node: Node, *operands: Any) -> tuple[torch.Tensor | None, ...]:
        """The node's results from its operands, one for each output; None for one without a reader."""
        types = [operand.dtype if isinstance(operand, torch.Tensor) else None for operand in operands]
        if self.holds or UNSIGNED.isdisjoint(types):
            result = self.compute(node, *operands)
            return tuple(result) if isinstance(result, tuple | list) else (result,)
        if torch.uint64 in types and node.kind in _BY_ORDER:
            raise node.unsupported("an operand of uint64, whose large numbers PyTorch can't put in order,")
        signed = [x.to(torch.int64) if dtype in UNSIGNED else x for x, dtype in zip(operands, types, strict=True)]
        result = self.compute(node, *signed)
        results = result if isinstance(result, tuple | list) else (result,)
        wanted = node.inherited([dtype if dtype in UNSIGNED else None for dtype in types])
        return tuple(x if dtype is None else to_dtype(x, dtype) for x, dtype in zip(results, wanted, strict=False))


OPERATORS: dict[str, Operator] = {}


def operator(*kinds: str, **traits: Any) -> Callable[[Compute], Compute]:
    """Enter a function into the table under each of the kinds; the traits are the fields of `Operator`.

    Raise ValueError if a kind is in the table already.
    """

    def enter(compute: Compute) -> Compute:
        for kind in kinds:
            if kind in OPERATORS:
                raise ValueError(f"operator {kind!r} is in the table already; give each kind one function")
            OPERATORS[kind] = Operator(compute, **traits)
        return compute

    return enter


def enter_all(table: Mapping[str, Compute], **traits: Any) -> None:
    """Enter the functions of a table with the same traits."""
    for kind, compute in table.items():
        operator(kind, **traits)(compute)


def lift(function: Callable[..., Any]) -> Compute:
    """A function of the operands only, without the node's attributes."""
    return lambda _node, *operands: function(*operands)
