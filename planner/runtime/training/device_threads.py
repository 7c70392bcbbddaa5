"""Device threads: a thread for each device that takes part, bound to it, which does the jobs that it is given."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import torch

from costmodels.cluster.cluster import Device
from costmodels.host.affinity import Stopped, bound, settle, torch_device_of
from graphs.common.promises import LOOK_S, Promise

T = TypeVar("T")


@dataclass(frozen=True)
class DeviceContext:
    """The device of a thread."""

    number: int  # number of the device among those that take part
    device: Device  # the device, as in the cluster
    torch_device: torch.device  # torch device of its tensors
    stream: torch.cuda.Stream | None  # its stream, if it is a GPU


class Job(Generic[T]):
    """A function that every device calls once, and what came of it."""

    def __init__(self, work: Callable[[DeviceContext], T], n_devices: int) -> None:
        self._work = work
        self.results: list[Promise[T]] = [Promise() for _ in range(n_devices)]
        self._news: SimpleQueue[None] = SimpleQueue()  # an entry for each device that has ended

    def do(self, context: DeviceContext) -> None:
        """Call the function on the thread of a device, unless it was called there before."""
        result = self.results[context.number]
        if result.done():
            return
        try:
            value = self._work(context)
            if context.stream is not None:
                context.stream.synchronize()  # the caller may use other streams
        except BaseException as error:  # the caller gets any error
            self.refuse(context.number, error)
        else:
            result.set_result(value)
            self._news.put(None)

    def refuse(self, number: int, error: BaseException) -> None:
        """Fail on a device, unless the function was called there before."""
        if not self.results[number].done():
            self.results[number].set_exception(error)
            self._news.put(None)

    def all_well(self) -> bool:
        """Wait for news for a while; return whether some devices are still at work and none has failed."""
        try:
            self._news.get(timeout=LOOK_S)
        except Empty:
            return True
        ended = [result for result in self.results if result.done()]
        return len(ended) < len(self.results) and not any(result.exception() for result in ended)

    def wait(self) -> None:
        """Wait until all devices have ended."""
        for result in self.results:
            result.wait()


class DeviceThreads:
    """A thread for each device, with gradients on."""

    def __init__(self, devices: Sequence[Device]) -> None:
        """Start the threads; raise InputError if this host does not have one of the devices."""
        for device in devices:
            torch_device_of(device)
        settle()
        self._closed = False
        self._jobs: list[SimpleQueue[Job[Any] | None]] = [SimpleQueue() for _ in devices]
        self._threads: list[threading.Thread] = []
        try:
            for number, (device, jobs) in enumerate(zip(devices, self._jobs, strict=True)):
                name, args = f"device-{device.name}", (number, device, jobs)
                thread = threading.Thread(target=_serve, args=args, name=name, daemon=True)
                thread.start()
                self._threads.append(thread)
        except BaseException:  # as when the system has no room for another thread
            self.close()
            raise

    def each(self, work: Callable[[DeviceContext], T], stop: Callable[[], None] = lambda: None) -> list[T]:
        """Let every device do a job, wait until all have ended, and return [n_devices], what each returned.

        When one has failed, or the caller is interrupted, ``stop`` tells the other devices to give up (by `Stopped`).

        Raises:
            Stopped: if all gave up without a reason of their own.
            RuntimeError: if the threads have ended.
        """
        if self._closed:
            raise RuntimeError("the trainer is closed; make a new one")
        job = Job(work, len(self._jobs))
        try:
            self._give(job)
            while job.all_well():
                pass
        except BaseException:
            stop()
            self._give(job)  # an interrupt may have come before all had the job; nobody does it twice
            job.wait()
            raise
        if any(result.done() and result.exception() for result in job.results):
            stop()
            job.wait()
            errors = [error for result in job.results if (error := result.exception()) is not None]
            raise next((error for error in errors if not isinstance(error, Stopped)), errors[0])
        return [result.result() for result in job.results]

    def _give(self, job: Job[Any]) -> None:
        for jobs in self._jobs:
            jobs.put(job)

    def close(self) -> None:
        """End the threads after their present jobs. May be called again."""
        self._closed = True
        for jobs in self._jobs:
            jobs.put(None)
        for thread in self._threads:
            thread.join()


def _serve(number: int, device: Device, jobs: "SimpleQueue[Job[Any] | None]") -> None:
    """Do one job after the other; if the thread cannot be bound, each job fails with the reason."""
    try:
        with bound(device, ends=True) as stream, torch.enable_grad():
            context = DeviceContext(number, device, torch_device_of(device), stream)
            while (job := jobs.get()) is not None:
                job.do(context)
                del job  # a device that waits holds no tensors
    except Exception as error:
        while (job := jobs.get()) is not None:
            job.refuse(number, error)
