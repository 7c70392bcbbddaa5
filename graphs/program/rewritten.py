"""Rewrites applied to programs: the calls of new operators, and slices of the model's own parameters."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from graphs.common.errors import InputError
from graphs.ir import Attr, Op
from graphs.program.calls import known_operator
from graphs.program.pieces import sliced
from graphs.program.program import Call, Leaf, Program
from graphs.program.traced_strides import lying_as_traced
from graphs.rewrites.layouts import Layout, Slice
from graphs.rewrites.rewrite import Rewrite
from graphs.rewrites.split import Split, SplitGraph


def rewritten_program(program: Program, rewrites: Iterable[Rewrite]) -> Program:
    """Return the program after all rewrites, applied one after another.

    Raises:
        InputError: if one does not fit.
    """
    for rewrite in rewrites:
        if isinstance(rewrite, Split):
            split, strides = rewrite.applied(program.graph), lying_as_traced(program)
            whole = {name: each for name, each in strides.items() if name in split.graph.tensor}
            program = replace(_split(program, split), strides=whole)
        else:
            program = replace(program, graph=rewrite(program.graph))
    return program


def _split(program: Program, split: SplitGraph) -> Program:
    """The program of a split graph, in which all tensors have placeholders."""
    if program.slices:
        raise InputError(f"'{program.graph.name}' is split already; put all choices into one split")
    graph, code = split.graph, fx.Graph()
    nodes = {tensor.name: code.placeholder(f"tensor{number}") for number, tensor in enumerate(graph.tensors)}
    calls = {}
    for op in graph.ops:
        inputs = [nodes[name] for name in op.inputs]
        part = split.parts.get(op.name)
        origin = program.calls[part.op] if part else None
        if part is None or origin is None or str(origin.node.target) != op.kind:
            calls[op.name] = Call(code.call_function(known_operator(op), _arguments(op, inputs)), False)
            continue
        args, kwargs = _rebound(origin.node, op.attrs, inputs, part.left_out)
        node = code.create_node("call_function", origin.node.target, args, kwargs)
        node.meta = {name: value for name, value in origin.node.meta.items() if name != "val"}
        calls[op.name] = Call(node, origin.unpack)
    state = {name: tensor for name, tensor in program.state.items() if name in nodes}
    state |= {name: _held(program.state[one.source], one) for name, one in split.slices.items() if name in nodes}
    tensor_of = {node.name: name for name, node in nodes.items()}
    slices = {name: one for name, one in split.slices.items() if name in nodes}
    sources = {one.source: program.state[one.source] for one in slices.values()}
    named: dict[str, Any] = {"graph": graph, "calls": calls, "tensor_of": tensor_of, "state": state}
    return replace(program, **named, slices=slices, sources=sources, **_divided_ends(program, split.caches))


def _divided_ends(program: Program, caches: Mapping[str, Layout]) -> dict[str, Any]:
    """Return the ends of a program that takes and returns a list of its parts for each divided cache."""
    if not caches:
        return {}
    examples: list[torch.Tensor] = []
    for name, example in zip(program.graph.inputs, program.example_inputs, strict=True):
        regions = caches[name].indices if name in caches else (None,)
        examples += (sliced(example, Slice(name, region)) for region in regions)

    in_leaves, in_spec = _in_parts(program.in_leaves, program.in_spec, caches)
    out_leaves, out_spec = _in_parts(program.out_leaves, program.out_spec, caches)
    ends = {"in_leaves": in_leaves, "in_spec": in_spec, "out_leaves": out_leaves, "out_spec": out_spec}
    return {**ends, "example_inputs": tuple(examples)}


def _in_parts(
    leaves: Iterable[Leaf], spec: pytree.TreeSpec, caches: Mapping[str, Layout]
) -> tuple[tuple[Leaf, ...], pytree.TreeSpec]:
    """Return leaves and their structure with a list of names where the name of a divided cache was."""
    parts = [[*caches[leaf].names] if isinstance(leaf, str) and leaf in caches else [leaf] for leaf in leaves]
    stars = [["*"] * len(each) if len(each) > 1 else "*" for each in parts]
    return tuple(chain.from_iterable(parts)), pytree.tree_structure(pytree.tree_unflatten(stars, spec))


def _rebound(
    node: fx.Node, attrs: Mapping[str, Attr], inputs: list[fx.Node], left_out: tuple[int, ...]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with other tensors in their order, and with the values that ``attrs`` has for others.

    Tensors at the positions that are left out become None.
    """
    given, number = iter(inputs), iter(range(2**31))

    def bound(_: fx.Node) -> fx.Node | None:
        return None if next(number) in left_out else next(given)

    args = fx.map_arg(node.args, bound)
    kwargs = fx.map_arg(node.kwargs, bound)
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    positional = [_valued(value, attrs.get(name)) for name, value in zip(names, args, strict=False)]
    return tuple(positional), {name: _valued(value, attrs.get(name)) for name, value in kwargs.items()}


def _valued(value: Any, attr: Attr) -> Any:
    """An argument of a call with the numbers of an attribute."""
    if isinstance(value, int) and isinstance(attr, int) and not isinstance(value, bool):
        return attr
    numbers = isinstance(attr, tuple) and all(isinstance(item, int) for item in attr)
    if numbers and isinstance(value, list | tuple) and all(isinstance(item, int) for item in value):
        return _listed(attr)
    return value


def _arguments(op: Op, inputs: list[fx.Node]) -> tuple[Any, ...]:
    """The arguments of a new operator: tensors, then attributes in the order of the schema."""
    first = known_operator(op)._schema.arguments[0]
    tensors: list[Any] = [inputs] if first.type.kind() == "ListType" else list(inputs)
    return (*tensors, *(_listed(value) for value in op.attrs.values()))


def _listed(value: Attr) -> Any:
    """A value of an attribute as an argument."""
    if isinstance(value, tuple):
        return [_listed(item) for item in value]
    return float(value) if value in ("inf", "-inf") else value


def _held(tensor: torch.Tensor, one: Slice) -> torch.Tensor:
    """A parameter or buffer that is a part of one of the model's own."""
    part = sliced(tensor, one)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(part, requires_grad=tensor.requires_grad)
    return part.requires_grad_(tensor.requires_grad)
