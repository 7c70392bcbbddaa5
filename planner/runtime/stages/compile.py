"""Compile stages into Python functions, each holding only the parameters that its operators read."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import torch

from costmodels.cluster.cluster import Device
from costmodels.host.affinity import copied_to, run_on, torch_device_of
from costmodels.host.packing import PackedWeights, check_room, check_room_on_gpu
from graphs.common.errors import InputError
from graphs.ir import Graph
from graphs.kernels.functions import DeviceState, Subgraph, compile_operators, inputs_of, kept_state
from graphs.kernels.giving_way import Function
from graphs.kernels.kernel import Kernel
from graphs.kernels.kernels import kernels_of
from graphs.kernels.pairs import in_turns
from graphs.program.program import Program, as_held
from graphs.program.traced_strides import lying_as_traced
from planner.runtime.stages.random_generators import is_random, seeded_target
from simulator.stages import Stage


def bring(
    tensor: torch.Tensor, torch_device: torch.device, written: torch.cuda.Event | None, stream: torch.cuda.Stream | None
) -> torch.Tensor:
    """Return a tensor that another thread wrote, where and when the calling thread can read it.

    ``written`` is over when it is written, if it is not yet; ``stream`` is the calling thread's, if that is a GPU's.
    """
    if stream is None:
        return tensor if tensor.device == torch_device else copied_to(tensor, torch_device, written)
    if written is not None:
        stream.wait_event(written)
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))  # keeps its memory until it has been read
    return tensor if tensor.device == torch_device else copied_to(tensor, torch_device, None)


def mark(device: torch.device, timed: bool = False) -> torch.cuda.Event:
    """Return an event that is over when the GPU has done what the calling thread has given it so far.

    An event that is ``timed`` tells when that was.
    """
    event = torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]  # torch has no types here
    event.record(torch.cuda.current_stream(device))
    return event


HOST = torch.device("cpu")


@dataclass(frozen=True)
class CompiledStage:
    """A stage that can be called."""

    stage: Stage  # the operators, their device and their neighbours
    inputs: tuple[str, ...]  # tensors other than state that the stage reads and does not write
    outputs: tuple[str, ...]  # tensors that other stages or the caller read
    call: Function  # takes generators, then the inputs; returns the outputs
    label: str  # first and last operator, for people
    random: tuple[int, ...] = ()  # operators that draw random numbers, each from a generator of its own
    pair: Function | None = None  # the same for two micro-batches: inputs and outputs of the first, then of the second


class ShardedState:
    """The parameters and buffers of each device: tensors that are on the device already are used as they are.

    With ``copied`` each device copies them all the same, for trainers, which write to them. With ``apart`` they are
    copied once for all devices of a torch device, so that no change of the model is seen.
    """

    def __init__(
        self,
        state: Mapping[str, torch.Tensor],
        devices: tuple[torch.device, ...],
        copied: bool = False,
        apart: bool = False,
    ) -> None:
        self._state = state
        self._devices = devices
        self._copied = copied
        self._owned: tuple[dict[str, torch.Tensor], ...] = tuple({} for _ in devices)
        self._copies: dict[tuple[torch.device, str], torch.Tensor] | None = {} if apart else None
        self.packed = PackedWeights(apart)  # for all devices of this host

    def get(self, device: int, name: str) -> torch.Tensor:
        """Return a tensor of the state on a device, moved there once; raise InputError if it has no values."""
        if self._copies is None:
            return self.given(device, name)
        key = self._devices[device], name
        if key not in self._copies:
            self._copies[key] = as_held(self._valued(name), self._devices[device], copied=True)
        self._owned[device][name] = self._copies[key]
        return self._copies[key]

    def given(self, device: int, name: str) -> torch.Tensor:
        """Return a tensor of the state on a device, to be read at once; it may be the model's own."""
        owned = self._owned[device]
        if name not in owned:
            owned[name] = as_held(self._valued(name), self._devices[device], self._copied)
        return owned[name]

    def owned(self, device: int) -> Mapping[str, torch.Tensor]:
        """Return the tensors that a device holds, by name."""
        return self._owned[device]

    def check_room(self, graph: Graph, device: int, kernels: Sequence[Kernel], n_cores: int) -> None:
        """Raise InputError if there is no room for what the kernels of a device pack, and for copies of weights."""
        self.packed.check_room(graph, kernels, n_cores)
        place = self._devices[device]
        if self._copies is not None:
            missing = (name for name in kept_state(graph, kernels) if (place, name) not in self._copies)
            n_bytes = sum(graph.tensor[name].n_bytes for name in missing)
            if place.type == "cpu":
                check_room(graph, n_bytes, "a runner copies", SHARE)
            else:
                check_room_on_gpu(graph, n_bytes, place)

    def _valued(self, name: str) -> torch.Tensor:
        tensor = self._state[name]
        if tensor.device.type == "meta":
            raise InputError(
                f"'{name}' has a shape but no values (the model was imported from a config); "
                "give a model with weights, as .pt2 or package.module:factory"
            )
        return tensor


SHARE = "start it with share_weights=True if the model stays as it is, or use a host with more memory"


@dataclass(frozen=True)
class _OnDevice(DeviceState):
    """The state of one device."""

    state: ShardedState
    number: int  # of the device
    device: Device

    def get(self, name: str) -> torch.Tensor:
        return self.state.get(self.number, name)

    def packed(self, kernel: Kernel, name: str) -> torch.Tensor:
        return self.state.packed.get(kernel, name, partial(self.state.given, self.number), len(self.device.cores))


def compile_stages(
    programs: Program | Sequence[Program],
    stages: tuple[Stage, ...],
    devices: Sequence[Device],
    local: Collection[int] | None = None,
    pairs: bool = False,
    apart: bool = False,
) -> tuple[dict[int, CompiledStage], ShardedState]:
    """Generate the function of each stage of the devices of this process, ``local``; by default of all.

    Several programs are those of the copies of a network at several sizes, which have the same operators and state by
    name. With ``pairs``, stages that gain by it, and draw no random numbers, also get the function of two
    micro-batches. With ``apart``, they read copies of the model's weights.
    State that only other devices hold needs no values. Raise InputError if this host does not have a device, a weight
    of a stage has no values, or an operator draws random numbers that cannot be seeded.
    """
    used = {stage.device for stage in stages}.intersection(range(len(devices)) if local is None else local)
    torch_devices = tuple(torch_device_of(device) if i in used else HOST for i, device in enumerate(devices))
    several = [programs] if isinstance(programs, Program) else programs
    state = ShardedState(several[0].state, torch_devices, apart=apart)
    strides = [lying_as_traced(program) for program in several]
    outputs = outputs_of(several[0].graph, stages)
    compiled = {}
    for number, stage in enumerate(stages):
        if stage.device in used:
            size = stage.copy % len(several)
            subgraph = Subgraph(several[size], {}, outputs[number], strides[size])
            compiled[number] = _compile(subgraph, stage, state, devices[stage.device], pairs)
    return compiled, state


def outputs_of(graph: Graph, stages: Sequence[Stage]) -> tuple[tuple[str, ...], ...]:
    """Return for each stage the tensors that it writes and other stages, or the caller, read."""
    readers: dict[tuple[int, str], set[int]] = {}  # a copy of the network and a tensor -> stages
    for number, stage in enumerate(stages):
        for name in chain.from_iterable(graph.ops[op].inputs for op in stage.ops):
            readers.setdefault((stage.copy, name), set()).add(number)
    returned = set(graph.outputs)

    def leaves(number: int, copy: int, name: str) -> bool:
        return name in returned or bool(readers.get((copy, name), set()) - {number})

    return tuple(
        tuple(name for op in stage.ops for name in graph.ops[op].outputs if leaves(number, stage.copy, name))
        for number, stage in enumerate(stages)
    )


def _compile(subgraph: Subgraph, stage: Stage, state: ShardedState, device: Device, pairs: bool) -> CompiledStage:
    """Compile one function, whose operators have no kernels yet.

    Its parameters are generators and inputs; it returns a tuple of outputs.
    """
    program, outputs = subgraph.program, tuple(subgraph.outputs)
    kernels = {i: kernels_of(program, program.graph.ops[i], torch_device_of(device), device.kernels) for i in stage.ops}
    state.check_room(program.graph, stage.device, [*chain.from_iterable(kernels.values())], len(device.cores))
    nodes = {i: program.calls[program.graph.ops[i].name].node for i in stage.ops}
    random = tuple(i for i, node in nodes.items() if is_random(node))
    seeded = {program.graph.ops[i].name: seeded_target(nodes[i]) for i in random}
    weights = _OnDevice(state, stage.device, device)
    make = partial(compile_operators, subgraph._replace(kernels=kernels), weights)
    call = run_on(device, partial(make, seeded))
    turns = in_turns(kernels) if pairs and not random else ()
    pair = run_on(device, partial(make, turns=turns)) if turns else None
    label = stage.label([op.name for op in program.graph.ops])
    return CompiledStage(stage, inputs_of(program.graph, stage.ops), outputs, call, label, random, pair)
