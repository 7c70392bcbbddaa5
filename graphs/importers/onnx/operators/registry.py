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

    Messages name the owner of the type. Raise InputError if PyTorch can't compute with that type (strings, 4- and 8-bit
    formats, complex numbers).
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
    else:
        try:
            array = np.array(numpy_helper.to_array(proto))  # a copy, since onnx may return a read-only array
        except ValueError as error:
            raise InputError(
                f"tensor {proto.name!r} has not the elements that its shape {list(proto.dims)} asks for: "
                f"{first_line(error)}; the file is damaged, export the model again"
            ) from error
    if dtype is torch.bfloat16:  # numpy has no such dtype, so its bits are taken
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def node_kind(proto: NodeProto) -> str:
    """The kind of a node: "Gelu" of the standard, "com.microsoft::Gelu" of another domain."""
    return str(proto.op_type) if proto.domain in STANDARD else f"{proto.domain}::{proto.op_type}"


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

    def wants(self, output: int) -> bool:
        """Whether the output with this index has a reader."""
        return output < len(self.wanted) and self.wanted[output]

    def unsigned(self, types: Sequence[torch.dtype | None]) -> list[torch.dtype | None]:
        """For each output the unsigned type of the operand whose type it has, or None if that is no unsigned one.

        ``types`` are those of the operands that are tensors.
        """
        if "::" in self.kind:
            raise self.unsupported("an operand of uint16, uint32 or uint64")
        schema = defs.get_schema(self.kind, self.opset)
        variables = [parameter.type_str for parameter in schema.inputs]
        variables += variables[-1:] * (len(types) - len(variables))  # the last one may stand for any number
        found = {variable: dtype for variable, dtype in zip(variables, types, strict=False) if dtype in UNSIGNED}
        results = [found.get(parameter.type_str) for parameter in schema.outputs]
        return results + results[-1:] * (len(self.wanted) - len(results))

    def unsupported(self, what: str) -> InputError:
        """The error for an unsupported variant of an operator."""
        return InputError(
            f"node {self.name!r} ({self.kind}, opset {self.opset}): {what} is not supported; export the PyTorch model "
            f"itself (.pt2 or package.module:factory), or add it to graphs/importers/onnx/operators"
        )


Compute = Callable[..., Any]  # (node, operand 0, operand 1, ...) -> a tensor, or a tuple with one per output
Prepare = Callable[[Sequence[torch.Tensor | None]], dict[str, torch.Tensor]]  # weights -> weights, by name


@dataclass(frozen=True)
class Operator:
    """The computation of one kind of node.

    Operands in ``known`` determine the result's shape. A number in ``scalars`` stays one, as in handwritten PyTorch
    (x / 8.0), unless the result would lose its dtype. An attribute that is neither read nor ignored is an error.
    """

    compute: Compute  # function from the node and its operands (None if omitted) to a tensor or a tuple of them
    known: tuple[int, ...] = ()  # positions of operands passed as Python lists, which the file must determine
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
        return tuple(
            x if dtype is None else to_dtype(x, dtype) for x, dtype in zip(results, node.unsigned(types), strict=False)
        )


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
