"""Sharding program: tensor operators in a topological order, and the meshes of devices that are to split them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from graphs.common.brief import Brief

BYTES = 4  # of a value
SOURCES = frozenset({"parameter", "constant"})
_ARITHMETIC = ("add", "and", "div", "divide", "maximum", "minimum", "multiply", "not", "or", "power", "subtract")
_FUNCTIONS = ("abs", "convert", "copy", "exp", "log", "negate", "rsqrt", "sign", "sqrt", "tanh")
ELEMENTWISE = frozenset({*_ARITHMETIC, *_FUNCTIONS, "compare", "select"})
KINDS = frozenset({*SOURCES, *ELEMENTWISE, "replicate", "dot", "broadcast", "transpose", "reshape", "reduce", "tuple"})

Shape = tuple[int, ...]


class MeshSplit(NamedTuple):
    """An axis of a tensor and the mesh axis that must split it."""

    axis: int
    mesh_axis: int


@dataclass(frozen=True)
class TensorOp(Brief):
    """An operator that writes one tensor."""

    name: str  # as messages call it
    key: int  # its id in the file
    kind: str  # one of `KINDS`
    inputs: tuple[int, ...]  # the positions of the operators that it reads
    shape: Shape  # of its output
    axes: tuple[int, ...] = ()  # of broadcast, transpose and reduce
    batch: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())  # of a dot, the batch axes of either input
    contract: tuple[int, int] = (0, 0)  # of a dot, the summed axis of either input

    @property
    def n_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return BYTES * prod(self.shape)


@dataclass(frozen=True)
class MeshCase(Brief):
    """A mesh of devices with the prices of its two axes, and what must be split there."""

    name: str
    mesh: tuple[int, int]
    alpha: tuple[float, ...]  # of a collective on each axis of the mesh
    beta: tuple[float, ...]  # of a byte
    all_gather_price: float = 0.0  # of every all-gather; 0 if it depends on the bytes
    must_split: Mapping[int, MeshSplit] = field(default_factory=dict)  # by the position of the dot


@dataclass(frozen=True)
class ShardingProgram(Brief):
    """Operators in a topological order, pairs of them that need equal specs, and the meshes to solve."""

    ops: tuple[TensorOp, ...]
    ties: tuple[tuple[int, int], ...]
    cases: tuple[MeshCase, ...]
