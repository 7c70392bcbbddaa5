"""The engine: one thread for each device, which runs the oldest micro-batch's stage that is ready.

::

    submit ──► [ready stages of cpu0] ──► thread cpu0 ──► tensors of the micro-batch ──► [ready stages of cpu1] ──► ...

Tensors are passed on by reference; a tensor is dropped when its last reading stage is done. The engine follows the
simulator's rule: older micro-batch first, then the order of the placement.

A network may have several copies (see `simulator.placement`): a micro-batch runs the stages of one of them, micro-batch
j those of copy j modulo their number. Copies of one stage on devices alike compute the same bits, so there a
micro-batch runs through the copy that is idle first: a device that others disturb holds up none of the others.

An engine may have a part of the stages only. It then calls ``hand_on`` behind each of its stages, and is told by
`arrive` when a stage elsewhere is done: see `planner.runtime.distributed`.
"""

import heapq
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from costmodels.cluster import Device
from costmodels.host.affinity import bound, end_waiting_threads, settle, torch_device_of
from costmodels.host.results import Result
from costmodels.host.spin import POSSIBLE, Count
from planner.runtime.errors import StageError
from planner.runtime.inference.recorder import LoggedTransfer, Moment, Ran, Recorder
from planner.runtime.stages.compile import CompiledStage, bring, mark
from planner.runtime.stages.random_generators import Generators, check_seed
from simulator.timeline import Span

Tensors: TypeAlias = dict[str, torch.Tensor]

HandOn: TypeAlias = Callable[[int, int, Tensors], None]
"""Called on the device's thread behind each stage with the micro-batch, the stage and the tensors that it wrote."""

STEP = 0  # random numbers follow from the micro-batch alone: inference has no steps
CLOSED = "the runner is closed; start a new one"


@dataclass(frozen=True)
class _Copy:
    """What each micro-batch needs that goes through one copy of the network."""

    needs: Mapping[int, int]  # stage -> for how many stages it waits
    readers: Mapping[str, int]  # tensor -> how many stages read it
    n_stages: int  # to be done, including the awaited ones elsewhere
    runs_alike: tuple[object, ...]  # equal for copies that compute the same bits in one stage; empty if it has several


@dataclass(eq=False)
class _InFlight:
    """One micro-batch on its way."""

    number: int
    tensors: Tensors
    done: "Result[Tensors]"
    events: dict[str, torch.cuda.Event]  # of tensors that a GPU is still writing
    copy: int | None = None  # the copy of the network that it runs through, once it has begun
    waiting: dict[int, int] = field(default_factory=dict)  # stage -> for how many stages it still waits
    readers: dict[str, int] = field(default_factory=dict)  # tensor -> how many stages will still read it
    left: int = 0  # stages that are not done, including the awaited ones elsewhere


class Engine:
    """Threads that run compiled stages. Use `planner.runtime.inference.runner.Runner`, which is called like a model."""

    def __init__(
        self,
        devices: Sequence[Device],
        stages: Mapping[int, CompiledStage],
        outputs: Sequence[str],
        awaited: Sequence[Collection[int]] = ((),),
        hand_on: HandOn | None = None,
    ) -> None:
        """Start a thread for each device of the cluster that has a stage; stages are given by their numbers.

        A micro-batch is answered with the ``outputs``. ``awaited`` has [n_copies], for each copy of the network the
        stages elsewhere whose end `arrive` tells; ``hand_on`` is called behind each stage.
        """
        self._devices = devices
        self._stages = stages
        self._outputs = tuple(outputs)
        self._hand_on = hand_on
        self._copies = tuple(self._copy_of(number, others) for number, others in enumerate(awaited))
        self._needed_by: dict[int, list[int]] = {}  # the stages that wait for each stage, here or elsewhere
        for number, stage in stages.items():
            for needed in stage.stage.needs:
                self._needed_by.setdefault(needed, []).append(number)
        self._lock = threading.Lock()
        self._wake = [threading.Condition(self._lock) for _ in devices]
        self._ready: list[list[tuple[int, int, _InFlight]]] = [[] for _ in devices]
        spins = [POSSIBLE and device.kernels == "quick" and bool(device.cores) for device in devices]
        self._made_ready = [Count() if own else None for own in spins]  # stages so far
        self._on_way: dict[int, _InFlight] = {}  # by number; the thread that removes one answers its caller
        takes_turns = len({copy.runs_alike for copy in self._copies}) > 1 or not self._copies[0].runs_alike
        self._idle = None if takes_turns else deque(range(len(self._copies)))  # copies without a micro-batch
        self._entered: deque[_InFlight] = deque()  # micro-batches that wait for an idle copy
        self._count = 0
        self._closing = False
        self._recorder = Recorder(devices, stages)
        self.seed(0)
        self._threads = self._start(sorted({stage.stage.device for stage in stages.values()}))

    def seed(self, seed: int) -> None:
        """Set the seed of the random numbers from here on; raise InputError if it is not from 0 to below 2**63."""
        check_seed(seed)
        self._generators = {
            number: Generators(stage.random, torch_device_of(self._devices[stage.stage.device]), seed)
            for number, stage in self._stages.items()
            if stage.random
        }

    @property
    def begun(self) -> int:
        """The number of micro-batches that have entered, which is the number of the next one."""
        return self._count

    def submit(self, inputs: Mapping[str, torch.Tensor]) -> "Result[Tensors]":
        """Start one micro-batch; the result holds its output tensors by name."""
        done: Result[Tensors] = Result()
        with self._lock:
            if self._closing:
                raise RuntimeError(CLOSED)
            events = {name: mark(tensor.device) for name, tensor in inputs.items() if tensor.is_cuda}
            batch = _InFlight(self._count, dict(inputs), done, events)
            self._on_way[batch.number] = batch
            self._count += 1
            if self._idle is None:
                self._begin(batch, batch.number % len(self._copies))
            else:
                self._entered.append(batch)
                self._begin_entered(self._idle)
            last = batch.copy is not None and not batch.left
        if last:
            self._answer(batch)
        return done

    def arrive(self, micro_batch: int, stage: int, tensors: Tensors) -> None:
        """Store what an awaited stage elsewhere wrote; nothing is kept for a micro-batch that failed."""
        with self._lock:
            batch = self._on_way.get(micro_batch)
            if batch is None:
                return
            batch.tensors.update(tensors)
            last = self._settle(stage, batch)
        if last:
            self._answer(batch)

    def fail(self, micro_batch: int, error: Exception) -> None:
        """Fail a micro-batch, if it is on its way."""
        with self._lock:
            batch = self._on_way.get(micro_batch)
        if batch is not None:
            self._answer(batch, error)

    def on_way(self) -> tuple[int, ...]:
        """Return the numbers of the micro-batches that have entered and are not answered."""
        with self._lock:
            return tuple(self._on_way)

    def record(self, origin_s: float | None = None) -> int:
        """Keep the spans of the micro-batches that enter from here on, for `spans`; return the number of the first.

        Time 0 is ``origin_s`` by ``time.perf_counter``, or now.
        """
        with self._lock:
            self._recorder.start(self._count, time.perf_counter() if origin_s is None else origin_s)
            return self._count

    def spans(self) -> tuple[Span, ...]:
        """Return the spans since `record`, sorted by their starts, and stop recording. Transfers have no labels."""
        with self._lock:
            return self._recorder.spans()

    def note(self, end: LoggedTransfer) -> None:
        """Keep when a payload left for another rank or came from one, for `noted`, while spans are kept."""
        with self._lock:
            self._recorder.note(end)

    def noted(self) -> tuple[LoggedTransfer, ...]:
        """Return what was noted since `record`, once; see `spans`."""
        with self._lock:
            noted, self._recorder.noted = self._recorder.noted, []
        return tuple(noted)

    def close(self) -> None:
        """Finish the stages that run now, fail all other micro-batches, and end the threads. May be called again."""
        with self._lock:
            self._closing = True
            for wake in self._wake:
                wake.notify_all()
        for thread in self._threads:
            thread.join()
        for number in self.on_way():
            self.fail(number, RuntimeError("the runner was closed while this micro-batch was on its way"))

    def _start(self, used: Sequence[int]) -> list[threading.Thread]:
        """A thread for each device that has a stage."""
        settle()
        if any(len(self._devices[device].cores) > 1 for device in used):
            end_waiting_threads()
        names = {device: f"device-{self._devices[device].name}" for device in used}
        threads = [threading.Thread(target=self._work, args=(d,), name=name, daemon=True) for d, name in names.items()]
        for thread in threads:
            thread.start()
        return threads

    def _copy_of(self, number: int, awaited: Collection[int]) -> _Copy:
        """What micro-batches need that go through a copy of the network."""
        stages = {i: stage for i, stage in self._stages.items() if stage.stage.copy == number}
        read = (name for stage in stages.values() for name in stage.inputs)
        readers = Counter([*self._outputs, *read])  # the caller is a reader that never drops outputs
        needs = {i: len(stage.stage.needs) for i, stage in stages.items()}
        runs_alike: tuple[object, ...] = ()
        if len(stages) == 1 and not awaited and not any(stage.random for stage in stages.values()):
            (stage,) = stages.values()
            runs_alike = stage.stage.ops, self._devices[stage.stage.device].rounding
        return _Copy(needs, readers, len(stages) + len(awaited), runs_alike)

    def _begin_entered(self, idle: deque[int]) -> None:
        """Begin micro-batches that have entered, the oldest first, in idle copies. The lock is held."""
        while idle and self._entered:
            self._begin(self._entered.popleft(), idle.popleft())

    def _begin(self, batch: _InFlight, copy: int) -> None:
        """Queue the first stages of a copy for a micro-batch. The lock is held."""
        needs = self._copies[copy].needs
        batch.copy, batch.left = copy, self._copies[copy].n_stages
        batch.waiting, batch.readers = dict(needs), dict(self._copies[copy].readers)
        for number, stages in needs.items():
            if not stages:
                self._make_ready(number, batch)

    def _make_ready(self, number: int, batch: _InFlight) -> None:
        """Queue a stage with its device. The lock is held."""
        device = self._stages[number].stage.device
        heapq.heappush(self._ready[device], (batch.number, number, batch))
        if (made_ready := self._made_ready[device]) is not None:
            made_ready.increase()
        self._wake[device].notify()

    def _work(self, device: int) -> None:
        """Run one stage after the other on a device's thread, until the engine is closed."""
        with bound(self._devices[device], ends=True) as stream:
            torch_device = torch_device_of(self._devices[device])
            while self._step(device, torch_device, stream):
                pass  # a stage's tensors are out of scope here, so a device that waits holds none

    def _step(self, device: int, torch_device: torch.device, stream: torch.cuda.Stream | None) -> bool:
        """Wait for the first ready stage and run it; return False once the engine is closed."""
        taken = self._take(device)
        if taken is None:
            return False
        number, batch, slept = taken
        timed = stream is not None and self._recorder.on

        def now() -> Moment:
            return mark(torch_device, timed=True) if timed else time.perf_counter()

        try:
            processor_s, taken_s = self._recorder.processor_s, now()
            inputs, copied = self._bring(number, batch, torch_device, stream)
            ready_s = now() if copied else taken_s
            results = self._run(number, batch, inputs, stream)
            ran = Ran(slept, taken_s, ready_s, now(), self._recorder.processor_s - processor_s)
            self._finish(number, batch, results, ran)
        except BaseException as error:  # the caller gets any error
            self._give_up(number, batch, error)
        return True

    def _take(self, device: int) -> tuple[int, _InFlight, bool] | None:
        """Return the first ready stage, its micro-batch, and whether the device has slept; None once closed."""
        made_ready = self._made_ready[device]
        seen = made_ready.value if made_ready else 0  # asked for first: what gets ready from here on changes it
        slept = not self._ready[device]
        if made_ready and slept and self._on_way:
            made_ready.spin(seen)
        with self._lock:
            while not self._ready[device] and not self._closing:
                self._wake[device].wait()
            if self._closing:
                return None
            _, number, batch = heapq.heappop(self._ready[device])
            return number, batch, slept

    def _bring(
        self, number: int, batch: _InFlight, torch_device: torch.device, stream: torch.cuda.Stream | None
    ) -> tuple[list[torch.Tensor], bool]:
        """Return the inputs of a stage on its torch device, and whether any came from another torch device."""
        given = [(batch.tensors[name], batch.events.get(name)) for name in self._stages[number].inputs]
        copied = any(tensor.device != torch_device for tensor, _ in given)
        return [bring(tensor, torch_device, event, stream) for tensor, event in given], copied

    def _run(
        self, number: int, batch: _InFlight, inputs: Sequence[torch.Tensor], stream: torch.cuda.Stream | None
    ) -> tuple[torch.Tensor, ...]:
        """Call a stage and return what it writes; a GPU may still be writing it."""
        stage = self._stages[number]
        generators = self._generators[number].at(STEP, batch.number) if stage.random else ()
        results = stage.call(*generators, *inputs)
        if stream is not None:
            batch.events.update(dict.fromkeys(stage.outputs, mark(stream.device)))
        return results

    def _finish(self, number: int, batch: _InFlight, results: tuple[torch.Tensor, ...], ran: Ran[Moment]) -> None:
        """Store what the stage wrote, drop what nobody reads any more, and wake the devices that waited for it."""
        stage = self._stages[number]
        with self._lock:
            if batch.number not in self._on_way:
                return  # it failed on another device meanwhile
            if self._recorder.on:
                self._recorder.add(number, batch.number, ran)
            written = zip(stage.outputs, results, strict=True)
            batch.tensors.update(each for each in written if each[0] in batch.readers)
            for name in stage.inputs:
                batch.readers[name] -= 1
                if not batch.readers[name]:
                    del batch.tensors[name]
            last = self._settle(number, batch)
        if self._hand_on is not None:
            self._hand_on(batch.number, number, dict(zip(stage.outputs, results, strict=True)))
        if last:
            for event in batch.events.values():
                event.synchronize()
            self._answer(batch)

    def _settle(self, number: int, batch: _InFlight) -> bool:
        """Queue the stages that waited for a stage; return whether the micro-batch is done. The lock is held."""
        for successor in self._needed_by.get(number, ()):
            batch.waiting[successor] -= 1
            if not batch.waiting[successor]:
                self._make_ready(successor, batch)
        batch.left -= 1
        return not batch.left

    def _give_up(self, number: int, batch: _InFlight, error: BaseException) -> None:
        """Fail a micro-batch with the error of a stage."""
        stage = self._stages[number].stage
        failure = StageError(
            f"stage {number} on '{self._devices[stage.device].name}' failed in micro-batch {batch.number}: "
            f"{type(error).__name__}: {error}"
        )
        failure.__cause__ = error
        self._answer(batch, failure)

    def _answer(self, batch: _InFlight, failure: Exception | None = None) -> None:
        """Hand the outputs or the failure to the caller, once, and remove a failed micro-batch from the queues."""
        with self._lock:
            if self._on_way.pop(batch.number, None) is None:
                return
            if self._idle is not None and batch.copy is not None:
                self._idle.append(batch.copy)
                self._begin_entered(self._idle)
            elif batch in self._entered:
                self._entered.remove(batch)
            if failure is not None:
                for queue in self._ready:
                    queue[:] = [entry for entry in queue if entry[2] is not batch]
                    heapq.heapify(queue)
        if failure is None:
            batch.done.set_result({name: batch.tensors[name] for name in self._outputs})
        else:
            batch.done.set_exception(failure)


class InlineEngine(Engine):
    """An engine that runs a micro-batch on the thread that submits it; see `costmodels.host.affinity.is_here`.

    If several threads call, one runs at a time. An interrupt leaves the call, as it would leave the model.
    """

    def submit(self, inputs: Mapping[str, torch.Tensor]) -> "Result[Tensors]":
        """Run one micro-batch; the result is there, unless the engine is closed meanwhile."""
        done = super().submit(inputs)
        with self._turn, torch.no_grad():  # as on a device's own thread
            while not done.done() and self._step(self._device, torch_device_of(self._devices[self._device]), None):
                pass
        failure = done.exception() if done.done() else None
        if failure is not None and isinstance(failure.__cause__, KeyboardInterrupt):
            raise failure.__cause__
        return done

    def _start(self, used: Sequence[int]) -> list[threading.Thread]:
        """Prepare to run all stages, which are on one device; start no thread."""
        (self._device,) = used
        self._turn = threading.Lock()
        settle()
        return []
