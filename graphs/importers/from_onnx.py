"""Imports an ONNX file as a PyTorch module, which is then imported like any other module, with example inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from onnx import GraphProto, TensorShapeProto
from torch import nn

from graphs.common.errors import InputError
from graphs.importers.onnx.fold import FoldedGraph, fold
from graphs.importers.onnx.module import OnnxModel
from graphs.importers.onnx.operators.registry import dtype_of
from graphs.importers.onnx.reading import opset_of, read_onnx

_KEEPS_INTEGERS = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Transpose"})


SEED = 0


@dataclass(frozen=True)
class Input:
    """A declared input; every dimension is a number, a symbol, or "" if the file has neither."""

    name: str
    dims: tuple[int | str, ...]
    dtype: torch.dtype


def declared_inputs(graph: GraphProto) -> list[Input]:
    """The inputs that a caller has to give, without the weights, which files up to IR version 3 list as inputs, too.

    Raise InputError for an input that is no tensor, or has elements with which PyTorch can't compute.
    """
    weights = {initializer.name for initializer in graph.initializer}
    inputs = []
    for info in graph.input:
        tensor = info.type.tensor_type
        if info.name in weights:
            continue
        if info.type.WhichOneof("value") != "tensor_type":
            raise InputError(f"input {info.name!r} is no tensor; export the model with tensors as inputs")
        if not tensor.HasField("shape"):
            raise InputError(f"input {info.name!r} has no shape; export the model with one")
        inputs.append(Input(info.name, shape_dims(tensor.shape), dtype_of(tensor.elem_type, f"input {info.name!r}")))
    return inputs


def shape_dims(shape: TensorShapeProto) -> tuple[int | str, ...]:
    """The dimensions of a shape, as numbers or symbols; some exporters write −1 for "any"."""
    return tuple(
        dim.dim_value if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0 else dim.dim_param
        for dim in shape.dim
    )


def first_dimension(inputs: Sequence[Input]) -> int | None:
    """The first dimension of all inputs, if it is the same number for all."""
    first = {declared.dims[0] if declared.dims else None for declared in inputs}
    number = first.pop() if len(first) == 1 else None
    return number if isinstance(number, int) else None


def check_sizes(inputs: Sequence[Input], batch: int | None, sizes: Mapping[str, int]) -> None:
    """Check the sizes that a user gives for symbols.

    Raise InputError for an unknown symbol, a size below 1, or a size that contradicts the batch.
    """
    symbols = dict.fromkeys(dim for declared in inputs for dim in declared.dims if isinstance(dim, str) and dim)
    for name, size in sizes.items():
        if name not in symbols:
            names = ", ".join(map(repr, symbols)) or "none"
            raise InputError(f"'{name}' is no symbolic dimension of the inputs, which have {names}; leave its size out")
        if size < 1:
            raise InputError(f"a size of {size} is given for '{name}'; it must be 1 or more")
        if name == _first(inputs) and batch not in (None, size):
            raise InputError(f"'{name}' is the batch, for which {batch} and {size} are asked; leave one of them out")


def sizes_like(inputs: Sequence[Input], shapes: Sequence[Sequence[int]], batch: int | None) -> dict[str, int]:
    """The sizes of symbols for inputs of these shapes; empty if the shapes do not fit the inputs.

    First dimensions are left out if the batch differs.
    """
    if [len(declared.dims) for declared in inputs] != [len(shape) for shape in shapes]:
        return {}
    same_batch = batch in (None, next((shape[0] for shape in shapes if shape), None))
    return {
        dim: size
        for declared, shape in zip(inputs, shapes, strict=True)
        for axis, (dim, size) in enumerate(zip(declared.dims, shape, strict=True))
        if isinstance(dim, str) and dim and (axis > 0 or same_batch)
    }


def shapes_for(inputs: Sequence[Input], batch: int | None, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The shape of every input.

    A symbolic first dimension is the batch (1 by default), and so is the same symbol elsewhere. If all first dimensions
    are the same number, the batch replaces it. Raise InputError for a symbol without a size, or first dimensions that
    no batch can replace.
    """
    batch_symbols = {declared.dims[0] for declared in inputs if declared.dims and isinstance(declared.dims[0], str)}
    sizes = {str(symbol): batch or 1 for symbol in batch_symbols if symbol} | dict(sizes)
    fixed = first_dimension(inputs)
    if batch is not None and not batch_symbols and fixed is None and _first(inputs) != batch:
        first = ", ".join(f"{declared.name!r} {list(declared.dims)}" for declared in inputs)
        raise InputError(
            f"a batch of {batch} is asked for, but the inputs share no first dimension: {first}; "
            f"leave the batch out, or export the model with a dynamic first dimension"
        )
    shapes = {}
    for declared in inputs:
        dims = [_size(declared, axis, batch or 1, sizes) for axis in range(len(declared.dims))]
        if batch is not None and fixed is not None:
            dims[0] = batch
        shapes[declared.name] = tuple(dims)
    return shapes


def _first(inputs: Sequence[Input]) -> int | str | None:
    """The first dimension of the first input that has dimensions."""
    return next((declared.dims[0] for declared in inputs if declared.dims), None)


def _size(declared: Input, axis: int, batch: int, sizes: Mapping[str, int]) -> int:
    dim = declared.dims[axis]
    if isinstance(dim, int):
        return dim
    if dim in sizes:
        return sizes[dim]
    if axis == 0:
        return batch
    named = f"{dim!r}" if dim else "without a name"
    way_out = f"give its size, as --size {dim}=128 does, or export" if dim else "export"
    raise InputError(
        f"dimension {axis} of input {declared.name!r} is symbolic ({named}); {way_out} the model with a number there"
    )


def example(shape: Sequence[int], dtype: torch.dtype, below: int, order: int) -> torch.Tensor:
    """Deterministic values of an input.

    Floats are in [0, 1), where logarithms and roots exist. Integers are random if they index a table, and 1 otherwise,
    which is a mask that hides nothing. Integers are below ``below``, if that is not 0; the number of the input,
    ``order``, seeds its values.
    """
    generator = torch.Generator().manual_seed(SEED + order)
    if dtype.is_floating_point:
        return torch.rand(shape, generator=generator, dtype=torch.float64).to(dtype)
    if below:
        return torch.randint(below, shape, generator=generator).to(dtype)
    return torch.ones(shape, dtype=dtype)


def onnx_module(
    path: Path,
    batch: int | None = None,
    sizes: Mapping[str, int] | None = None,
    like: Sequence[Sequence[int]] | None = None,
) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A module in evaluation mode that computes the graph of an ONNX file, and a deterministic example for each input.

    Every node that depends on the inputs becomes a submodule under its name ("/layer1/conv1/Conv" is
    `layer1.conv1.Conv`), with its weights as parameters that require no gradient; all other nodes are computed here.
    `torch.export.export(strict=False)` can trace the module.

    ``batch`` is the first dimension of every input, by default the file's, or 1; ``sizes`` are those of symbolic
    dimensions, and ``like`` are shapes of the inputs at an earlier import, for the symbols that ``sizes`` leaves out.
    Raise InputError if the file cannot be read, uses unsupported operators, has a symbolic dimension without a size, or
    does not allow that batch.
    """
    if batch is not None and batch < 1:
        raise InputError(f"a batch of {batch} is asked for; it must be 1 or more")
    model = read_onnx(path)
    inputs = declared_inputs(model.graph)
    check_sizes(inputs, batch, sizes or {})
    shapes = shapes_for(inputs, batch, {**sizes_like(inputs, like or (), batch), **(sizes or {})})
    fixed = first_dimension(inputs)
    rebatch = (fixed, batch) if fixed is not None and batch is not None and batch != fixed else None
    metas = {
        declared.name: torch.empty(shapes[declared.name], dtype=declared.dtype, device="meta") for declared in inputs
    }
    program = fold(model.graph, opset_of(model), metas, rebatch, path.parent)
    if rebatch is not None:
        _check_batch(model.graph, program, *rebatch)
    examples = (
        example(shapes[declared.name], declared.dtype, _table_size(program, key), order)
        for order, (declared, key) in enumerate(zip(inputs, program.inputs, strict=True))
    )
    return OnnxModel(program).eval(), tuple(examples)


def _check_batch(graph: GraphProto, program: FoldedGraph, old: int, new: int) -> None:
    """Check that an output with the file's batch has the new batch now."""
    for declared, key in zip(graph.output, program.outputs, strict=True):
        dims, shape = shape_dims(declared.type.tensor_type.shape), program.shapes[key]
        if dims[:1] == (old,) and shape[:1] != (new,):
            raise InputError(
                f"a batch of {new} is asked for, but output {declared.name!r} comes out as {list(shape)}: the file "
                f"fixes the batch at {old}; leave the batch out, or export the model with a dynamic first dimension"
            )


def _table_size(program: FoldedGraph, key: str) -> int:
    """The fewest rows of the tables that an input indexes; 0 if it indexes none."""
    positions, n_rows = {key}, []
    for step in program.steps:
        if positions.intersection(step.reads[:1]) and step.node.kind in _KEEPS_INTEGERS:
            positions.update(step.outputs)
        if step.node.kind == "Gather" and step.operands[1] in positions:
            table = program.constants.get(step.reads[0])
            if table is not None:
                n_rows.append(table.shape[step.node.integer("axis", 0)])
    return min(n_rows, default=0)
