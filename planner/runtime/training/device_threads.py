"""Device threads: a thread for each device that takes part, bound to it, which does the jobs that it is given."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

import torch

from costmodels.cluster import Device
from costmodels.host.affinity import Stopped, bound, settle, torch_device_of

T = TypeVar("T")

PATIENCE_S = 0.2  # after which the caller looks whether it was interrupted


@dataclass(frozen=True)
class DeviceContext:
    """The device of a thread."""

    number: int  # number of the device among those that take part
    device: Device  # the device, as in the cluster
    torch_device: torch.device  # torch device of its tensors
    stream: torch.cuda.Stream | None  # its stream, if it is a GPU


Job: TypeAlias = "tuple[Callable[[DeviceContext], Any], Future[Any]]"


class DeviceThreads:
    """A thread for each device, with gradients on."""

    def __init__(self, devices: Sequence[Device]) -> None:
        """Start the threads; raise InputError if this host does not have one of the devices."""
        for device in devices:
            torch_device_of(device)
        settle()
        self._closed = False
        self._jobs: list[SimpleQueue[Job | None]] = [SimpleQueue() for _ in devices]
        self._threads = [
            threading.Thread(target=_serve, args=(number, device, jobs), name=f"device-{device.name}", daemon=True)
            for number, (device, jobs) in enumerate(zip(devices, self._jobs, strict=True))
        ]
        for thread in self._threads:
            thread.start()

    def each(self, work: Callable[[DeviceContext], T], stop: Callable[[], None] = lambda: None) -> list[T]:
        """Let every device do a job, wait until all have ended, and return [n_devices], what each returned.

        When one has failed, or the caller is interrupted, ``stop`` tells the other devices to give up (by `Stopped`).

        Raises:
            Stopped: if all gave up without a reason of their own.
            RuntimeError: if the threads have ended.
        """
        if self._closed:
            raise RuntimeError("the trainer is closed; make a new one")
        done: list[Future[T]] = [Future() for _ in self._jobs]

        def give() -> None:
            for jobs, future in zip(self._jobs, done, strict=True):
                jobs.put((work, future))

        try:
            give()
            while _all_well(done):
                pass
        except BaseException:
            stop()
            give()  # an interrupt may have come before all had the job; nobody does it twice
            wait(done)
            raise
        if any(future.done() and future.exception() for future in done):
            stop()
            wait(done)
            errors = [error for future in done if (error := future.exception()) is not None]
            raise next((error for error in errors if not isinstance(error, Stopped)), errors[0])
        return [future.result() for future in done]

    def close(self) -> None:
        """End the threads after their present jobs. May be called again."""
        self._closed = True
        for jobs in self._jobs:
            jobs.put(None)
        for thread in self._threads:
            thread.join()


def _all_well(done: Sequence["Future[T]"]) -> bool:
    """Wait for a while; return whether some devices are still at work and none has failed.

    Python does not notice an interrupt that comes just before the thread blocks until the wait is over.
    """
    ended, working = wait(done, PATIENCE_S, FIRST_EXCEPTION)
    return bool(working) and not any(future.exception() for future in ended)


def _serve(number: int, device: Device, jobs: "SimpleQueue[Job | None]") -> None:
    """Do one job after the other; if the thread cannot be bound, each job fails with the reason."""
    try:
        with bound(device, ends=True) as stream, torch.enable_grad():
            context = DeviceContext(number, device, torch_device_of(device), stream)
            while (job := jobs.get()) is not None:
                _do(*job, context)
                del job  # a device that waits holds no tensors
    except Exception as error:
        while (job := jobs.get()) is not None:
            if not job[1].done():
                job[1].set_exception(error)


def _do(work: Callable[[DeviceContext], T], done: "Future[T]", context: DeviceContext) -> None:
    """Do a job, unless it was done before."""
    if done.done():
        return
    try:
        result = work(context)
        if context.stream is not None:
            context.stream.synchronize()  # the caller may use other streams
    except BaseException as error:  # the caller gets any error
        done.set_exception(error)
    else:
        done.set_result(result)
