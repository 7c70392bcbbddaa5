"""Operators as one Python function, which a run calls for a stage and a calibration times.

The function has one line for each kernel and drops each value after its last use. So it costs no more per operator than
the eager module does, and Python does the same between two operators when they are timed and when they run.
"""

import operator
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import fx

from graphs.common.errors import InputError
from graphs.ir import STATE, Graph
from graphs.kernels.buffers import aliases_input, planned_memory
from graphs.kernels.giving_way import Compiled, Function, KernelsOf, UnpackedError, giving_way
from graphs.kernels.kernel import RESULT, Kernel
from graphs.kernels.pairs import Turn, n_micro_batches, one_by_one
from graphs.program.program import Program
from graphs.program.traced_strides import laying

KERNEL = "kernel"
"""Key of a node's ``meta``: the kernel that it calls."""

Seeded: TypeAlias = tuple[Callable[..., Any], fx.Node]
"""The seeded kernel of a random operator, and the generator that it draws from."""


class DeviceState(Protocol):
    """The state of a network on one device."""

    def get(self, name: str) -> torch.Tensor:
        """Return a parameter or buffer."""
        ...

    def packed(self, kernel: Kernel, name: str) -> torch.Tensor:
        """Return a weight as a kernel packs it."""
        ...


class Subgraph(NamedTuple):
    """Operators of a network that run one after another."""

    program: Program  # the network
    kernels: KernelsOf  # see `graphs.kernels.kernels.kernels_of`
    outputs: Sequence[str]  # the tensors that are read after them
    strides: Mapping[str, tuple[int, ...]] = {}  # of results that have to lie as in the trace


def compile_operators(
    subgraph: Subgraph,
    state: DeviceState,
    seeded: Mapping[str, Callable[..., Any]] = {},
    behind: Callable[[], object] | None = None,
    turns: Sequence[Turn] = (),
    restart: Callable[[], object] = lambda: None,
) -> Function:
    """Compile operators into a function that returns their outputs; the calling thread is that of their device.

    Args:
        subgraph: the operators.
        state: weights and buffers that they read. Other tensors are the function's last arguments, see `inputs_of`.
        seeded: functions with a generator that replace operators which draw random numbers, by name. The generators
            are the function's first arguments, in this order; operators that are not named draw from PyTorch's own.
        behind: called after each operator.
        turns: for a function of two micro-batches, see `graphs.kernels.pairs`: it takes the arguments of the second
            one after those of the first, and returns results in the same order; nothing may draw random numbers.
        restart: called before a call begins again, see `graphs.kernels.giving_way`.
    """

    def compiled(kernels: KernelsOf) -> Compiled:
        return _compiled(subgraph._replace(kernels=kernels), state, seeded, behind, turns)

    return giving_way(subgraph.program, subgraph.kernels, compiled, restart)


def _compiled(
    subgraph: Subgraph,
    state: DeviceState,
    seeded: Mapping[str, Callable[..., Any]],
    behind: Callable[[], object] | None,
    turns: Sequence[Turn],
) -> Compiled:
    """Compile operators as `compile_operators` does, once; raise UnpackedError if a kernel cannot pack its weights."""
    program, kernels, outputs, _ = subgraph
    graph, turns = fx.Graph(), turns or one_by_one(kernels)
    held = _HeldTensors(graph, [])
    packed, runs = _held_by(held, subgraph, state, n_micro_batches(turns))
    drawing = {name: (target, graph.placeholder(f"generator{i}")) for i, (name, target) in enumerate(seeded.items())}
    inputs = inputs_of(program.graph, kernels)
    for number, run in enumerate(runs):
        run.value.update(_placeholders(graph, "arg", number * len(inputs), inputs))
    for number, which in turns:
        for kernel, own_weights in zip(kernels[number], packed[number], strict=True):
            _add_calls(graph, program, kernel, own_weights, [runs[i] for i in which], drawing)
        if behind:
            graph.call_function(behind)
    graph.output(tuple(run.value[name] for run in runs for name in outputs))
    graph.eliminate_dead_code(
        lambda node: node.is_impure() or node.target is behind or RESULT in node.kwargs  # a view may be read
    )
    return _written(graph, held.tensors)


class _HeldTensors(NamedTuple):
    """Tensors that are the same in every run of a function."""

    graph: fx.Graph
    tensors: list[torch.Tensor]

    def add(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, fx.Node]:
        """Hold tensors; return their placeholders."""
        self.tensors.extend(tensors.values())
        return _placeholders(self.graph, "state", len(self.tensors) - len(tensors), tensors)


class _MicroBatchRun(NamedTuple):
    """Values of one micro-batch in the graph of a function, and where they have to lie."""

    strides: Mapping[str, tuple[int, ...]]  # of results that have to lie as in the trace
    buffers: Mapping[str, fx.Node]  # memory to write results to, by their names
    fixed: Mapping[str, fx.Node]  # results that are always the same tensors
    value: dict[str, fx.Node]  # tensors by name


def _held_by(
    held: _HeldTensors, subgraph: Subgraph, state: DeviceState, n_runs: int
) -> tuple[dict[int, list[dict[str, fx.Node]]], list[_MicroBatchRun]]:
    """Hold what operators read in every run; return the packed weights of each kernel, and the micro-batches."""
    program, kernels, outputs, strides = subgraph
    flat = list(chain.from_iterable(kernels.values()))
    own = [_packed(state, number, kernel) for number, each in kernels.items() for kernel in each]
    kept = held.add({name: state.get(name) for name in kept_state(program.graph, flat)})
    weights = iter([held.add(each) for each in own])
    packed = {number: [next(weights) for _ in each] for number, each in kernels.items()}
    planned = [planned_memory(program, flat, own, {*outputs, *strides}) for _ in range(n_runs)]
    runs = [_MicroBatchRun(strides, held.add(each.buffers), held.add(each.fixed), {}) for each in planned]
    for run in runs:
        run.value.update({**kept, **run.fixed})
    return packed, runs


def _packed(state: DeviceState, number: int, kernel: Kernel) -> dict[str, torch.Tensor]:
    """Return the weights that a kernel of an operator packs; raise UnpackedError if it fails."""
    try:
        return {name: state.packed(kernel, name) for name in kernel.packs}
    except InputError:
        raise  # of a weight without values
    except Exception as error:  # whatever its libraries raise
        raise UnpackedError(number) from error


def _add_calls(
    graph: fx.Graph,
    program: Program,
    kernel: Kernel,
    packed: Mapping[str, fx.Node],
    runs: Sequence[_MicroBatchRun],
    drawing: Mapping[str, Seeded],
) -> None:
    """Add the calls of a kernel for micro-batches: one for both if it computes pairs, else one for each."""
    first = kernel.op.outputs[0]
    reads = [map(ChainMap(dict(packed), run.value).__getitem__, kernel.reads) for run in runs]
    if kernel.pair and len(runs) > 1:
        both = graph.call_function(kernel.pair, ([_bound(program, kernel, names)[0] for names in reads],))
        both.meta[KERNEL] = kernel
        for number, run in enumerate(runs):
            _define(graph, program, kernel, run, _results(graph, program, kernel, _item(graph, both, number)))
        return
    for run, names in zip(runs, reads, strict=True):
        if first not in run.fixed:
            made = add_call(graph, program, kernel, names, drawing.get(kernel.op.name), run.buffers.get(first))
            _define(graph, program, kernel, run, made)


def _define(graph: fx.Graph, program: Program, kernel: Kernel, run: _MicroBatchRun, made: Iterable[fx.Node]) -> None:
    """Name what a kernel has made. What must lie as in the trace and is no view is laid so."""
    fresh = aliases_input(program, kernel) is not True
    for name, node in zip(kernel.op.outputs, made, strict=True):
        strides = run.strides.get(name) if fresh else None
        run.value[name] = graph.call_function(laying(strides), (node,)) if strides else node


def inputs_of(graph: Graph, ops: Collection[int]) -> tuple[str, ...]:
    """The tensors other than state that operators read and do not write."""
    read = tuple(dict.fromkeys(name for op in ops for name in graph.ops[op].inputs))
    written = {name for op in ops for name in graph.ops[op].outputs}
    return tuple(name for name in read if name not in written and graph.tensor[name].role not in STATE)


def _placeholders(graph: fx.Graph, word: str, first: int, keys: Iterable[str]) -> dict[str, fx.Node]:
    """Parameters of the function, with a word and a number, from the first on, for names."""
    return {key: graph.placeholder(f"{word}{first + i}") for i, key in enumerate(keys)}


def kept_state(graph: Graph, kernels: Sequence[Kernel]) -> dict[str, None]:
    """Return the names of the state that kernels read as the model has it, not packed."""
    read = (name for kernel in kernels for name in kernel.reads if name not in kernel.packs)
    return dict.fromkeys(name for name in read if graph.tensor[name].role in STATE)


def add_call(
    graph: fx.Graph,
    program: Program,
    kernel: Kernel,
    reads: Iterable[fx.Node],
    seeded: Seeded | None = None,
    buffer: fx.Node | None = None,
) -> tuple[fx.Node, ...]:
    """Add a line for a kernel to a graph; the result is what it writes, in the order of its operator's outputs.

    ``reads`` are the tensors that the kernel reads, in the order of ``kernel.reads``. It writes into ``buffer`` if that
    is given.
    """
    target, (args, kwargs) = kernel.target, _bound(program, kernel, reads)
    if seeded is not None:
        target, kwargs = seeded[0], {**kwargs, "generator": seeded[1]}
    result = graph.call_function(target, args, {RESULT: buffer} if buffer else kwargs)
    result.meta[KERNEL] = kernel
    return _results(graph, program, kernel, result)


def _bound(program: Program, kernel: Kernel, reads: Iterable[fx.Node]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, with what the kernel reads, in the order of ``kernel.reads``."""
    arguments = iter(reads)
    return kernel.bound(program, lambda _: next(arguments))


def _results(graph: fx.Graph, program: Program, kernel: Kernel, result: fx.Node) -> tuple[fx.Node, ...]:
    """Return the results of a kernel's call, in the order of its operator's outputs."""
    if not kernel.unpacks(program):
        return (result,)
    return tuple(_item(graph, result, i) for i in range(len(kernel.op.outputs)))


def _item(graph: fx.Graph, result: fx.Node, number: int) -> fx.Node:
    return graph.call_function(operator.getitem, (result, number))


def function_of(graph: fx.Graph, state: Sequence[torch.Tensor]) -> Function:
    """A graph of calls as a function: its first placeholders are the state, the others its arguments."""
    stage, held, _ = _written(graph, state)

    def call(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result: tuple[torch.Tensor, ...] = stage(*held, *inputs)
        return result

    return call


def _written(graph: fx.Graph, state: Sequence[torch.Tensor]) -> Compiled:
    """A graph of calls as a function that takes the state first.

    It is written as text that consists of numbered names and of nothing that the graph holds: what is called, its
    constants and the names of its keywords are values of the function's own namespace. So nothing that a model contains
    is executed as text. ::

        def stage(v0, v1):
            v2 = c0(v0, c1)                     c0 = torch.ops.aten.add.Tensor, c1 = 1
            v3 = c2([v2, v1], **{c3: v0})       c3 = 'out_dtype'
            del v0, v1, v2
            return (v3,)
    """
    number = {node: i for i, node in enumerate(graph.nodes)}
    last = {node: node for node in graph.nodes}  # a result that nobody reads ends at once
    last |= {value: node for node in graph.nodes for value in node.all_input_nodes}
    namespace: dict[str, Any] = {}
    kernels: dict[int, Kernel] = {}

    write = partial(_written_form, number, namespace)
    lines = [f"def stage({', '.join(write(node) for node in graph.nodes if node.op == 'placeholder')}):"]
    for node in graph.nodes:
        if node.op == "output":
            lines.append(f"    return {write(node.args[0])}")
        elif node.op == "call_function":
            arguments = [write(value) for value in node.args]
            if node.kwargs:
                pairs = (f"{write(name)}: {write(value)}" for name, value in node.kwargs.items())
                arguments.append(f"**{{{', '.join(pairs)}}}")
            lines.append(f"    {write(node)} = {write(node.target)}({', '.join(arguments)})")
            if KERNEL in node.meta:
                kernels[len(lines)] = node.meta[KERNEL]
            if ended := [write(value) for value in (*node.all_input_nodes, node) if last[value] is node]:
                lines.append(f"    del {', '.join(ended)}")
    exec("\n".join(lines) + "\n", namespace)
    return Compiled(namespace["stage"], state, kernels)


def _written_form(number: Mapping[fx.Node, int], namespace: dict[str, Any], value: Any) -> str:
    """A value of a graph as text: a node, a list or tuple with values among its items, or a name for a constant."""
    if isinstance(value, fx.Node):
        return f"v{number[value]}"
    if isinstance(value, list | tuple):
        items = "".join(f"{_written_form(number, namespace, item)}, " for item in value)
        return f"[{items}]" if isinstance(value, list) else f"({items})"
    namespace[name := f"c{len(namespace)}"] = value
    return name
