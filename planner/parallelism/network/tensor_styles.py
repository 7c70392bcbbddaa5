"""Tensor-parallel styles: which layers devices divide by columns, rows or words, and what lies divided in between.

::

    x ──► q, k, v ──► heads ──► attention ──► heads ──► o ──► y          Megatron's column, then row
          columns    divided    divided      divided   rows   summed

    x ──► head ──► scores          columns whose results are gathered; words of an embedding

A rule on the graph finds them, without a list of models: linear layers that read the same tensor are columns if all
that follows can be divided the same way (`graphs.rewrites.sharding_rules`) until linear layers by rows take it up.
Between rows and the next columns, the tokens are divided where the operators allow it (sequence parallelism).
Source: Shoeybi et al., Megatron-LM, arXiv 1909.08053; Korthikanti et al., arXiv 2205.05198, section 4.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from graphs.common.brief import brief
from graphs.common.errors import InputError
from graphs.ir import Graph, Op, Role
from graphs.operator_kinds import changes, plain
from graphs.rewrites.sharding import Shard, Sharding
from graphs.rewrites.sharding_rules import shardings

TOKENS = 1  # the axis of a sample's tokens


class Style(StrEnum):
    """How devices share a layer's weight."""

    COLUMN = "column"  # by output features, which stay divided
    ROW = "row"  # by input features; results are summed
    GATHERED = "gathered column"  # by output features, which are then gathered
    VOCABULARY = "vocabulary"  # by words of an embedding; results are summed


@dataclass(frozen=True)
class TensorStyles:
    """How devices share a part of a network.

    Attributes:
        style: of the layers that they share, by operator.
        axis: along which tensors are divided, by tensor; others are whole on every device.
        reads: by operator that works on divided tensors, the axis of each of its inputs; None for a whole one.
    """

    style: Mapping[str, Style] = field(default_factory=dict)
    axis: Mapping[str, int] = field(default_factory=dict)
    reads: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)

    __repr__ = brief

    @classmethod
    def of(cls, graph: Graph, ops: Sequence[int], parts: int) -> "TensorStyles":
        """Return the styles of some operators that run one after another, for a number of devices."""
        return _StyleSearch(graph, ops, parts).found() if parts > 1 else cls()


WEIGHT_AT = {"aten.linear": 1, "aten.embedding": 0}
"""The layers that can be shared, and which of their inputs is the weight."""


def read_by(op: Op) -> str:
    """Return the tensor that a layer multiplies by its weight."""
    return op.inputs[1 - WEIGHT_AT[plain(op.kind)]]


def weight_of(op: Op) -> str:
    """Return the weight of a layer."""
    return op.inputs[WEIGHT_AT[plain(op.kind)]]


def tensor_styles(graph: Graph, stages: Sequence[Sequence[int]], parts: int) -> tuple[TensorStyles, ...]:
    """Return the styles of each stage.

    Raises:
        InputError: if the devices could share no layer; the error names the nearest number that can.
    """
    found = tuple(TensorStyles.of(graph, ops, parts) for ops in stages)
    if parts > 1 and not any(each.style for each in found):
        near = max(n for n in range(1, parts) if n == 1 or any(TensorStyles.of(graph, ops, n).style for ops in stages))
        raise InputError(
            f"tensor = {parts} divides no layer of '{graph.name}': neither heads nor features nor words; the nearest "
            f"that works is {near}"
        )
    return found


class _StyleSearch:
    """The regions of divided tensors, one after the other."""

    def __init__(self, graph: Graph, ops: Sequence[int], parts: int) -> None:
        self._graph, self._parts = graph, parts
        self._ops = [graph.ops[number] for number in ops]
        names = {op.name for op in self._ops}
        self._readers: dict[str, list[Op]] = {}
        self._leaving = set(graph.outputs)
        for op in graph.ops:
            for name in dict.fromkeys(op.inputs):
                self._readers.setdefault(name, []).append(op)
                if op.name not in names:
                    self._leaving.add(name)
        self._style: dict[str, Style] = {}
        self._axis: dict[str, int] = {}
        self._reads: dict[str, tuple[int | None, ...]] = {}

    def found(self) -> TensorStyles:
        """Return the styles: first regions, then layers gathered at once, then division by tokens in between."""
        for op in self._ops:
            if self._is_linear(op) and op.name not in self._style and not self._shared(op):
                siblings = [
                    other
                    for other in self._ops
                    if other.inputs[:1] == op.inputs[:1] and self._is_linear(other) and other.name not in self._style
                ]
                for columns in (siblings, [op]):
                    if self._add_region(columns):
                        break
        for op in self._ops:
            style = self._alone(op)
            if style and op.name not in self._style and self._same_for_all(op):
                self._style[op.name] = style
        self._divide_tokens()
        reads = {name: each for name, each in self._reads.items() if self._writes_divided(name)}
        return TensorStyles(self._style, self._axis, reads)

    def _is_linear(self, op: Op) -> bool:
        return plain(op.kind) == "aten.linear" and self._weight(op) is not None

    def _weight(self, op: Op) -> str | None:
        """Return the weight of a linear layer or an embedding, if it is a parameter."""
        known = plain(op.kind) in WEIGHT_AT and self._graph.tensor[weight_of(op)].role is Role.PARAMETER
        return weight_of(op) if known else None

    def _shared(self, op: Op) -> bool:
        """Return whether another operator reads the weight, too."""
        weight = self._weight(op)
        return weight is not None and len(self._readers[weight]) > 1

    def _rows(self, op: Op, axis: int) -> int:
        return self._graph.tensor[self._weight(op) or ""].shape[axis]

    # --- columns, what follows, rows ---------------------------------------------------------------------------------

    def _add_region(self, columns: Sequence[Op]) -> bool:
        """Divide layers by columns, and all operators up to row-parallel layers; return False if that is impossible."""
        if any(self._rows(op, 0) % self._parts or self._shared(op) for op in columns):
            return False
        style = {op.name: Style.COLUMN for op in columns}
        axis = {op.outputs[0]: len(self._graph.tensor[op.outputs[0]].shape) - 1 for op in columns}
        for op in self._ops:
            divided = [name for name in op.inputs if name in axis]
            if not divided:
                continue
            if op.name in style or op.name in self._style or not self._follow(op, style, axis):
                return False
        if Style.ROW not in style.values() or not self._leaving.isdisjoint(axis):
            return False
        self._style |= style
        self._axis |= axis
        return True

    def _follow(self, op: Op, style: dict[str, Style], axis: dict[str, int]) -> bool:
        """Divide one more operator of a region; return False if it cannot be divided."""
        if self._is_linear(op):
            last = len(self._graph.tensor[op.inputs[0]].shape) - 1
            fits = axis.get(op.inputs[0]) == last and self._rows(op, 1) % self._parts == 0 and not self._shared(op)
            if fits:
                style[op.name] = Style.ROW
            return fits
        found = self._along(op, axis)
        if found is None:
            return False
        axis.update((name, shard.axis) for name, shard in zip(op.outputs, found.outputs, strict=True) if shard)
        return True

    def _along(self, op: Op, axis: Mapping[str, int]) -> Sharding | None:
        """Return the sharding of an operator that fits its divided inputs; None if there is none."""
        for one in self._shardings(op):
            if one.units % self._parts or one.summed or one.halo or None in one.outputs:
                continue
            if all(shard is None or shard.runs == 1 for shard in (*one.inputs, *one.outputs)) and all(
                shard == Shard(axis[name]) if name in axis else self._can_be_cut(name, shard)
                for name, shard in zip(op.inputs, one.inputs, strict=True)
            ):
                self._reads[op.name] = tuple(shard and shard.axis for shard in one.inputs)
                return one
        return None

    def _writes_divided(self, name: str) -> bool:
        return not self._axis.keys().isdisjoint(self._graph.ops[self._graph.index[name]].outputs)

    def _can_be_cut(self, name: str, shard: Shard | None) -> bool:
        """Return whether each device can take its part of a whole tensor; parameters stay whole."""
        return shard is None or self._graph.tensor[name].role is not Role.PARAMETER

    def _shardings(self, op: Op) -> Iterable[Sharding]:
        """Return the shardings of an operator; dropout is divided like any other that works element by element."""
        if changes(op) and plain(op.kind) in ("aten.dropout", "aten.native_dropout", "aten.feature_dropout"):
            rank = len(self._graph.tensor[op.inputs[0]].shape)
            sizes = self._graph.tensor[op.inputs[0]].shape
            return [
                Sharding(f"axis {axis}", sizes[axis], (Shard(axis),), (Shard(axis),) * len(op.outputs))
                for axis in range(rank)
            ]
        return shardings(self._graph, op)

    # --- layers by themselves ----------------------------------------------------------------------------------------

    def _alone(self, op: Op) -> Style | None:
        """Return the style of a layer with whole inputs and outputs; None if it cannot be shared."""
        if self._weight(op) is None or self._rows(op, 0) % self._parts:
            return None
        if self._is_linear(op):
            return Style.GATHERED
        tables = (other for other in self._graph.ops if plain(other.kind) == "aten.embedding" and self._weight(other))
        largest = max(self._rows(other, 0) for other in tables)
        return Style.VOCABULARY if self._rows(op, 0) == largest else None

    def _same_for_all(self, op: Op) -> bool:
        """Return whether all readers of the weight divide it by rows of the weight."""
        weight = self._weight(op)
        return all(self._weight(other) == weight and self._alone(other) for other in self._readers[weight or ""])

    # --- tokens ------------------------------------------------------------------------------------------------------

    def _divide_tokens(self) -> None:
        """Divide by tokens what is summed, and what follows from it element by element or token by token."""
        divided: dict[str, int] = {}
        for op in self._ops:
            style = self._style.get(op.name)
            if not all(map(self._has_tokens, op.outputs)):
                continue
            if style in (Style.ROW, Style.VOCABULARY):
                divided[op.outputs[0]] = TOKENS
            elif style is None and not divided.keys().isdisjoint(op.inputs) and self._axis.keys().isdisjoint(op.inputs):
                found = self._along(op, divided)
                if found and all(shard == Shard(TOKENS) for shard in found.outputs):
                    divided.update(dict.fromkeys(op.outputs, TOKENS))
        self._axis |= divided

    def _has_tokens(self, name: str) -> bool:
        shape = self._graph.tensor[name].shape
        return len(shape) == 3 and shape[TOKENS] % self._parts == 0 and shape[TOKENS] >= self._parts
