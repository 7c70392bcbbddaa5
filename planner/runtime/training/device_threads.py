"""Crew: a thread for each device that takes part, bound to it, which does what it is told."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import torch

from costmodels.cluster import Device
from costmodels.host.affinity import Stopped, bound, settle, torch_device_of

T = TypeVar("T")


@dataclass(frozen=True)
class DeviceContext:
    """Where a thread of the device threads works.

    Attributes:
        number: of the device among those that take part.
        device: as in the cluster.
        torch_device: where its tensors live.
        stream: of a GPU.
    """

    number: int
    device: Device
    torch_device: torch.device
    stream: torch.cuda.Stream | None


@dataclass(eq=False)
class _Job(Generic[T]):
    work: Callable[[DeviceContext], T]
    done: "Future[T]"

    def carry_out(self, context: DeviceContext) -> None:
        try:
            result = self.work(context)
            if context.stream is not None:
                context.stream.synchronize()  # who waits for this goes on from anywhere
        except BaseException as error:  # whatever it is, the caller gets it
            self.done.set_exception(error)
        else:
            self.done.set_result(result)


class DeviceThreads:
    """The threads. Gradients are on in them."""

    def __init__(self, devices: Sequence[Device]) -> None:
        """Start a thread for each device.

        Raises:
            InputError: if this host does not have one.
        """
        for device in devices:
            torch_device_of(device)
        settle()
        self._closed = False
        self._jobs: list[SimpleQueue[_Job[Any] | None]] = [SimpleQueue() for _ in devices]
        self._threads = [
            threading.Thread(target=_serve, args=(number, device, jobs), name=f"device-{device.name}", daemon=True)
            for number, (device, jobs) in enumerate(zip(devices, self._jobs, strict=True))
        ]
        for thread in self._threads:
            thread.start()

    def each(self, work: Callable[[DeviceContext], T], stop: Callable[[], None] = lambda: None) -> list[T]:
        """Let every device do something, and wait until all have ended.

        Args:
            work: what to do.
            stop: tells the others to give up (by `Stopped`) when one has failed, or the caller is interrupted.

        Returns:
            [n_devices], what each returned.

        Raises:
            Stopped: if all gave up without a reason of their own.
            RuntimeError: if it is closed.
        """
        if self._closed:
            raise RuntimeError("the trainer is closed; make a new one")
        done: list[Future[T]] = []
        try:
            for jobs in self._jobs:
                done.append(Future())
                jobs.put(_Job(work, done[-1]))
            wait(done, return_when=FIRST_EXCEPTION)
        except BaseException:
            stop()
            wait(done)
            raise
        if any(future.done() and future.exception() for future in done):
            stop()
            wait(done)
            errors = [error for future in done if (error := future.exception()) is not None]
            raise next((error for error in errors if not isinstance(error, Stopped)), errors[0])
        return [future.result() for future in done]

    def close(self) -> None:
        """End the threads behind what they do now. May be called again."""
        self._closed = True
        for jobs in self._jobs:
            jobs.put(None)
        for thread in self._threads:
            thread.join()


def _serve(number: int, device: Device, jobs: "SimpleQueue[_Job[Any] | None]") -> None:
    """One order after the other; where the thread cannot be bound, each of them fails with the reason."""
    try:
        with bound(device, ends=True) as stream, torch.enable_grad():
            context = DeviceContext(number, device, torch_device_of(device), stream)
            while (order := jobs.get()) is not None:
                order.carry_out(context)
                del order  # a device that waits holds no tensors
    except Exception as error:
        while (order := jobs.get()) is not None:
            order.done.set_exception(error)
