"""Runner: a planned model that is called like the model itself."""

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from costmodels.host.affinity import is_here
from graphs import checks
from graphs.errors import InputError
from graphs.importers.from_torch import imported
from graphs.ir import Graph
from graphs.program.arguments import arguments_of, by_name
from graphs.program.program import Program
from planner.plans.given import Named, given_plan, given_program
from planner.plans.plan import Plan
from planner.runtime.closing import Closing, Ending
from planner.runtime.inference.caller import check_gradients, check_surroundings
from planner.runtime.inference.engine import Engine, Tensors
from planner.runtime.inference.inline_engine import InlineEngine
from planner.runtime.stages.compile import ShardedState, compile_stages
from planner.runtime.stages.numerics import IN_PROCESSES, ON_THREADS, check_numerics, numerics
from planner.runtime.stages.random_generators import check_seed
from simulator.stages import split_stages
from simulator.timeline import Timeline

if TYPE_CHECKING:
    from planner.runtime.distributed.inference.coordinator import Coordinator


def start(
    plan: Plan | Named,
    model: nn.Module | Program | Named,
    example_inputs: Any = None,
    *,
    processes: bool = False,
    seed: int = 0,
) -> "Runner":
    """Bring a model onto the devices of a plan.

    Args:
        plan: from `planner.plan` or `planner.load_plan`, or the path of a plan.json.
        model: the model that the plan was made for, its Program where it has been imported already, or its name as on
            the command line.
        example_inputs: in any form that `planner.plan` takes; zeros of the planned shapes if left out.
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
    plan = given_plan(plan)
    program = planned(plan, given_program(model, plan.workload.batch, plan.workload.trains), example_inputs)
    if not processes:
        return Runner(plan, program, seed=seed)
    from planner.runtime.distributed.inference.launcher import start_processes

    check_runs(plan, program)
    return Runner(plan, program, start_processes(plan, program, seed=seed), seed)


class _Given(NamedTuple):
    """What one micro-batch begins with.

    Attributes:
        inputs: as the operators read them.
        handed: those that the model returns as they are, by name.
    """

    inputs: Tensors
    handed: Tensors


class Runner(Closing):
    """A model that runs where its plan says. Any number of threads may call it.

    ::

        with planner.start(plan, model) as runner:
            y = runner(x)                       # one micro-batch, as model(x)
            for y in runner.stream(batches):    # many at once, results in order
                ...
    """

    def __init__(self, plan: Plan, program: Program, coordinator: "Coordinator | None" = None, seed: int = 0) -> None:
        """Start the devices as threads, where no front to those of other processes is given, which have that seed."""
        check_runs(plan, program)
        check_seed(seed)
        self.plan = plan
        self.program = program
        self.seed = seed
        self._kinds = frozenset(
            "cpu" if plan.cluster.devices[number].cuda is None else "cuda" for number in plan.placement.device
        )
        self._switches = ON_THREADS if coordinator is None else IN_PROCESSES
        self._numerics = numerics(self._switches)
        self._in_flight = threading.BoundedSemaphore(plan.workload.in_flight)
        self._kept = {name: program.state[name] for name in plan.graph.outputs if name in program.state}
        self._engine: Engine | Coordinator
        if coordinator is None:
            self._engine, self._state = _threads(plan, program)
        else:
            self._engine, self._state = coordinator, coordinator.state
        self._ending = Ending(self, "runner", self._engine.close)
        if isinstance(self._engine, Engine):
            self._engine.seed(seed)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one micro-batch and return what the model returns; tensors are where they were computed.

        Inputs that lie in memory otherwise than those that the model was imported with are copied.
        """
        return self._result(self._submit(self._given(args, kwargs)))

    def stream(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Run many micro-batches at once, as many as the plan has in flight; results come in the order of the batches.

        A batch is copied when it is taken, so its memory may be used again for the next one; results share no memory
        with batches and weights. Where a batch fails, or taking one does, the results of all before come first.

        Args:
            batches: each in any form that `planner.plan` takes example inputs in.
        """
        checks.instance(batches, Iterable, "the stream", "something that yields micro-batches")
        return self._stream(arguments_of(batch, "the inputs of a micro-batch") for batch in batches)

    def replay(self, arguments: tuple[tuple[Any, ...], dict[str, Any]], count: int) -> Iterator[Any]:
        """Stream the same micro-batch ``count`` times; it is given as (positional, keyword) arguments."""
        if not checks.fits(arguments, tuple[tuple[Any, ...], Mapping[str, Any]]):
            shown = checks.shown(arguments)
            raise InputError(f"the micro-batch is {shown}; give a pair of a tuple and a dict, as (args, kwargs)")
        return self._stream(repeat(arguments, checks.whole(count, "the number of micro-batches")))

    def _stream(self, calls: Iterable[tuple[tuple[Any, ...], dict[str, Any]]]) -> Iterator[Any]:
        waiting: deque[tuple[Future[Tensors], Tensors]] = deque()
        source = iter(calls)
        while True:
            try:
                batch = self._given(*next(source), copied=True)
            except StopIteration:
                break
            except Exception as error:  # whatever the source raises: when its turn has come
                waiting.append((_failed(error), {}))
                break
            if len(waiting) >= self.plan.workload.in_flight:
                yield self._result(waiting.popleft(), apart=True)
            waiting.append(self._submit(batch))
        while waiting:
            yield self._result(waiting.popleft(), apart=True)

    def owned(self, device: str) -> Mapping[str, torch.Tensor]:
        """The parameters and buffers that a device of this process holds, by name."""
        checks.one_of(device, "the device", self.plan.cluster.index)
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
        self._ending.check()
        self._engine.record()

    def timeline(self) -> Timeline:
        """What ran on which device, and went over which link, since `record`."""
        self._ending.check()
        flows = self.plan.table.flows
        spans = tuple(
            replace(span, label=flows[span.index].tensor) if span.kind == "transfer" else span
            for span in self._engine.spans()
        )
        count = max((span.micro_batch + 1 for span in spans), default=0)
        return Timeline(tuple(device.name for device in self.plan.cluster.devices), count, spans)

    def close(self) -> None:
        """End the threads and processes; calls that wait for a result fail. May be called again.

        They also end when nobody refers to the runner any more.
        """
        self._ending.now()

    def _given(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], copied: bool = False) -> _Given:
        """The arguments of one micro-batch, where the answer will be the model's."""
        self._ending.check()
        check_surroundings(self._kinds)
        check_numerics(self._numerics, self._switches)
        tensors = self.program.flatten(args, kwargs)
        check_gradients(self.program.graph.inputs, tensors)
        inputs = self.program.inputs(tensors, copied)
        shown = inputs.values() if copied else tensors
        return _Given(
            inputs, {name: t for name, t in zip(inputs, shown, strict=True) if name in self.plan.graph.outputs}
        )

    def _submit(self, given: _Given) -> "tuple[Future[Tensors], Tensors]":
        self._in_flight.acquire()
        try:
            future = self._engine.submit(given.inputs)
        except Exception as error:
            future = _failed(error)
        except BaseException:
            self._in_flight.release()
            raise
        release = self._in_flight.release
        future.add_done_callback(lambda _: release())
        return future, given.handed

    def _result(self, submitted: "tuple[Future[Tensors], Tensors]", apart: bool = False) -> Any:
        """Wait; outputs that no operator writes are inputs or parameters handed through.

        Args:
            submitted: the micro-batch.
            apart: from the weights, which those that are on their way read.
        """
        self._ending.check()  # a stream may go on in a fork
        future, handed = submitted
        written = future.result()
        for tensor in written.values():
            if tensor.is_cuda:  # the caller's stream reads it: its memory is kept until that has
                tensor.record_stream(torch.cuda.current_stream(tensor.device))
        found = {**self._kept, **handed, **written}
        if apart:
            found = {
                name: tensor.clone() if _memory(tensor) in self._held else tensor for name, tensor in found.items()
            }
        return self.program.unflatten(found)

    @cached_property
    def _held(self) -> frozenset[int]:
        """Where the weights are that results can share memory with."""
        owned = (self._state.owned(device) for device in range(len(self.plan.cluster.devices)))
        return frozenset(map(_memory, chain(self._kept.values(), *(each.values() for each in owned))))


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _failed(error: Exception) -> "Future[Tensors]":
    """A micro-batch that was not begun."""
    future: Future[Tensors] = Future()
    future.set_exception(error)
    return future


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
        return InlineEngine(devices, numbered, outputs, min(used)), state
    return Engine(devices, numbered, outputs), state


def check_runs(plan: Plan, program: Program) -> None:
    """A plan can be run with a model.

    Raises:
        InputError: if it is for another model or for training, or the default dtype is another one now.
    """
    check_types(plan, program)
    if plan.workload.trains:
        raise InputError("the plan is for training; train with planner.train, or plan for throughput or latency")
    if program.training:
        raise InputError(f"'{program.graph.name}' was imported as it is trained; import it without training=True")
    check_same(plan.graph, program.graph)
    if program.default_dtype != torch.get_default_dtype():
        raise InputError(
            f"'{program.graph.name}' was imported with the default dtype {program.default_dtype}, now it is "
            f"{torch.get_default_dtype()}; call torch.set_default_dtype({program.default_dtype}), or import it again"
        )


def check_types(plan: object, program: object) -> None:
    """A plan is one, and so is a program.

    Raises:
        InputError: if not.
    """
    checks.instance(plan, Plan, "the plan", "a Plan, or its path to planner.start or planner.train")
    checks.instance(program, Program, "the model", "a Program, or the model to planner.start or planner.train")


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


def planned(plan: Plan, model: nn.Module | Program, example_inputs: Any) -> Program:
    """The program of a plan's model; a module without example inputs is imported with zeros of the planned shapes."""
    if example_inputs is None and isinstance(model, nn.Module):
        tensors = [plan.graph.tensor[name] for name in plan.graph.inputs]
        zeros = [torch.zeros(tensor.shape, dtype=getattr(torch, tensor.dtype)) for tensor in tensors]
        example_inputs = by_name(model.forward, plan.graph.inputs, zeros)
    return imported(model, example_inputs, name=plan.graph.name, training=plan.workload.trains)
