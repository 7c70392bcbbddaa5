"""Imports an ONNX file as a PyTorch module, which is then imported like any other module."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from onnx import GraphProto
from torch import nn

from graphs.errors import InputError
from graphs.importers.onnx.fold import FoldedGraph, fold
from graphs.importers.onnx.inputs import (
    Input,
    check_sizes,
    declared_inputs,
    dims_of,
    example,
    first_dimension,
    shapes_for,
    sizes_like,
)
from graphs.importers.onnx.module import OnnxModel
from graphs.importers.onnx.reading import opset_of, read

_KEEPS_INTEGERS = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Transpose"})


def onnx_module(
    path: Path,
    batch: int | None = None,
    sizes: Mapping[str, int] | None = None,
    like: Sequence[Sequence[int]] | None = None,
) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A module that computes the graph of an ONNX file, and example inputs.

    Every node that depends on the inputs becomes a submodule under its name ("/layer1/conv1/Conv" is
    `layer1.conv1.Conv`), with its weights as parameters that require no gradient; all other nodes are computed here.
    `torch.export.export(strict=False)` can trace the module.

    Args:
        path: the .onnx file, with its external data in the same folder.
        batch: samples per run, the first dimension of every input; None for the file's batch, or 1.
        sizes: sizes of symbolic dimensions, by symbol.
        like: shapes of the inputs at an earlier import, for the symbols that ``sizes`` leaves out.

    Returns:
        The module in evaluation mode, and one deterministic example for each input.

    Raises:
        InputError: if the file cannot be read, uses unsupported operators, has a symbolic dimension without a size, or
            does not allow that batch.
    """
    if batch is not None and batch < 1:
        raise InputError(f"a batch of {batch} is asked for; it must be 1 or more")
    model = read(path)
    inputs = declared_inputs(model.graph)
    check_sizes(inputs, batch, sizes or {})
    shapes = shapes_for(inputs, batch, {**sizes_like(inputs, like or (), batch), **(sizes or {})})
    fixed = first_dimension(inputs)
    rebatch = (fixed, batch) if fixed is not None and batch is not None and batch != fixed else None
    metas = {
        declared.name: torch.empty(shapes[declared.name], dtype=declared.dtype, device="meta") for declared in inputs
    }
    program = fold(model.graph, opset_of(model), metas, rebatch)
    if rebatch is not None:
        _check_batch(model.graph, program, *rebatch)
    return OnnxModel(program).eval(), _examples(inputs, shapes, program)


def _check_batch(graph: GraphProto, program: FoldedGraph, old: int, new: int) -> None:
    """Check that an output with the file's batch has the new batch now."""
    for declared, key in zip(graph.output, program.outputs, strict=True):
        dims, shape = dims_of(declared.type.tensor_type.shape), program.shapes[key]
        if dims[:1] == (old,) and shape[:1] != (new,):
            raise InputError(
                f"a batch of {new} is asked for, but output {declared.name!r} comes out as {list(shape)}: the file "
                f"fixes the batch at {old}; leave the batch out, or export the model with a dynamic first dimension"
            )


def _examples(
    inputs: list[Input], shapes: Mapping[str, tuple[int, ...]], program: FoldedGraph
) -> tuple[torch.Tensor, ...]:
    return tuple(
        example(shapes[declared.name], declared.dtype, _table_size(program, key), order)
        for order, (declared, key) in enumerate(zip(inputs, program.inputs, strict=True))
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
