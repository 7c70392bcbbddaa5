"""Runner: a planned model that is called like the model itself."""

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from costmodels.calibrate.pinned import is_here
from graphs.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.importers.program import Program
from graphs.ir import Graph
from planner.plans import Plan
from planner.runtime.closing import Closing
from planner.runtime.compile import ShardedState, compile_stages
from planner.runtime.engine import Engine, Tensors
from planner.runtime.here import Here
from planner.runtime.training.seeds import check_seed
from simulator.stages import split_stages
from simulator.timeline import Timeline

if TYPE_CHECKING:
    from planner.runtime.processes.front import Front


def start(
    plan: Plan,
    model: nn.Module | Program,
    example_inputs: tuple[Any, ...] | None = None,
    *,
    processes: bool = False,
    seed: int = 0,
) -> "Runner":
    """Bring a model onto the devices of a plan.

    Args:
        plan: from `planner.plan` or `planner.load_plan`.
        model: the model that the plan was made for, or its Program where it has been imported already.
        example_inputs: its positional arguments; zeros of the planned shapes if left out.
        processes: give each device a process of its own on this host, rather than a thread of this process.
        seed: of operators that draw random numbers. They follow from it, the number of the micro-batch since the start
            and the operator, on any placement; those of a GPU are others than those of a CPU.

    Returns:
        A runner; use it in a ``with`` statement, or close it.

    Raises:
        InputError: if the plan is for another model, a device is not on this host, or an operator draws random numbers
            that cannot be seeded.
        RankError: if a process does not start.
    """
    check_seed(seed)
    if isinstance(model, nn.Module):
        model = program_from_module(model, example_inputs or zeros_of(plan.graph), name=plan.graph.name)
    if not processes:
        return Runner(plan, model, seed=seed)
    from planner.runtime.processes.hosting import start_processes

    check_runs(plan, model)
    return Runner(plan, model, start_processes(plan, model, seed=seed), seed)


class Runner(Closing):
    """A model that runs where its plan says. Any number of threads may call it.

    ::

        with planner.start(plan, model) as runner:
            y = runner(x)                       # one micro-batch, as model(x)
            for y in runner.stream(batches):    # many at once, results in order
                ...
    """

    def __init__(self, plan: Plan, program: Program, front: "Front | None" = None, seed: int = 0) -> None:
        """Start the devices as threads, where no front to those of other processes is given, which have that seed."""
        check_runs(plan, program)
        self.plan = plan
        self.program = program
        self.seed = seed
        self._in_flight = threading.BoundedSemaphore(plan.workload.in_flight)
        self._kept = {name: program.state[name] for name in plan.graph.outputs if name in program.state}
        self._engine: Engine | Front
        if front is None:
            self._engine, self._state = _threads(plan, program)
            self._engine.seed(seed)
        else:
            self._engine, self._state = front, front.state

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one micro-batch and return what the model returns; tensors are where they were computed."""
        return self._result(self._submit(args, kwargs))

    def stream(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Run many micro-batches at once, as many as the plan has in flight; results come in the order of the batches.

        Args:
            batches: each a tensor, a tuple of positional arguments, or a mapping of keyword arguments.
        """
        return self._stream(map(as_arguments, batches))

    def replay(self, arguments: tuple[tuple[Any, ...], dict[str, Any]], count: int) -> Iterator[Any]:
        """Stream the same micro-batch ``count`` times; it is given as (positional, keyword) arguments."""
        return self._stream(repeat(arguments, count))

    def _stream(self, calls: Iterable[tuple[tuple[Any, ...], Mapping[str, Any]]]) -> Iterator[Any]:
        waiting: deque[tuple[Future[Tensors], Tensors]] = deque()
        for args, kwargs in calls:
            if len(waiting) >= self.plan.workload.in_flight:
                yield self._result(waiting.popleft())
            waiting.append(self._submit(args, kwargs))
        while waiting:
            yield self._result(waiting.popleft())

    def owned(self, device: str) -> Mapping[str, torch.Tensor]:
        """The parameters and buffers that a device of this process holds, by name."""
        return self._state.owned(self.plan.cluster.index[device])

    @property
    def begun(self) -> int:
        """How many micro-batches have begun since the start; random numbers of the next follow from it."""
        return self._engine.begun

    @property
    def pids(self) -> tuple[int, ...]:
        """Other processes of this host that devices run in."""
        return () if isinstance(self._engine, Engine) else self._engine.pids

    def record(self) -> None:
        """Measure the micro-batches that enter from here on; `timeline` returns what was seen."""
        self._engine.record()

    def timeline(self) -> Timeline:
        """What ran on which device, and went over which link, since `record`."""
        flows = self.plan.table.flows
        spans = tuple(
            replace(span, label=flows[span.index].tensor) if span.kind == "transfer" else span
            for span in self._engine.spans()
        )
        count = max((span.micro_batch + 1 for span in spans), default=0)
        return Timeline(tuple(device.name for device in self.plan.cluster.devices), count, spans)

    def close(self) -> None:
        """End the threads and processes; calls that wait for a result fail. May be called again."""
        self._engine.close()

    def _submit(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> "tuple[Future[Tensors], Tensors]":
        inputs = dict(zip(self.program.graph.inputs, self.program.flatten(args, kwargs), strict=True))
        self._in_flight.acquire()
        try:
            future = self._engine.submit(inputs)
        except BaseException:
            self._in_flight.release()
            raise
        future.add_done_callback(lambda _: self._in_flight.release())
        return future, {name: tensor for name, tensor in inputs.items() if name in self.plan.graph.outputs}

    def _result(self, submitted: "tuple[Future[Tensors], Tensors]") -> Any:
        """Wait; outputs that no operator writes are inputs or parameters handed through."""
        future, handed = submitted
        written = future.result()
        for tensor in written.values():
            if tensor.is_cuda:  # the caller's stream reads it: its memory is kept until that has
                tensor.record_stream(torch.cuda.current_stream(tensor.device))
        return self.program.unflatten({**self._kept, **handed, **written})


def _threads(plan: Plan, program: Program) -> tuple[Engine, ShardedState]:
    """The devices as threads of this process, the calling one if that will do, and what they hold."""
    devices = plan.cluster.devices
    used = set(plan.placement.device)
    stages = split_stages(plan.table, plan.placement)
    compiled, state = compile_stages(program, stages, devices)
    written = {name for stage in compiled for name in stage.outputs}
    outputs = tuple(name for name in plan.graph.outputs if name in written)
    numbered = dict(enumerate(compiled))
    if len(used) == 1 and is_here(devices[min(used)]):
        return Here(devices, numbered, outputs, min(used)), state
    return Engine(devices, numbered, outputs), state


def check_runs(plan: Plan, program: Program) -> None:
    """A plan can be run with a model.

    Raises:
        InputError: if it is for another model, or for training.
    """
    if plan.workload.trains:
        raise InputError("the plan is for training; train with planner.train, or plan for throughput or latency")
    if program.training:
        raise InputError(f"'{program.graph.name}' was imported as it is trained; import it without training=True")
    check_same(plan.graph, program.graph)


def check_same(planned: Graph, given: Graph) -> None:
    """The graph of a plan is that of a model.

    Raises:
        InputError: if not; it names the first difference.
    """
    if planned.fingerprint != given.fingerprint:
        raise InputError(
            f"the plan is for '{planned.name}' ({planned.fingerprint}), the model is '{given.name}' "
            f"({given.fingerprint}): {_first_difference(planned, given)}; plan for this model and batch"
        )


def _first_difference(planned: Graph, given: Graph) -> str:
    for a, b in zip(planned.tensors, given.tensors, strict=False):
        if a != b:
            ours, theirs = (f"'{t.name}' {list(t.shape)} {t.dtype}" for t in (a, b))
            return f"tensor {ours} of the plan meets {theirs}"
    for one, other in zip(planned.ops, given.ops, strict=False):
        if one != other:
            return f"operator '{one.name}' ({one.kind}) of the plan has another kind, input, attribute or module there"
    return f"the plan has {len(planned.ops)} operators, the model {len(given.ops)}, or their inputs or outputs differ"


def as_arguments(batch: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Positional and keyword arguments, from a tensor, a tuple or a mapping."""
    match batch:
        case tuple():
            return batch, {}
        case Mapping():
            return (), batch
    return (batch,), {}


def zeros_of(graph: Graph) -> tuple[torch.Tensor, ...]:
    """The inputs of a network, as zeros."""
    tensors = (graph.tensor[name] for name in graph.inputs)
    return tuple(torch.zeros(tensor.shape, dtype=getattr(torch, tensor.dtype)) for tensor in tensors)
