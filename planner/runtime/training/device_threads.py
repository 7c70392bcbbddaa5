"""Crew: a thread for each device that takes part, bound to it, which does what it is told."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import torch

from costmodels.cluster import Device
from costmodels.host.affinity import Stopped, bound, place_of, settle

T = TypeVar("T")


@dataclass(frozen=True)
class Seat:
    """Where a thread of the crew works.

    Attributes:
        number: of the device among those that take part.
        device: as in the cluster.
        place: where its tensors live.
        stream: of a GPU.
    """

    number: int
    device: Device
    place: torch.device
    stream: torch.cuda.Stream | None


@dataclass(eq=False)
class _Order(Generic[T]):
    work: Callable[[Seat], T]
    done: "Future[T]"

    def carry_out(self, seat: Seat) -> None:
        try:
            result = self.work(seat)
            if seat.stream is not None:
                seat.stream.synchronize()  # who waits for this goes on from anywhere
        except BaseException as error:  # whatever it is, the caller gets it
            self.done.set_exception(error)
        else:
            self.done.set_result(result)


class Crew:
    """The threads. Gradients are on in them."""

    def __init__(self, devices: Sequence[Device]) -> None:
        """Start a thread for each device.

        Raises:
            InputError: if this host does not have one.
        """
        for device in devices:
            place_of(device)
        settle()
        self._closed = False
        self._orders: list[SimpleQueue[_Order[Any] | None]] = [SimpleQueue() for _ in devices]
        self._threads = [
            threading.Thread(target=_serve, args=(number, device, orders), name=f"device-{device.name}", daemon=True)
            for number, (device, orders) in enumerate(zip(devices, self._orders, strict=True))
        ]
        for thread in self._threads:
            thread.start()

    def each(self, work: Callable[[Seat], T], stop: Callable[[], None] = lambda: None) -> list[T]:
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
            for orders in self._orders:
                done.append(Future())
                orders.put(_Order(work, done[-1]))
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
        for orders in self._orders:
            orders.put(None)
        for thread in self._threads:
            thread.join()


def _serve(number: int, device: Device, orders: "SimpleQueue[_Order[Any] | None]") -> None:
    """One order after the other; where the thread cannot be bound, each of them fails with the reason."""
    try:
        with bound(device, ends=True) as stream, torch.enable_grad():
            seat = Seat(number, device, place_of(device), stream)
            while (order := orders.get()) is not None:
                order.carry_out(seat)
                del order  # a device that waits holds no tensors
    except Exception as error:
        while (order := orders.get()) is not None:
            order.done.set_exception(error)
