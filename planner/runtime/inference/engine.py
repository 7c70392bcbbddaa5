"""The engine: one thread for each device, which runs the oldest micro-batch's stage that is ready.

::

    submit ──► [ready stages of cpu0] ──► thread cpu0 ──► tensors of the micro-batch ──► [ready stages of cpu1] ──► ...

Tensors are passed on by reference; a tensor is dropped when its last reading stage is done. The engine follows the
simulator's rule: older micro-batch first, then the order of the placement. So of each micro-batch at most one stage is
next on a device, and a device looks for the oldest whose next stage can run. It does so without a lock (see
`planner.runtime.inference.tasks`), since a split network changes devices at each operator.

A network may have several copies (see `simulator.placement`): a micro-batch runs the stages of one of them, micro-batch
j those of copy j modulo their number. Copies of one stage on devices alike compute the same bits, so there a
micro-batch runs through the copy that is idle first: a device that others disturb holds up none of the others. Such a
copy runs two micro-batches at once if they are submitted together and the stage is compiled for it.

An engine may have only some of the stages. It then calls ``hand_on`` after each of its stages, and `arrive` reports to
it that a stage elsewhere is done: see `planner.runtime.distributed`.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from queue import SimpleQueue
from typing import TypeAlias

import torch

from costmodels.cluster.cluster import Device
from costmodels.host.affinity import bound, end_waiting_threads, settle, torch_device_of
from costmodels.host.spin import POSSIBLE, EventCount
from graphs.common.errors import first_line
from graphs.common.promises import Promise
from planner.runtime.errors import StageError
from planner.runtime.inference.recorder import LoggedTransfer, Moment, Recorder, StageRun, equal_runs
from planner.runtime.inference.tasks import DeviceTask, InFlight, NetworkCopy, Tensors
from planner.runtime.stages.caches import Caches
from planner.runtime.stages.compile import CompiledStage, bring, mark
from planner.runtime.stages.failures import stage_failure
from planner.runtime.stages.random_generators import Generators, check_seed
from simulator.timeline import Span

HandOn: TypeAlias = Callable[[int, int, Tensors], None]
"""Called on the device's thread after each stage, with the micro-batch, the stage and the tensors that it wrote."""

STEP = 0  # random numbers follow from the micro-batch alone: inference has no steps
CLOSED = "the runner is closed; start a new one"


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
        stages elsewhere whose end `arrive` reports; ``hand_on`` is called after each stage.
        """
        self._devices = devices
        self._stages = stages
        self._outputs = tuple(outputs)
        self._hand_on = hand_on
        of_copy = [{i: stages[i] for i in sorted(stages) if stages[i].stage.copy == j} for j in range(len(awaited))]
        parts = list(zip(of_copy, awaited, strict=True))
        self._copies = tuple(NetworkCopy(mine, self._outputs, others) for mine, others in parts)
        self._lock = threading.Lock()  # of what changes when a micro-batch enters or leaves
        spins = [POSSIBLE and device.kernels == "quick" and bool(device.cores) for device in devices]
        self._changes = [EventCount(own) for own in spins]  # of what each device waits for
        self._left: list[dict[InFlight, list[DeviceTask]]] = [{} for _ in devices]  # the oldest micro-batch first
        self._on_way: dict[int, InFlight] = {}  # by number; the thread that removes one answers its caller
        runs_alike = {self._runs_alike(mine, others) for mine, others in parts}
        takes_turns = len(runs_alike) > 1 or not all(runs_alike)
        self._idle = None if takes_turns else deque(range(len(self._copies)))  # copies without a micro-batch
        self._entered: deque[InFlight] = deque()  # micro-batches that wait for an idle copy
        self._count = 0
        self._closing = False
        self._recorder = Recorder(devices, stages)
        self.behind: Callable[[], object] | None = None  # what a device's thread calls after a stage
        self.caches: Caches | None = None  # of a language model, whose micro-batches are passes of groups of sequences
        self.seed(0)
        self._given: SimpleQueue[InFlight | None] = SimpleQueue()  # micro-batches that GPUs may still compute
        used = sorted({stage.stage.device for stage in stages.values()})
        self._waiting = self._start_waiting(used)
        self._threads: list[threading.Thread] = []
        self._start(used)

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

    @property
    def pairs(self) -> bool:
        """Whether it runs two micro-batches at once, given to `submit_together`."""
        return self.queues and all(stage.pair for stage in self._stages.values())

    @property
    def queues(self) -> bool:
        """Whether micro-batches wait for an idle copy of the network, and hold nothing but their inputs meanwhile."""
        return self._idle is not None

    def submit(self, inputs: Mapping[str, torch.Tensor], copy: int | None = None) -> "Promise[Tensors]":
        """Start one micro-batch; the result holds its output tensors by name.

        It runs through this copy of the network, whatever else does, if a number is given: that of a phase.
        """
        return self.submit_together([inputs], copy)[0]

    def submit_together(
        self, several: Sequence[Mapping[str, torch.Tensor]], copy: int | None = None
    ) -> "list[Promise[Tensors]]":
        """Start one micro-batch, or two that run at once if the engine has `pairs`; ``copy`` as for `submit`."""
        if self.caches is not None and copy is not None:
            several = [self.caches.joined(inputs, copy) for inputs in several]
        with self._lock:
            if self._closing:
                raise RuntimeError(CLOSED)
            batch, *beside = [self._entering(inputs) for inputs in several]
            batch.beside = tuple(beside)
            for each in beside:
                each.leads = False
            if copy is not None:
                batch.leads = False  # it waits for no idle copy, and leaves none
                self._begin(batch, copy)
            elif self._idle is None:
                self._begin(batch, batch.number % len(self._copies))
            else:
                self._entered.append(batch)
                self._begin_entered(self._idle)
            last = batch.copy is not None and not self._copies[batch.copy].ends
        if last:
            for each in batch.together:
                self._answer(each)
        return [each.done for each in batch.together]

    def _entering(self, inputs: Mapping[str, torch.Tensor]) -> InFlight:
        """Number a micro-batch. The lock is held."""
        on_gpus = {name: tensor.device for name, tensor in inputs.items() if tensor.is_cuda}
        written = {gpu: mark(gpu) for gpu in set(on_gpus.values())}  # a pass has a hundred caches
        batch = InFlight(self._count, dict(inputs), Promise(), {name: written[gpu] for name, gpu in on_gpus.items()})
        self._on_way[batch.number] = batch
        self._count += 1
        return batch

    def arrive(self, micro_batch: int, stage: int, tensors: Tensors) -> None:
        """Store what an awaited stage elsewhere wrote; nothing is kept for a micro-batch that failed."""
        with self._lock:
            batch = self._on_way.get(micro_batch)
        if batch is None or batch.copy is None:
            return
        copy = self._copies[batch.copy]
        batch.store(copy, tensors)
        batch.ended.add(stage)
        for device in copy.wakes.get(stage, ()):
            self._changes[device].advance()
        if not next(batch.left):
            self._finish(batch)

    def fail(self, micro_batch: int, error: Exception) -> None:
        """Fail a micro-batch, if it is on its way."""
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
        for change in self._changes:
            change.advance()
        for thread in self._threads:
            thread.join()
        self._given.put(None)
        for thread in self._waiting:
            thread.join()
        for number in self.on_way():
            self.fail(number, RuntimeError("the runner was closed while this micro-batch was on its way"))

    def _start(self, used: Sequence[int]) -> None:
        """Start a thread for each device that has a stage, and wait until all are bound; raise what keeps one from it.

        A thread that failed later would have nobody to report to, and a micro-batch would wait for it forever.
        """
        settle()
        if any(len(self._devices[device].cores) > 1 for device in used):
            end_waiting_threads()
        bindings = {device: Promise[None]() for device in used}
        try:
            for device, binding in bindings.items():
                name = f"device-{self._devices[device].name}"
                thread = threading.Thread(target=self._work, args=(device, binding), name=name, daemon=True)
                thread.start()
                self._threads.append(thread)
            for binding in bindings.values():
                binding.result()
        except BaseException:
            self.close()
            raise

    def _start_waiting(self, used: Sequence[int]) -> list[threading.Thread]:
        """Return a thread that waits for GPUs, if a stage is on one; the caller's tensors alone need none."""
        if all(self._devices[device].cuda is None for device in used):
            return []
        thread = threading.Thread(target=self._wait_for_gpus, name="waits-for-gpus", daemon=True)
        thread.start()
        return [thread]

    def _runs_alike(self, stages: Mapping[int, CompiledStage], awaited: Collection[int]) -> tuple[object, ...]:
        """Return a key that copies of the network share if they compute the same bits; empty with several stages."""
        if len(stages) != 1 or awaited or any(stage.random for stage in stages.values()):
            return ()
        (stage,) = stages.values()
        return stage.stage.ops, self._devices[stage.stage.device].rounding

    def _begin_entered(self, idle: deque[int]) -> None:
        """Begin micro-batches that have entered, the oldest first, in idle copies. The lock is held."""
        while idle and self._entered:
            self._begin(self._entered.popleft(), idle.popleft())

    def _begin(self, batch: InFlight, copy: int) -> None:
        """Give each device its stages of a micro-batch that goes through a copy. The lock is held."""
        for each in batch.together:
            each.begin(copy, self._copies[copy])
        for device, tasks in self._copies[copy].tasks.items():
            self._left[device][batch] = [*tasks]
            self._changes[device].advance()

    def _work(self, device: int, binding: Promise[None]) -> None:
        """Run one stage after the other on a device's thread, until the engine is closed."""
        with ExitStack() as until:
            try:
                stream = until.enter_context(bound(self._devices[device], ends=True))
                torch_device = torch_device_of(self._devices[device])
            except BaseException as error:  # who starts the engine gets any error
                binding.set_exception(error)
                return
            binding.set_result(None)
            while self._step(device, torch_device, stream):
                pass  # a stage's tensors are out of scope here, so a device that waits holds none

    def _step(self, device: int, torch_device: torch.device, stream: torch.cuda.Stream | None) -> bool:
        """Wait for the first ready stage and run it; return False once the engine is closed."""
        taken = self._take(device)
        if taken is None:
            return False
        task, batch, slept = taken
        timed = stream is not None and self._recorder.on

        def now() -> Moment:
            return mark(torch_device, timed=True) if timed else time.perf_counter()

        try:
            processor_s, taken_s = self._recorder.processor_s, now()
            inputs, copied = self._bring(task, batch, torch_device, stream)
            ready_s = now() if copied else taken_s
            results = self._run(task, batch, inputs, stream)
            ran = StageRun(slept, taken_s, ready_s, now(), self._recorder.processor_s - processor_s)
            if self.behind is not None:
                self.behind()  # before it wakes a thread that would disturb it
            if batch.beside:
                self._finish_pair(task, batch, results, ran)
            else:
                self._end(task, batch, results, ran)
        except BaseException as error:  # the caller gets any error
            for one in batch.together:
                self._give_up(task.number, one, error)
        return True

    def _take(self, device: int) -> tuple[DeviceTask, InFlight, bool] | None:
        """Return the first stage that can run, its micro-batch, and whether the device has waited; None once closed."""
        change, waited = self._changes[device], False
        while not self._closing:
            seen = change.value  # asked for first: what can run from here on changes it
            if (found := self._next_task(device)) is not None:
                return *found, waited
            waited = True
            change.wait(seen, spins=bool(self._on_way))
        return None

    def _next_task(self, device: int) -> tuple[DeviceTask, InFlight] | None:
        """Take the next stage of the oldest micro-batch that can go on, if any can."""
        left = self._left[device]
        for batch, tasks in left.copy().items():
            if tasks[-1].needs <= batch.ended:
                task = tasks.pop()
                if task.last:
                    left.pop(batch, None)
                return task, batch
        return None

    def _bring(
        self, task: DeviceTask, batch: InFlight, torch_device: torch.device, stream: torch.cuda.Stream | None
    ) -> tuple[list[torch.Tensor], bool]:
        """Return the inputs of a stage on its torch device, and whether any came from another torch device.

        Micro-batches that run at once, which only CPUs do, have their inputs one after the other.
        """
        tensors = [each.slots[slot] for each in batch.together for slot in task.reads]
        if stream is None and not batch.events:
            return tensors, False
        copied = any(tensor.device != torch_device for tensor in tensors)
        events = map(batch.events.get, task.stage.inputs)
        return [bring(each, torch_device, event, stream) for each, event in zip(tensors, events, strict=True)], copied

    def _run(
        self, task: DeviceTask, batch: InFlight, inputs: Sequence[torch.Tensor], stream: torch.cuda.Stream | None
    ) -> tuple[torch.Tensor, ...]:
        """Call a stage and return what it writes; a GPU may still be writing it."""
        stage = task.stage
        if batch.beside:
            assert stage.pair is not None, "only an engine with pairs is given them"
            return stage.pair(*inputs)
        generators = self._generators[task.number].at(STEP, batch.number) if stage.random else ()
        results = stage.call(*generators, *inputs)
        if stream is not None:
            batch.events.update(dict.fromkeys(stage.outputs, mark(stream.device)))
        return results

    def _finish_pair(
        self, task: DeviceTask, batch: InFlight, results: tuple[torch.Tensor, ...], ran: StageRun[Moment]
    ) -> None:
        """Finish what has run at once, each with its part of the results and of the time."""
        count = len(task.stage.outputs)
        for i, (one, share) in enumerate(zip(batch.together, equal_runs(ran, len(batch.together)), strict=True)):
            self._end(task, one, results[i * count : (i + 1) * count], share)

    def _end(self, task: DeviceTask, batch: InFlight, results: tuple[torch.Tensor, ...], ran: StageRun[Moment]) -> None:
        """Store what the stage wrote, wake the devices that wait for it, and answer if it was the last one."""
        if batch.number not in self._on_way:
            return  # it failed on another device meanwhile
        if self._recorder.on:
            self._recorder.add(task.number, batch.number, ran)
        batch.finish(task, results)
        for device in task.wakes:
            self._changes[device].advance()
        if self._hand_on is not None:
            self._hand_on(batch.number, task.number, dict(zip(task.stage.outputs, results, strict=True)))
        if task.last and not next(batch.left):
            self._finish(batch)

    def _finish(self, batch: InFlight) -> None:
        """Answer a micro-batch of which all stages were called, once GPUs have done what they were given of it.

        Another thread waits for that: the device's own gives its GPU the next micro-batch meanwhile.
        """
        if batch.events and self._waiting:
            self._given.put(batch)
        else:
            self._answer(batch)

    def _wait_for_gpus(self) -> None:
        """Answer one micro-batch after the other that GPUs still compute, until the engine is closed."""
        while (batch := self._given.get()) is not None:
            try:
                for event in batch.events.values():
                    event.synchronize()
            except RuntimeError as error:  # of a kernel, which the call of its stage did not wait for
                self._answer(batch, StageError(f"a GPU failed in micro-batch {batch.number}: {first_line(error)}"))
            else:
                self._answer(batch)
            del batch  # nothing is held while it waits

    def _give_up(self, number: int, batch: InFlight, error: BaseException) -> None:
        """Fail a micro-batch with the error of a stage."""
        device = self._devices[self._stages[number].stage.device]
        where = f"stage {number} on '{device.name}' failed in micro-batch {batch.number}"
        self._answer(batch, stage_failure(where, device, error))

    def _answer(self, batch: InFlight, failure: Exception | None = None) -> None:
        """Hand the outputs or the failure to the caller, once, and remove a failed micro-batch from the queues."""
        with self._lock:
            if self._on_way.pop(batch.number, None) is None:
                return
            if self._idle is not None and batch.copy is not None and batch.leads:
                self._idle.append(batch.copy)
                self._begin_entered(self._idle)
            elif batch in self._entered:
                self._entered.remove(batch)
        if failure is None:
            answer = self._copies[batch.copy].answer if batch.copy is not None else {}
            found = {name: batch.slots[slot] for name, slot in answer.items() if slot in batch.slots}
            batch.done.set_result(found)  # a pass of an encoder writes to caches alone
        else:
            for left in self._left:
                left.pop(batch, None)
            batch.done.set_exception(failure)
