"""Runner: a planned model that is called like the model itself."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from costmodels.host.affinity import settle
from costmodels.host.packing import address_of
from graphs.common import checks
from graphs.common.errors import InputError
from graphs.common.promises import LOOK_S, Promise
from graphs.program.arguments import arguments_of
from graphs.program.program import Program, as_held
from planner.plans.plan import Plan
from planner.runtime.closing import Closing, Ending
from planner.runtime.inference.engine import Engine
from planner.runtime.inference.inline_engine import engine_of
from planner.runtime.inference.prefetch import prefetched
from planner.runtime.inference.tasks import Tensors
from planner.runtime.matching import check_runs, rewritten_for
from planner.runtime.stages.compile import ShardedState, compile_stages
from planner.runtime.stages.numerics import IN_PROCESSES, ON_THREADS, check_numerics, numerics
from planner.runtime.stages.random_generators import check_seed
from simulator.timeline import Timeline

if TYPE_CHECKING:
    from planner.runtime.distributed.inference.coordinator import Coordinator


class Runner(Closing):
    """A model that runs where its plan says. Any number of threads may call it.

    ::

        with planner.start(plan, model) as runner:
            y = runner(x)                       # one micro-batch, as model(x)
            for y in runner.stream(batches):    # many at once, results in order
                ...

    Attributes:
        plan: where every operator runs.
        program: the model, imported.
        seed: seed of operators that draw random numbers.
        pids: other processes of this host that devices run in.
        in_pairs: whether a stream runs two micro-batches at once in each copy of the network.
    """

    def __init__(
        self,
        plan: Plan,
        program: Program,
        executor: "Coordinator | None" = None,
        seed: int = 0,
        share_weights: bool = False,
    ) -> None:
        """Start the devices as threads of this process, unless an executor with that seed is given.

        They have copies of the model's weights, unless these are shared with the model, which must not change then.
        """
        program = rewritten_for(plan, program)
        check_runs(plan, program)
        check_seed(seed)
        self.plan = plan
        self.program = program
        self.seed = seed
        self._kinds = frozenset(
            "cpu" if plan.cluster.devices[number].cuda is None else "cuda" for number in plan.placement.used
        )
        self._switches = ON_THREADS if executor is None else IN_PROCESSES
        self._numerics = numerics(self._switches)
        self._entering = threading.Lock()  # of the thread whose micro-batch enters next
        self._on_way: set[Promise[Tensors]] = set()  # of micro-batches that have entered
        self._left: queue.SimpleQueue[None] = queue.SimpleQueue()  # an entry if one has left lately
        kept = {name: program.state[name] for name in plan.graph.outputs if name in program.state}
        if not share_weights:
            kept = {name: as_held(each, each.device, copied=True) for name, each in kept.items()}
        self._kept = kept
        self._engine: Engine | Coordinator
        if executor is None:
            self._engine, self._state = _threads_of(plan, program, apart=not share_weights)
            self._engine.seed(seed)
            self.in_pairs = self._engine.pairs
        else:
            self._engine, self._state, self.in_pairs = executor, executor.state, False
        self.pids = () if executor is None else executor.pids
        self._at_once = 2 if self.in_pairs else 1
        queues = isinstance(self._engine, Engine) and self._engine.queues
        self._prefetched = prefetched(plan, self._at_once) if queues else 0
        self._room = plan.workload.in_flight + self._prefetched  # for micro-batches on their way
        self._ending = Ending(self, "runner", self._engine.close)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one micro-batch and return what the model returns; tensors are where they were computed.

        Inputs with other strides than those that the model was imported with are copied.
        """
        (submitted,) = self._submit([self._given(args, kwargs)])
        return self._result(submitted)

    def stream(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Run many micro-batches at once, as many as the plan has in flight; results come in the order of the batches.

        Short ones are prefetched for copies of a network, see `planner.runtime.inference.prefetch`. A batch is copied
        when it is taken, so its memory may be used again for the next one; results share no memory with batches and
        weights. If a batch fails, or taking one does, the results of all earlier ones come first.

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
        return self._stream(repeat(arguments, checks.integer(count, "the number of micro-batches")))

    def _stream(self, calls: Iterable[tuple[tuple[Any, ...], dict[str, Any]]]) -> Iterator[Any]:
        waiting: deque[tuple[Promise[Tensors], Tensors]] = deque()
        source, failed = iter(calls), list[tuple[Promise[Tensors], Tensors]]()
        while not failed:
            full = self._room - self._at_once
            if len(waiting) > full:
                self._ending.check()  # a stream may go on in a fork
                waiting[max(self._prefetched - 1, 0)][0].wait()  # wakes up for all of them
            while waiting and (waiting[0][0].done() or len(waiting) > full):
                yield self._result(waiting.popleft(), apart=True)
            taken: list[tuple[Tensors, Tensors]] = []
            try:
                for args, kwargs in islice(source, self._at_once):
                    taken.append(self._given(args, kwargs, copied=True))
            except Exception as error:  # whatever the source raises: when its turn has come
                failed.append((_failed(error), {}))
            if not taken:
                break
            waiting += self._submit(taken)
            del taken
        waiting += failed
        while waiting:
            yield self._result(waiting.popleft(), apart=True)

    def owned(self, device: str) -> Mapping[str, torch.Tensor]:
        """Return the parameters and buffers that a device of this process holds, by name."""
        checks.one_of(device, "the device", self.plan.cluster.index)
        return self._state.owned(self.plan.cluster.index[device])

    @property
    def begun(self) -> int:
        """The number of micro-batches since the start; random numbers of the next one follow from it."""
        return self._engine.begun

    def watch(self, behind: Callable[[], object] | None) -> None:
        """Let each device's thread in this process call `behind` after its stages; None for nothing."""
        if behind is not None:
            checks.function(behind, "what is called after a stage", "a function, or None for nothing")
        if isinstance(self._engine, Engine):
            self._engine.behind = behind

    def record(self) -> None:
        """Measure the micro-batches that enter from here on; `timeline` returns what was seen."""
        self._ending.check()
        self._engine.record()

    def timeline(self) -> Timeline:
        """Return what ran on which device, and went over which link, since `record`."""
        self._ending.check()
        flows = self.plan.table.flows
        spans = tuple(
            replace(span, label=flows[span.index].tensor) if span.kind == "transfer" else span
            for span in self._engine.spans()
        )
        count = max((span.micro_batch + 1 for span in spans), default=0)
        return Timeline(tuple(device.name for device in self.plan.cluster.devices), count, spans)

    def _given(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], copied: bool = False) -> tuple[Tensors, Tensors]:
        """Check one micro-batch, and that the answer will be the model's; return the inputs as operators read them.

        Return also the inputs that the model returns unchanged.
        """
        self._ending.check()
        check_surroundings(self._kinds)
        check_numerics(self._numerics, self._switches)
        tensors = self.program.flatten(args, kwargs)
        check_gradients(self.program.graph.inputs, tensors)
        inputs = self.program.inputs(tensors, copied)
        shown = inputs.values() if copied else tensors
        returned = self.plan.graph.outputs
        return inputs, {name: tensor for name, tensor in zip(inputs, shown, strict=True) if name in returned}

    def _submit(self, given: Sequence[tuple[Tensors, Tensors]]) -> "list[tuple[Promise[Tensors], Tensors]]":
        """Submit a micro-batch, or two that run at once."""
        with self._entering:
            self._wait_for_room(len(given))
            try:
                promises = self._submitted([inputs for inputs, _ in given])
            except Exception as error:
                promises = [_failed(error) for _ in given]
            self._on_way.update(promises)
        for promise in promises:  # the runner ends with its last reference
            promise.add_done_callback(partial(_leave, self._on_way, self._left))
        return [(promise, handed) for promise, (_, handed) in zip(promises, given, strict=True)]

    def _submitted(self, inputs: Sequence[Tensors]) -> "list[Promise[Tensors]]":
        if isinstance(self._engine, Engine) and len(inputs) > 1:
            return self._engine.submit_together(inputs)
        return [self._engine.submit(each) for each in inputs]

    def _wait_for_room(self, count: int) -> None:
        """Wait until there is room for ``count`` micro-batches besides those that are on their way."""
        while True:
            self._on_way -= {promise for promise in tuple(self._on_way) if promise.done()}
            if len(self._on_way) <= self._room - count:
                return
            with suppress(queue.Empty):  # one may leave unnoticed when its submission is interrupted
                self._left.get(timeout=LOOK_S)

    def _result(self, submitted: "tuple[Promise[Tensors], Tensors]", apart: bool = False) -> Any:
        """Wait for a micro-batch; outputs that no operator writes are inputs or parameters.

        With ``apart``, outputs that share memory with weights are copied: micro-batches on their way read the weights.
        """
        self._ending.check()  # a stream may go on in a fork
        promise, handed = submitted
        written = promise.result()
        for tensor in written.values():
            if tensor.is_cuda:  # the caller's stream reads it: its memory is kept until that has
                tensor.record_stream(torch.cuda.current_stream(tensor.device))
        found = {**self._kept, **handed, **written}
        if apart:
            found = {
                name: tensor.clone() if address_of(tensor) in self._held else tensor for name, tensor in found.items()
            }
        return self.program.unflatten(found)

    @cached_property
    def _held(self) -> frozenset[int]:
        """Addresses of the weights that results can share memory with."""
        owned = (self._state.owned(device) for device in range(len(self.plan.cluster.devices)))
        return frozenset(map(address_of, chain(self._kept.values(), *(each.values() for each in owned))))


def _threads_of(plan: Plan, program: Program, apart: bool) -> tuple[Engine, ShardedState]:
    """Return the threads of a plan's devices and the state that they hold, copied if it is ``apart`` from the model."""
    settle(program.graph.largest_bytes)
    devices = plan.cluster.devices
    compiled, state = compile_stages(program, plan.stages, devices, pairs=plan.in_pairs, apart=apart)
    written = {name for stage in compiled.values() for name in stage.outputs}
    outputs = tuple(name for name in plan.graph.outputs if name in written)
    return engine_of(devices, compiled, outputs, len(plan.placement.copies)), state


def _leave(on_way: "set[Promise[Tensors]]", left: "queue.SimpleQueue[None]", promise: "Promise[Tensors]") -> None:
    """Tell who waits for room that a micro-batch has left."""
    on_way.discard(promise)
    if left.empty():
        left.put(None)


def _failed(error: Exception) -> "Promise[Tensors]":
    """Return the promise of a micro-batch that was not begun."""
    promise: Promise[Tensors] = Promise()
    promise.set_exception(error)
    return promise


def check_surroundings(kinds: Iterable[str]) -> None:
    """Check that operators compute on the devices' threads what they would compute on the calling thread.

    Grad mode and inference mode do not change it: results carry no gradient. ``torch.device`` as a mode does not
    either: operators name their device. Everything else is refused.

    Raises:
        InputError: if autocast is on for one of these types of torch devices, or a mode or a transform of tensors is
            active.
    """
    if mode := _mode():
        raise InputError(
            f"{mode} is active, and the operators of a runner are called on other threads, which it does not see; call "
            "the runner outside of it, or the model itself"
        )
    for kind in kinds:
        if torch.is_autocast_enabled(kind):
            dtype = str(torch.get_autocast_dtype(kind))
            raise InputError(
                f"torch.autocast('{kind}', {dtype}) is on, and a plan is for the dtypes that the model was imported "
                f"with; call the runner outside of it, or plan for the cast model (model.to({dtype}))"
            )


def check_gradients(names: Iterable[str], inputs: Iterable[torch.Tensor]) -> None:
    """Check that no input asks for a gradient; raise InputError if one does."""
    for name, tensor in zip(names, inputs, strict=True):
        tangent = forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]  # torch has no types here
        if tangent or (tensor.requires_grad and torch.is_grad_enabled()):
            raise InputError(
                f"input '{name}' asks for a gradient, and none goes through a runner; pass {name}.detach(), call it "
                "under torch.no_grad(), or train with planner.train"
            )


def _mode() -> str:
    """Return the name of what changes the meaning of operators on this thread; empty if nothing does."""
    interpreter = torch._C._functorch.peek_interpreter_stack()
    if interpreter is not None:
        return f"torch.func's {interpreter.key().name.lower()}"
    if torch.jit.is_tracing():
        return "torch.jit.trace"
    modes = (*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack())
    return next((f"the mode '{type(mode).__name__}'" for mode in modes if not isinstance(mode, DeviceContext)), "")
