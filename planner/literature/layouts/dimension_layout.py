"""LayoutProblem: tensors with named dimensions, operations in order, and a mesh; a layout splits dimensions over it.

::

    {"cases": [{"name": "product", "mesh": {"m1": 4, "m2": 2}, "bytes_each": 4,
                "tensors": {"x": {"a": 10, "b": 5}, ..}, "unsplittable": [], "final": [],
                "ops": [{"inputs": ["x", "y"], "outputs": ["z"]}, ..]}, ..]}

A layout gives some dimensions, wherever they occur, a mesh dimension each, whose size divides every size of the
dimension; the dimensions of one operation have different ones. A tensor takes its entries, divided by the mesh sizes
and rounded up. When an operation runs, its outputs and all that is still needed are in memory.

Source: Shazeer et al., Mesh-TensorFlow, NeurIPS 2018; https://github.com/tensorflow/mesh, ``auto_mtf``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from operator import mul
from typing import Any, NamedTuple

import numpy as np

from graphs.common.arrays import Ints
from graphs.common.brief import Brief
from graphs.common.errors import InputError
from graphs.common.json_object import JsonObject

DimensionLayout = Mapping[str, str]
"""A mesh dimension for each dimension that is split."""


class LayoutOperation(NamedTuple):
    """The names of the tensors that an operation reads and writes."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class LayoutProblem(Brief):
    """A program with named dimensions, and a mesh."""

    name: str  # of the case
    mesh: Mapping[str, int]  # the size of each mesh dimension
    bytes_each: int  # of an entry
    tensors: Mapping[str, Mapping[str, int]]  # the size of each dimension of each tensor
    operations: tuple[LayoutOperation, ...]  # in the order in which they run
    unsplittable: frozenset[str]  # dimensions that stay whole
    final: frozenset[str]  # tensors that are kept

    @cached_property
    def dimensions(self) -> tuple[str, ...]:
        """All dimensions, by the entries of the tensors that have them, descending."""
        entries: dict[str, int] = {}
        for sizes in self.tensors.values():
            for name in sizes:
                entries[name] = entries.get(name, 0) + prod(sizes.values())
        return tuple(sorted(entries, key=lambda name: (-entries[name], name)))

    @cached_property
    def together(self) -> Mapping[str, frozenset[str]]:
        """For each dimension, the other dimensions of the operations that have it."""
        found: dict[str, set[str]] = {name: set() for name in self.dimensions}
        for operation in self.operations:
            names = {name for tensor in operation.inputs + operation.outputs for name in self.tensors[tensor]}
            for name in names:
                found[name] |= names - {name}
        return {name: frozenset(others) for name, others in found.items()}

    @cached_property
    def shapes(self) -> tuple[Mapping[str, int], ...]:
        """The different sizes that tensors have."""
        return tuple(dict(shape) for shape in dict.fromkeys(map(_shape, self.tensors.values())))

    @cached_property
    def live(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of tensors of each shape in memory while an operation runs, without dominated ones."""
        numbers = {_shape(sizes): number for number, sizes in enumerate(self.shapes)}
        number = {tensor: numbers[_shape(sizes)] for tensor, sizes in self.tensors.items()}
        last = {tensor: step for step, (inputs, _) in enumerate(self.operations) for tensor in inputs}
        held: set[str] = set()
        counts = []
        for step, (inputs, outputs) in enumerate(self.operations):
            held |= set(outputs)
            counts.append(np.bincount([number[tensor] for tensor in held], minlength=len(numbers)))
            done = {tensor for tensor in inputs if last[tensor] == step}
            unused = {tensor for tensor in outputs if tensor not in last}
            held -= (done | unused) - self.final
        most: list[Ints] = []
        for row in sorted(counts, key=sum, reverse=True):
            if not any((other >= row).all() for other in most):
                most.append(row)
        return tuple(tuple(row.tolist()) for row in most)

    def splits(self, dimension: str) -> list[str]:
        """Return the mesh dimensions that divide all sizes of a dimension."""
        if dimension in self.unsplittable:
            return []
        sizes = [own[dimension] for own in self.tensors.values() if dimension in own]
        return [name for name, parts in self.mesh.items() if all(size % parts == 0 for size in sizes)]

    def peak_bytes(self, layout: DimensionLayout) -> int:
        """Return the most bytes that a device needs at any time."""
        return self.most_bytes([prod(self.mesh[layout[d]] for d in sizes if d in layout) for sizes in self.shapes])

    def most_bytes(self, parts: Sequence[int]) -> int:
        """Return the most bytes that a device needs if each shape is split into the given number of parts."""
        each = [-(-prod(sizes.values()) // n) for sizes, n in zip(self.shapes, parts, strict=True)]
        return self.bytes_each * max((sum(map(mul, counts, each)) for counts in self.live), default=0)


def _shape(sizes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(sizes.items()))


def layout_problems(document: Mapping[str, Any]) -> list[LayoutProblem]:
    """Return the cases of a file.

    Raises:
        InputError: if a field is missing or of the wrong kind, or an operation names an unknown tensor.
    """
    top = JsonObject("the file", document)
    return [
        _problem(JsonObject(f"case number {position + 1}", content))
        for position, content in enumerate(top.records("cases"))
    ]


def _problem(case: JsonObject) -> LayoutProblem:
    mesh, tensors = case.object("mesh"), case.object("tensors")
    sizes = {name: _sizes(tensors.object(name)) for name in tensors.content}
    operations = []
    for position, content in enumerate(case.records("ops")):
        record = JsonObject(f"operation number {position + 1} of {case.where}", content)
        ends = [tuple(map(str, record.records(key))) for key in ("inputs", "outputs")]
        unknown = next((tensor for tensor in ends[0] + ends[1] if tensor not in sizes), None)
        if unknown is not None:
            raise InputError(
                f"{record.where} names the tensor {unknown!r}, which {case.where} has not; add it to tensors"
            )
        operations.append(LayoutOperation(*ends))
    return LayoutProblem(
        name=str(case.label("name") or case.where),
        mesh=_sizes(mesh),
        bytes_each=case.count("bytes_each", 1),
        tensors=sizes,
        operations=tuple(operations),
        unsplittable=frozenset(map(str, case.records("unsplittable"))),
        final=frozenset(map(str, case.records("final"))),
    )


def _sizes(record: JsonObject) -> dict[str, int]:
    return {name: record.count(name, 1) for name in record.content}
