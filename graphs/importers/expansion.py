"""Repeats the operators of equal layers in a traced graph, of whose layers a few were traced.

::

    traced      embed ─► layer 0 ─► layer 1 ─► layer 2 ─► layer 3 ─► head            FEW = 4 periods of one layer
                                               ╰──────╯ is copied
    expanded    embed ─► layer 0 ─► layer 1 ─► layer 2 ─► ... ─► layer 62 ─► layer 63 ─► head

A copy reads its own tensors, those of the period before it, and what stands before all periods, as period 2 does in
comparison with period 1. Names get the numbers that a trace of all layers gives.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.export.graph_signature import InputSpec, TensorArgument
from torch.utils import _pytree as pytree

from graphs.importers.source_location import module_path

FEW = 4
"""Periods that are traced: the first and the last may differ from those between them, of which two are compared."""

BEFORE, AFTER = -1, FEW
"""Labels of what is traced before the first period and after the last one."""

NUMBERED_NAME = re.compile(r"(?P<base>.*?)(?:_(?P<number>\d+))?")


class UnlikeError(Exception):
    """Says that layers which were taken for equal are not."""


@dataclass(frozen=True)
class Repeat:
    """Layers of a list of modules, in which a period of one or more layers is repeated."""

    path: str  # of the list of modules; empty for the model itself
    first: int  # index of the first layer of the first period
    period: int  # layers
    count: int  # periods

    @property
    def more(self) -> int:
        """Return how many periods are not traced."""
        return self.count - FEW

    def layer(self, path: str) -> int | None:
        """Return the index of the layer that a module or a parameter belongs to."""
        start = f"{self.path}." if self.path else ""
        number = path.removeprefix(start).partition(".")[0]
        return int(number) if path.startswith(start) and number.isdecimal() else None

    def label(self, layer: int) -> int:
        """Return the number of the traced period that a layer belongs to, or `BEFORE` or `AFTER`."""
        return min(max((layer - self.first) // self.period, BEFORE), AFTER)

    def moved(self, path: str, periods: int) -> str:
        """Return the path of the same module or parameter some periods later."""
        layer = self.layer(path)
        if layer is None or not periods:
            return path
        start = f"{self.path}." if self.path else ""
        rest = path[len(f"{start}{layer}") :]
        return f"{start}{layer + periods * self.period}{rest}"

    def paths(self, path: str) -> tuple[str, ...]:
        """Return what a path of the traced layers stands for: itself, and the copies of its layer."""
        layer = self.layer(path)
        label = BEFORE if layer is None else self.label(layer)
        if label == FEW - 2:
            return tuple(self.moved(path, shift) for shift in range(self.more + 1))
        return (self.moved(path, self.more if label > FEW - 2 else 0),)


@dataclass(frozen=True)
class Trace:
    """A traced graph of operators that are functions, and what its ends are."""

    code: fx.Graph
    inputs: Sequence[InputSpec]  # one for each placeholder
    state: Mapping[str, Any]  # parameters, buffers and constants by their paths
    call_spec: Any  # structures of the arguments and of the results
    example_inputs: Any
    updates: Mapping[str, float] = field(default_factory=dict)  # increments of buffers without other use

    def expanded(self, repeats: Sequence[Repeat], state: Mapping[str, torch.Tensor]) -> "Trace":
        """Return the trace of all layers.

        Args:
            repeats: the layers that repeat, in their order within each list of modules.
            state: parameters and buffers of all layers, by their paths.

        Raises:
            UnlikeError: if the traced layers differ.
        """
        trace = self
        for repeat in repeats:
            trace = _Expansion(trace, repeat).trace(state)
        return trace


class _Section(NamedTuple):
    """Consecutive nodes of one period."""

    label: int
    nodes: list[fx.Node]


class _Expansion:
    """Repeats the layers of one `Repeat`."""

    def __init__(self, trace: Trace, repeat: Repeat) -> None:
        self.old = trace
        self.repeat = repeat
        nodes = list(trace.code.nodes)
        self.placeholders = [node for node in nodes if node.op == "placeholder"]
        self.path = {
            node: spec.target
            for node, spec in zip(self.placeholders, trace.inputs, strict=True)
            if spec.target is not None
        }
        self.label: dict[fx.Node, int] = {}
        states = [(node, repeat.layer(self.path.get(node, ""))) for node in self.placeholders]
        self.states = self._sections((node, BEFORE if n is None else repeat.label(n)) for node, n in states)
        self.calls = self._sections(
            self._labelled([node for node in nodes if node.op in ("call_function", "get_attr")])
        )
        self.twins = self._twins()
        self.earlier = {later: node for node, later in self.twins.items()}
        self.increments = self._increments()
        self.graph = fx.Graph()
        self.made: dict[tuple[fx.Node, int], fx.Node] = {}  # by the traced node, and the periods that it is moved by

    def trace(self, state: Mapping[str, torch.Tensor]) -> Trace:
        """Return the trace with all layers; see `Trace.expanded`."""
        specs = dict(zip(self.placeholders, self.old.inputs, strict=True))
        inputs: list[InputSpec] = []
        for node, shift in self._order(self.states):
            path = self.path.get(node)
            moved = None if path is None else self.repeat.moved(path, shift)
            name = node.name if moved == path or path is None else _moved_name(node.name, path, str(moved))
            self._make(node, shift, name)
            spec = specs[node]
            inputs.append(spec if moved == path else replace(spec, arg=TensorArgument(name), target=moved))
        for node, shift in self._order(self.calls):
            self._make(node, shift, self._numbered(node.name, shift))
        (results,) = self.old.code.output_node().args
        self.graph.output(fx.map_arg(results, lambda read: self._read_after(read)))
        paths = [spec.target for spec in inputs if spec.target is not None]
        updates = {moved: n for path, n in self.old.updates.items() for moved in self.repeat.paths(path)}
        return replace(
            self.old,
            code=self.graph,
            inputs=inputs,
            state={**self.old.state, **{path: state[path] for path in paths if path in state}},
            updates={path: updates[path] for path in paths if path in updates},
        )

    def _labelled(self, calls: Sequence[fx.Node]) -> Iterator[tuple[fx.Node, int]]:
        """Yield the operators with their periods; what lies between two layers belongs to the first of them."""
        layers = [self.repeat.layer(module_path(node)) for node in calls]
        seen = [layer for layer in layers if layer is not None]
        if seen != sorted(seen):
            raise UnlikeError("layers do not follow each other")
        last = max((position for position, layer in enumerate(layers) if layer is not None), default=-1)
        label = BEFORE
        for position, (node, layer) in enumerate(zip(calls, layers, strict=True)):
            if layer is not None:
                label = self.repeat.label(layer)
            yield node, label if position <= last else AFTER

    def _sections(self, labelled: Iterable[tuple[fx.Node, int]]) -> list[_Section]:
        pairs = list(labelled)
        self.label |= pairs
        return [_Section(label, [node for node, _ in group]) for label, group in groupby(pairs, lambda pair: pair[1])]

    def _twins(self) -> dict[fx.Node, fx.Node]:
        """Return, for each node of period 1, the one of period 2 that does the same; check that they do."""
        twins: dict[fx.Node, fx.Node] = {}
        for sections in (self.states, self.calls):
            one, two = ([node for s in sections if s.label == label for node in s.nodes] for label in (1, 2))
            if len(one) != len(two):
                raise UnlikeError("periods have unlike numbers of nodes")
            twins |= zip(one, two, strict=True)
        for a, b in twins.items():
            reads = set(zip(_reads(a), _reads(b), strict=False))
            unclear = len(reads) > len({read for _, read in reads})
            if unclear or _what(a, self) != _what(b, self) or not all(self._alike(*pair, twins) for pair in reads):
                raise UnlikeError(f"'{a.name}' and '{b.name}' differ")
        return twins

    def _alike(self, a: fx.Node, b: fx.Node, twins: Mapping[fx.Node, fx.Node]) -> bool:
        """Return whether what period 1 reads stands to it as what period 2 reads to that."""
        return a is b or twins.get(a) is b or (self.label[a] == 0 and self.label[b] == 1)

    def _increments(self) -> dict[str, int]:
        """Return by how much the numbers of operators' names grow in each period."""
        found: dict[str, int] = {}
        for a, b in self.twins.items():
            if a.op == "placeholder":
                continue
            (base, number), (other, later) = _split(a.name), _split(b.name)
            if base != other or found.setdefault(base, later - number) != later - number:
                raise UnlikeError(f"'{a.name}' and '{b.name}' are not numbered alike")
        return found

    def _order(self, sections: Sequence[_Section]) -> Iterator[tuple[fx.Node, int]]:
        """Yield the nodes of the expanded graph: a traced node, and by how many periods it is moved."""
        for section in sections:
            shift = self.repeat.more if section.label > FEW - 2 else 0
            for node in section.nodes:
                yield node, shift
            if section.label == FEW - 2:
                for copy in range(1, self.repeat.more + 1):
                    for node in section.nodes:
                        yield node, copy

    def _make(self, node: fx.Node, shift: int, name: str) -> None:
        read = self._reader(node, shift)
        made = self.graph.node_copy(node, read)
        made.name = name
        made.meta = node.meta
        if shift and "nn_module_stack" in node.meta:
            stack = node.meta["nn_module_stack"]
            moved = {key: (self.repeat.moved(path, shift), *rest) for key, (path, *rest) in stack.items()}
            made.meta = node.meta | {"nn_module_stack": moved}
        self.made[node, shift] = made

    def _reader(self, node: fx.Node, shift: int) -> Any:
        """Return what maps each argument of a node to the argument of the node some periods later."""
        if self.label[node] != FEW - 2:
            return self._read_after if self.label[node] > FEW - 2 else lambda read: self.made[read, 0]
        before = dict(zip(_reads(node), _reads(self.earlier[node]), strict=True))

        def read(argument: fx.Node) -> fx.Node:
            if self.label[argument] == FEW - 2:
                return self.made[argument, shift]
            if self.label[argument] == FEW - 3 and before[argument] is not argument and shift:
                return self.made[self.twins[argument], shift - 1]
            return self.made[argument, 0]

        return read

    def _read_after(self, argument: fx.Node) -> fx.Node:
        """Return the argument of a node after the copies: the last copy of what was copied."""
        return self.made[argument, self.repeat.more if self.label[argument] >= FEW - 2 else 0]

    def _numbered(self, name: str, shift: int) -> str:
        base, number = _split(name)
        later = number + shift * self.increments.get(base, 0)
        return f"{base}_{later}" if later else base


def _what(node: fx.Node, expansion: _Expansion) -> object:
    """Describe what a node does, apart from which tensors it reads and in which period it is."""
    repeat = expansion.repeat
    path = expansion.path.get(node, "") if node.op == "placeholder" else module_path(node)
    layer = repeat.layer(path)
    if layer is not None:  # the same in each period
        path = repeat.moved(path, -expansion.label[node])
    arguments = fx.map_arg((node.args, dict(node.kwargs)), lambda _: None)
    layouts = tuple(tensor_layout(leaf) for leaf in pytree.tree_leaves(node.meta.get("val")))
    target = None if node.op == "placeholder" else node.target
    return target, path, repr(arguments), layouts


def _reads(node: fx.Node) -> list[fx.Node]:
    """Return the arguments of a node that are nodes, in their order, each as often as it is read."""
    found: list[fx.Node] = []
    fx.map_arg((node.args, dict(node.kwargs)), found.append)
    return found


def tensor_layout(value: object) -> object:
    """Return all of a tensor but its values that decides what operators do with it."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.dtype, value.device, value.requires_grad
    return value


def _split(name: str) -> tuple[str, int]:
    """Return a name and its number: 0 for the first of its kind, which has none."""
    match = NUMBERED_NAME.fullmatch(name)
    assert match is not None
    return match["base"], int(match["number"] or 0)


def _moved_name(name: str, path: str, moved: str) -> str:
    """Return the name of a placeholder whose path has changed."""
    old, new = (re.sub(r"\W", "_", each) for each in (path, moved))
    renamed, n = re.subn(re.escape(old), new.lower(), name, flags=re.IGNORECASE)
    if not n:
        raise UnlikeError(f"'{name}' has not the name of '{path}'")
    return renamed
