"""Folds the constants of an ONNX graph in one pass over its nodes.

Every node is computed on PyTorch's meta device, where tensors have a shape and no elements. A result that has elements
nevertheless (weights that the file computes, the shape of a tensor and values that follow from it) is a constant::

    image ──► Shape ──► Gather ──► Concat ──► Reshape ──► Gemm        image ──► Reshape ──► Gemm
      └───────────────────────────────────────► ▲         ▲      →             (1, 1024)     ▲
                        ConstantOfShape ──────────────────┘                               constant
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

from graphs.common.errors import InputError, first_line
from graphs.importers.onnx import control_flow
from graphs.importers.onnx.control_flow import graphs_of, node_name, nodes_of
from graphs.importers.onnx.operands import check_operands
from graphs.importers.onnx.operators import OPERATORS
from graphs.importers.onnx.operators.registry import NARROW, Attributes, Node, Operator, node_kind, tensor_of

_FAILURES = (RuntimeError, ValueError, LookupError, TypeError, ArithmeticError)  # of PyTorch's functions


@dataclass(frozen=True)
class KnownValue:
    """An operand that is no tensor: a Python number, a list, or None for an operand left out."""

    value: Any


@dataclass(frozen=True)
class RemainingNode:
    """A node that depends on the inputs."""

    node: Node  # kind and attributes of the node
    operands: tuple[str | KnownValue, ...]  # for each operand the key of a tensor, or a known value
    outputs: tuple[str, ...]  # keys of the results
    scopes: tuple[str, ...] | None = None  # names of the modules around the node, if the file has them

    @property
    def reads(self) -> list[str]:
        """Keys of the tensors among the operands, in order."""
        return [operand for operand in self.operands if isinstance(operand, str)]


@dataclass(frozen=True)
class FoldedGraph:
    """The nodes of a graph that depend on its inputs."""

    inputs: tuple[str, ...]  # keys of the inputs
    outputs: tuple[str, ...]  # keys of the results
    steps: tuple[RemainingNode, ...]  # the nodes in a topological order
    constants: Mapping[str, torch.Tensor]  # constants that steps or outputs read, by key
    shapes: Mapping[str, tuple[int, ...]]  # shapes of the outputs, by key


def fold(
    graph: GraphProto,
    opset: int,
    inputs: Mapping[str, torch.Tensor],
    rebatch: tuple[int, int] | None = None,
    folder: Path | None = None,
) -> FoldedGraph:
    """Fold a graph whose inputs have the given shapes.

    Of the inputs, only shapes and dtypes matter; ``rebatch`` is the batch in the file, and that of the inputs, if they
    differ. Weights may be in files of the folder. Raise InputError if a node can't be computed on these shapes, or a
    shape depends on the inputs' values.
    """
    n_readers = Counter(name for node in nodes_of(graph) for name in node.input)
    n_readers += Counter(output.name for inner in graphs_of(graph) for output in inner.output)
    frame = _FoldedValues(opset, n_readers, rebatch, folder)
    types = {info.name: info.type.tensor_type.elem_type for info in graph.input}
    for name, tensor in inputs.items():
        frame.write_as(name, tensor.to("meta"), types.get(name))
    frame.run(graph)
    outputs = [frame.read(output.name, output.name) for output in graph.output]
    steps = _alive(frame.steps, outputs)
    read = {key for step in steps for key in step.reads} | set(outputs)
    return FoldedGraph(
        inputs=tuple(frame.keys[name] for name in inputs),
        outputs=tuple(outputs),
        steps=tuple(steps),
        constants={key: value for key, value in frame.values.items() if key in read and not value.is_meta},
        shapes={key: tuple(frame.values[key].shape) for key in outputs},
    )


def _alive(steps: Sequence[RemainingNode], outputs: Sequence[str]) -> list[RemainingNode]:
    """The steps on which an output depends."""
    needed, alive = set(outputs), []
    for step in reversed(steps):
        if needed.intersection(step.outputs):
            needed.update(step.reads)
            alive.append(step)
    return alive[::-1]


class _FoldedValues:
    """The values so far. A name may stand for different values in two branches, a key has one value."""

    def __init__(
        self, opset: int, n_readers: Counter[str], rebatch: tuple[int, int] | None, folder: Path | None
    ) -> None:
        self.opset = opset
        self.n_readers = n_readers
        self.rebatch = rebatch
        self.folder = folder
        self.keys: dict[str, str] = {}  # name -> key
        self.values: dict[str, torch.Tensor] = {}  # key -> tensor, on the meta device if it depends on the inputs
        self.narrow: dict[str, int] = {}  # key -> ONNX type of a tensor whose elements have fewer than 8 bits
        self.n_keys: Counter[str] = Counter()  # how many keys a name had
        self.steps: list[RemainingNode] = []

    def run(self, graph: GraphProto) -> None:
        """Compute all nodes of a graph, of a branch or of a loop's body."""
        for initializer in graph.initializer:
            self.write_as(initializer.name, tensor_of(initializer, self.folder), initializer.data_type)
        for proto in graph.node:
            if node_kind(proto) in control_flow.KINDS:
                control_flow.expand(proto, self)
            else:
                self.compute(proto)

    def write(self, name: str, value: torch.Tensor) -> str:
        """Give a value a key and bind the name to it."""
        key = name
        while key in self.values:
            self.n_keys[name] += 1
            key = f"{name}'{self.n_keys[name]}"
        self.keys[name] = key
        self.values[key] = value
        return key

    def write_as(self, name: str, value: torch.Tensor, onnx_type: int | None) -> str:
        """Give a value of an ONNX type a key and bind the name to it."""
        key = self.write(name, value)
        if onnx_type in NARROW:
            self.narrow[key] = onnx_type
        return key

    def read(self, name: str, reader: str) -> str:
        """The key of a name. Raise InputError if nothing has that name yet."""
        if name not in self.keys:
            raise InputError(
                f"node {reader!r} reads {name!r}, which nothing has computed before it; the file is broken"
            )
        return self.keys[name]

    def value(self, name: str, reader: str) -> torch.Tensor:
        """The tensor of a name, on the meta device if it depends on the inputs."""
        return self.values[self.read(name, reader)]

    def compute(self, proto: NodeProto) -> None:
        """Compute a node, and keep it as a step if a result depends on the inputs."""
        node = self._node(proto)
        operator = OPERATORS[node_kind(proto)]
        check_operands(node, list(proto.input))
        operands = self._operands(node, operator, list(proto.input))
        tied = False  # whether a weight has other readers, so that a transposed copy would be a second weight
        if proto.op_type == "Transpose":
            name = proto.input[0]
            tied = self.values[self.read(name, name)].is_floating_point() and self.n_readers[name] > 1
        results = self._execute(node, operator, operands, tied)
        outputs = [
            "" if value is None or not name else self.write_as(name, value, onnx_type)
            for name, value, onnx_type in zip(proto.output, results, _result_types(proto, node), strict=False)
        ]
        if any(value is not None and value.is_meta for value in results):
            self.steps.append(RemainingNode(node, tuple(operands), tuple(outputs), _scopes(proto)))

    def _node(self, proto: NodeProto) -> Node:
        return Node(
            kind=node_kind(proto),
            name=proto.name or next(name for name in proto.output if name),
            opset=self.opset,
            attributes=Attributes({each.name: _attribute(each, proto, self.folder) for each in proto.attribute}),
            narrow=tuple(self.narrow.get(self.keys.get(name, "")) for name in proto.input),
            wanted=tuple(bool(name) and (self.n_readers[name] > 0 or i == 0) for i, name in enumerate(proto.output)),
        )

    def _operands(self, node: Node, operator: Operator, names: list[str]) -> list[str | KnownValue]:
        """The operands of a node: keys of tensors, or known values where the operator needs them."""
        keys = [self.read(name, node.name) if name else None for name in names]
        if operator.prepare is not None:
            keys = self._prepare(node, operator, keys)
        computed = [self.values[key] for key in keys if key is not None and self.values[key].is_meta]
        # A number takes the type of the other operand, so there must be a tensor that is no condition.
        scalars = operator.scalars if any(value.dtype != torch.bool for value in computed) else ()
        operands = [self._operand(node, operator, scalars, position, key) for position, key in enumerate(keys)]
        return self._rebatched(node, operands)

    def _operand(
        self, node: Node, operator: Operator, scalars: tuple[int, ...], position: int, key: str | None
    ) -> str | KnownValue:
        if key is None:
            return KnownValue(None)
        value = self.values[key]
        known = position in operator.known
        if value.is_meta and (operator.folded or known):
            raise InputError(
                f"node {node.name!r} ({node.kind}): operand {position} ({key!r}) decides the result's shape, and "
                f"it is computed from the values of the inputs; export the model so that shapes are static"
            )
        if known or (position in operator.lists and not value.is_meta):
            return KnownValue(value.flatten().tolist())
        as_number = position in scalars and value.dim() == 0 and not value.is_meta
        return KnownValue(value.item()) if as_number else key

    def _prepare(self, node: Node, operator: Operator, keys: list[str | None]) -> list[str | None]:
        """Replace weights by those of PyTorch's function, once for all nodes that read the same weights."""
        assert operator.prepare is not None
        keys = keys + [None] * (operator.arity - len(keys))
        sources = [keys[position] for position in operator.weights]
        weights = [None if key is None else self.values[key] for key in sources]
        if any(weight is not None and weight.is_meta for weight in weights):
            raise node.unsupported("a weight that is computed from the inputs")
        try:
            made = operator.prepare(node, weights)
        except _FAILURES as error:
            raise InputError(self._failure(node, [x for x in weights if x is not None], error)) from error
        prepared: list[str | None] = []
        for name, weight in made.items():
            key = f"{' + '.join(source or 'none' for source in sources)}/{name}"
            self.values.setdefault(key, weight)
            prepared.append(key)
        return [key for position, key in enumerate(keys) if position not in operator.weights] + prepared

    def _rebatched(self, node: Node, operands: list[str | KnownValue]) -> list[str | KnownValue]:
        """The operands of a Reshape to the file's batch, with the new batch instead."""
        if self.rebatch is None or node.kind != "Reshape" or not isinstance(operands[0], str):
            return operands
        old, new = self.rebatch
        x, target = self.values[operands[0]], operands[1]
        assert isinstance(target, KnownValue)
        if x.is_meta and target.value[:1] == [old] and x.shape[:1] == (new,):
            return [operands[0], KnownValue([new, *target.value[1:]])]
        return operands

    def _execute(
        self, node: Node, operator: Operator, operands: Sequence[str | KnownValue], tied: bool
    ) -> tuple[torch.Tensor | None, ...]:
        """The results of a node; they have elements if all operands have elements."""
        values = [operand.value if isinstance(operand, KnownValue) else self.values[operand] for operand in operands]
        tensors = {i: value for i, value in enumerate(values) if isinstance(value, torch.Tensor)}
        if tied or any(value.is_meta for i, value in tensors.items() if i not in operator.described):
            values = [value.to("meta") if i in tensors else value for i, value in enumerate(values)]
        try:
            results = operator.results(node, *values)
        except InputError:
            raise
        except _FAILURES as error:
            raise InputError(self._failure(node, tensors.values(), error)) from error
        if unread := node.attributes.keys() - node.attributes.read - set(operator.ignores):
            raise node.unsupported(f"the attribute {min(unread)}={node.attributes[min(unread)]!r}")
        return results

    def _failure(self, node: Node, tensors: Iterable[torch.Tensor], error: Exception) -> str:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors) or "none"
        way_out = "export the model for this batch" if self.rebatch else "check the model with onnx.checker"
        return (
            f"node {node.name!r} ({node.kind}, opset {node.opset}) can't be computed on operands of shape {shapes}: "
            f"{first_line(error)}; {way_out}"
        )


def _result_types(proto: NodeProto, node: Node) -> Iterable[int | None]:
    """For each result of a node its ONNX type, if that may be one of fewer than 8 bits."""
    stated = [each.t.data_type or each.i for each in proto.attribute if each.name in ("value", "to", "output_dtype")]
    if stated or not any(node.narrow) or "::" in node.kind:
        return [*stated[:1], *[None] * len(proto.output)]
    return node.inherited(node.narrow)


def _attribute(attribute: AttributeProto, proto: NodeProto, folder: Path | None) -> Any:
    """An attribute as a plain Python value or a PyTorch tensor. Raise InputError for text that is not UTF-8."""
    value = onnx.helper.get_attribute_value(attribute)
    try:
        if isinstance(value, bytes):
            return value.decode()
        if attribute.type == AttributeProto.STRINGS:
            return [text.decode() for text in value]
    except UnicodeDecodeError as error:
        node = f"node {node_name(proto)!r} ({node_kind(proto)})"
        raise InputError(
            f"{node}: the attribute {attribute.name} is no text in UTF-8; export the model anew"
        ) from error
    return tensor_of(value, folder) if isinstance(value, TensorProto) else value


def _scopes(proto: NodeProto) -> tuple[str, ...] | None:
    """The modules that PyTorch's newer exporter writes into a node: "['', 'layer1', 'layer1.0', 'conv2d']"."""
    texts = [entry.value for entry in proto.metadata_props if entry.key == "pkg.torch.onnx.name_scopes"]
    return tuple(filter(None, re.findall(r"'([^']*)'", texts[0])[:-1])) if texts else None
