"""Programs of a language model's phases: caches are their last inputs, and the successors their last outputs."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from graphs.importers.footprints import with_footprints
from graphs.importers.from_torch import program_from_exported
from graphs.importers.tracing_guards import contiguous_shown, tracing
from graphs.ir import Op, Role
from graphs.program.expectations import KIND
from graphs.program.generation import unlike
from graphs.program.program import Program
from graphs.program.strides import comparable


def phase_program(
    wrapper: nn.Module,
    inputs: Mapping[str, Any],
    name: str,
    simplified: Callable[[Program], Program] = lambda program: program,
) -> Program:
    """Trace a module that takes ``caches`` as its last input and returns their successors as its last result.

    ``simplified`` changes the program as it was traced, before operators without use are left out.

    Raises:
        Exception: whatever the module's code or torch's tracing raises.
    """
    program = program_from_exported(_exported(wrapper, inputs), name, wrapper, footprints=False)
    with tracing():
        program = with_footprints(without_dead_operators(simplified(program)))
    return _with_caches(program, len(inputs["caches"]))


def is_phase_of(program: Program, decode: Program) -> bool:
    """Return whether two programs have the same operators, inputs, outputs, caches and state by name."""
    return unlike(program.graph, decode.graph) is None and _same_state(program, decode)


def _exported(wrapper: nn.Module, inputs: Mapping[str, Any]) -> ExportedProgram:
    with tracing(), contiguous_shown(), torch.no_grad():
        return torch.export.export(wrapper, (), dict(inputs), strict=False)


def _with_caches(program: Program, count: int) -> Program:
    """Return a program whose last inputs are caches, and whose last outputs are those of the next call."""
    before, after = program.in_leaves[-count:], program.out_leaves[-count:]
    pairs = tuple((str(one), str(other)) for one, other in zip(before, after, strict=True))
    names = {name for name, _ in pairs}
    tensors = tuple(replace(t, role=Role.CACHE) if t.name in names else t for t in program.graph.tensors)
    return replace(program, graph=replace(program.graph, tensors=tensors, caches=pairs))


def without_dead_operators(program: Program) -> Program:
    """Return a program without the operators whose results nobody reads; checks of values stay."""
    graph, needed = program.graph, set(program.graph.outputs)
    kept: list[Op] = []
    for op in reversed(graph.ops):
        if op.kind == KIND or not needed.isdisjoint(op.outputs):
            kept.append(op)
            needed.update(op.inputs)
    used = {*graph.inputs, *graph.outputs, *(name for op in kept for name in (*op.inputs, *op.outputs))}
    tensors = tuple(tensor for tensor in graph.tensors if tensor.name in used)
    state = {name: tensor for name, tensor in program.state.items() if name in used}
    return replace(program, graph=replace(graph, ops=tuple(kept[::-1]), tensors=tensors), state=state)


def _same_state(one: Program, other: Program) -> bool:
    """Return whether two programs hold the same parameters, buffers and constants."""
    if one.state.keys() != other.state.keys():
        return False
    pairs = ((comparable(tensor), comparable(other.state[name])) for name, tensor in one.state.items())
    return all(a is b or (a.shape == b.shape and (a.is_meta or torch.equal(a, b))) for a, b in pairs)
