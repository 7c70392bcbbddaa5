"""Compile stages into Python functions, each holding only the parameters that its operators read.

A function has one line for each operator and drops each value behind its last use. So a stage costs no more per
operator than the eager module does.
"""

import operator
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx

from costmodels.cluster import Device
from costmodels.host.affinity import run_on, torch_device_of
from costmodels.host.buffers import PlannedMemory, planned_memory
from costmodels.host.kernel import RESULT, Kernel, Pack
from costmodels.host.kernels import kernels_of
from costmodels.host.packing import check_room_to_pack
from graphs.errors import InputError
from graphs.ir import STATE, Graph
from graphs.program.program import Program, as_held
from planner.runtime.stages.random_generators import is_random, seeded_target
from simulator.stages import Stage


def bring(
    tensor: torch.Tensor, torch_device: torch.device, written: torch.cuda.Event | None, stream: torch.cuda.Stream | None
) -> torch.Tensor:
    """Return a tensor that another thread wrote, where and when the calling thread can read it.

    ``written`` is over when it is written, if it is not yet; ``stream`` is the calling thread's, if that is a GPU's.
    """
    if stream is None and tensor.device == torch_device:
        return tensor
    if written is not None and stream is not None:
        stream.wait_event(written)
    elif written is not None:
        written.synchronize()  # a CPU device cannot wait on a stream
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))  # keeps its memory until it has been read
    return tensor if tensor.device == torch_device else tensor.to(torch_device, non_blocking=stream is not None)


def mark(device: torch.device, timed: bool = False) -> torch.cuda.Event:
    """Return an event that is over when the GPU has done what the calling thread has given it so far.

    An event that is ``timed`` tells when that was.
    """
    event = torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]  # torch has no types here
    event.record(torch.cuda.current_stream(device))
    return event


def function_of(graph: fx.Graph, state: list[torch.Tensor]) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return a graph of calls as a function: its first placeholders are the state, the others its arguments.

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
            if ended := [write(value) for value in (*node.all_input_nodes, node) if last[value] is node]:
                lines.append(f"    del {', '.join(ended)}")
    exec("\n".join(lines) + "\n", namespace)
    stage = namespace["stage"]

    def call(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result: tuple[torch.Tensor, ...] = stage(*state, *inputs)
        return result

    return call


def _written_form(number: Mapping[fx.Node, int], namespace: dict[str, Any], value: Any) -> str:
    """Write a value of a graph, a list or tuple with values among its items, or a constant of the namespace."""
    if isinstance(value, fx.Node):
        return f"v{number[value]}"
    if isinstance(value, list | tuple):
        items = "".join(f"{_written_form(number, namespace, item)}, " for item in value)
        return f"[{items}]" if isinstance(value, list) else f"({items})"
    namespace[name := f"c{len(namespace)}"] = value
    return name


HOST = torch.device("cpu")


@dataclass(frozen=True)
class CompiledStage:
    """A stage that can be called."""

    stage: Stage  # the operators, their device and their neighbours
    inputs: tuple[str, ...]  # tensors other than state that the stage reads and does not write
    outputs: tuple[str, ...]  # tensors that other stages or the caller read
    call: Callable[..., tuple[torch.Tensor, ...]]  # takes generators, then the inputs; returns the outputs
    label: str  # first and last operator, for people
    random: tuple[int, ...] = ()  # operators that draw random numbers, each from a generator of its own


class ShardedState:
    """The parameters and buffers of each device: tensors that are on the device already are used as they are.

    With ``copied`` they are copied all the same, for trainers, which write to them.
    """

    def __init__(
        self, state: Mapping[str, torch.Tensor], devices: tuple[torch.device, ...], copied: bool = False
    ) -> None:
        self._state = state
        self._devices = devices
        self._copied = copied
        self._owned: tuple[dict[str, torch.Tensor], ...] = tuple({} for _ in devices)
        self._packed: dict[tuple[str, str, int], torch.Tensor] = {}

    def get(self, device: int, name: str) -> torch.Tensor:
        """Return a tensor of the state on a device, moved there once; raise InputError if it has no values."""
        owned = self._owned[device]
        if name not in owned:
            tensor = self._state[name]
            if tensor.device.type == "meta":
                raise InputError(
                    f"'{name}' has a shape but no values (the model was imported from a config); "
                    "give a model with weights, as .pt2 or package.module:factory"
                )
            owned[name] = as_held(tensor, self._devices[device], self._copied)
        return owned[name]

    def packed(self, device: int, kernel: Kernel, name: str, on: Device) -> torch.Tensor:
        """Return a weight as a kernel packs it, once for all devices of this host with as many cores.

        The calling thread is the device.
        """
        key = _pack_key(kernel, name, on)
        if key not in self._packed:
            self._packed[key] = kernel.packs[name](partial(self.get, device))
        return self._packed[key]

    def unpacked(self, kernels: Iterable[Kernel], on: Device) -> Iterator[Pack]:
        """What `packed` has to pack first for some kernels on a device."""
        for kernel in kernels:
            yield from (pack for name, pack in kernel.packs.items() if _pack_key(kernel, name, on) not in self._packed)

    def owned(self, device: int) -> Mapping[str, torch.Tensor]:
        """Return the tensors that a device holds, by name."""
        return self._owned[device]


def _pack_key(kernel: Kernel, name: str, on: Device) -> tuple[str, str, int]:
    """What a packed weight is kept by: oneDNN packs it in another way for another number of cores."""
    return kernel.op.name, name, len(on.cores)


def compile_stages(
    program: Program, stages: tuple[Stage, ...], devices: Sequence[Device], local: Collection[int] | None = None
) -> tuple[dict[int, CompiledStage], ShardedState]:
    """Generate the function of each stage of the devices of this process, ``local``; by default of all.

    State that only other devices hold needs no values. Raise InputError if this host does not have a device, a weight
    of a stage has no values, or an operator draws random numbers that cannot be seeded.
    """
    used = {stage.device for stage in stages}.intersection(range(len(devices)) if local is None else local)
    torch_devices = tuple(torch_device_of(device) if i in used else HOST for i, device in enumerate(devices))
    state = ShardedState(program.state, torch_devices)
    outputs = outputs_of(program.graph, stages)
    compiled = {
        number: _compile(program, stage, outputs[number], state, devices[stage.device])
        for number, stage in enumerate(stages)
        if stage.device in used
    }
    return compiled, state


def outputs_of(graph: Graph, stages: Sequence[Stage]) -> tuple[tuple[str, ...], ...]:
    """Return for each stage the tensors that it writes and other stages, or the caller, read."""
    readers: dict[tuple[int, str], set[int]] = {}  # a copy of the network and a tensor -> stages
    for number, stage in enumerate(stages):
        for name in _read(graph, stage):
            readers.setdefault((stage.copy, name), set()).add(number)
    returned = set(graph.outputs)

    def leaves(number: int, copy: int, name: str) -> bool:
        return name in returned or bool(readers.get((copy, name), set()) - {number})

    return tuple(
        tuple(name for name in _written(graph, stage) if leaves(number, stage.copy, name))
        for number, stage in enumerate(stages)
    )


def inputs_of(graph: Graph, stage: Stage) -> tuple[str, ...]:
    """Return the tensors other than state that a stage reads and does not write."""
    written = set(_written(graph, stage))
    return tuple(n for n in _read(graph, stage) if n not in written and graph.tensor[n].role not in STATE)


def _read(graph: Graph, stage: Stage) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for op in stage.ops for name in graph.ops[op].inputs))


def _written(graph: Graph, stage: Stage) -> tuple[str, ...]:
    return tuple(name for op in stage.ops for name in graph.ops[op].outputs)


def _compile(
    program: Program, stage: Stage, outputs: tuple[str, ...], state: ShardedState, device: Device
) -> CompiledStage:
    """Compile one function: its parameters are state, generators and inputs; it returns a tuple of outputs."""
    ops = [program.graph.ops[i] for i in stage.ops]
    torch_device = torch_device_of(device)
    kernels = [kernel for op in ops for kernel in kernels_of(program, op, torch_device, device.kernels)]
    inputs = inputs_of(program.graph, stage)
    check_room_to_pack(program, state.unpacked(kernels, device))

    def made() -> tuple[list[dict[str, torch.Tensor]], PlannedMemory]:
        own = [{name: state.packed(stage.device, kernel, name, device) for name in kernel.packs} for kernel in kernels]
        return own, planned_memory(program, kernels, own, outputs)

    weights, (planned, fixed) = run_on(device, made)
    graph, held = fx.Graph(), list[torch.Tensor]()

    def hold(tensors: Mapping[str, torch.Tensor]) -> dict[str, fx.Node]:
        """Placeholders of tensors that are the same in every run."""
        held.extend(tensors.values())
        return _placeholders(graph, "state", len(held) - len(tensors), tensors)

    value = hold({name: state.get(stage.device, name) for name in _kept(program.graph, kernels)}) | hold(fixed)
    packed, buffers = [hold(own) for own in weights], hold(planned)
    random = tuple(i for i in stage.ops if is_random(program.calls[program.graph.ops[i].name].node))
    generators = {program.graph.ops[i].name: graph.placeholder(f"generator{i}") for i in random}
    value |= _placeholders(graph, "arg", 0, inputs)
    for kernel, own in zip(kernels, packed, strict=True):
        if kernel.op.outputs[0] in fixed:
            continue
        reads = map(ChainMap(own, value).__getitem__, kernel.reads)
        buffer = buffers.get(kernel.op.outputs[0])
        written = add_call(graph, program, kernel, reads, generators.get(kernel.op.name), buffer)
        value.update(zip(kernel.op.outputs, written, strict=True))
    graph.output(tuple(value[name] for name in outputs))
    graph.eliminate_dead_code(lambda node: node.is_impure() or RESULT in node.kwargs)  # a view may be read
    label = stage.label([op.name for op in program.graph.ops])
    return CompiledStage(stage, inputs, outputs, function_of(graph, held), label, random)


def _placeholders(graph: fx.Graph, word: str, first: int, keys: Iterable[str]) -> dict[str, fx.Node]:
    """Parameters of the function, with a word and a number, from the first on, for names."""
    return {key: graph.placeholder(f"{word}{first + i}") for i, key in enumerate(keys)}


def _kept(graph: Graph, kernels: Sequence[Kernel]) -> dict[str, None]:
    """Return the names of the state that is read as the model has it, not packed."""
    read = (name for kernel in kernels for name in kernel.reads if name not in kernel.packs)
    return dict.fromkeys(name for name in read if graph.tensor[name].role in STATE)


def add_call(
    graph: fx.Graph,
    program: Program,
    kernel: Kernel,
    reads: Iterable[fx.Node],
    generator: fx.Node | None = None,
    buffer: fx.Node | None = None,
) -> tuple[fx.Node, ...]:
    """Add a line for a kernel to a graph, and return what the kernel writes, in the order of its operator's outputs.

    ``reads`` are the tensors that the kernel reads, in the order of ``kernel.reads``. It writes into ``buffer`` if that
    is given.
    """
    op, arguments = kernel.op, iter(reads)
    args, kwargs = kernel.bound(program, lambda _: next(arguments))
    target = kernel.target
    if generator is not None:
        target, kwargs = seeded_target(program.calls[op.name].node), {**kwargs, "generator": generator}
    result = graph.call_function(target, args, {RESULT: buffer} if buffer else kwargs)
    if not kernel.unpacks(program):
        return (result,)
    return tuple(graph.call_function(operator.getitem, (result, i)) for i in range(len(op.outputs)))
