"""Threads that are devices: bound to processors, or to a GPU, as they are when a plan runs."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch

from graphs.errors import InputError

T = TypeVar("T")


class Processor(Protocol):
    """Cores or a GPU of this host: a `Device`, or one that is not measured yet."""

    @property
    def name(self) -> str:
        """For messages."""
        ...

    @property
    def kind(self) -> str:
        """Processors of one kind are equal."""
        ...

    @property
    def cores(self) -> tuple[int, ...]:
        """Their numbers."""
        ...

    @property
    def cuda(self) -> int | None:
        """The number of the GPU."""
        ...


def usable_cores() -> set[int]:
    """Numbers of the processors that this process may use.

    Raises:
        InputError: if the system cannot bind a thread to a processor.
    """
    if not hasattr(os, "sched_getaffinity"):
        raise InputError(
            "this system cannot bind threads to processors; measure on Linux, or write cluster.toml by hand"
        )
    return os.sched_getaffinity(0)


def place_of(device: Processor) -> torch.device:
    """Where the tensors of a device live.

    Raises:
        InputError: if the device stands on paper, or this host does not have it.
    """
    if device.cuda is not None:
        if device.cuda >= torch.cuda.device_count():
            raise InputError(
                f"device '{device.name}' is GPU {device.cuda}, this host has {torch.cuda.device_count()}; "
                "measure it on its own host"
            )
        return torch.device("cuda", device.cuda)
    if not device.cores:
        raise InputError(
            f"device '{device.name}' has neither cores nor cuda, so it cannot be measured; "
            "give it one of them, or plan with its peaks"
        )
    missing = sorted(set(device.cores) - usable_cores())
    if missing:
        raise InputError(
            f"device '{device.name}' is bound to core {missing[0]}, which this process may not use; "
            "measure it on its own host"
        )
    return torch.device("cpu")


@contextmanager
def bound(device: Processor) -> Iterator[None]:
    """Make the calling thread the device: bound to its cores, with as many intra-op threads, or to its GPU.

    Meant for a thread that ends with this block: processors stay bound, and torch's number of threads is put back.
    """
    if device.cuda is not None:
        with torch.cuda.device(device.cuda), torch.inference_mode():
            yield
        return
    threads = torch.get_num_threads()
    os.sched_setaffinity(0, device.cores)  # 0 is the calling thread, not the process
    torch.set_num_threads(len(device.cores))
    try:
        with torch.inference_mode():
            yield
    finally:
        torch.set_num_threads(threads)  # later threads start with this number


def start_on(device: Processor, work: Callable[[], T]) -> "Future[T]":
    """Call a function on a new thread that is bound to a device; the future holds what it returns or raises.

    Raises:
        InputError: if this host does not have the device.
    """
    place_of(device)
    result: Future[T] = Future()

    def run() -> None:
        try:
            with bound(device):
                value = work()
        except BaseException as error:  # handed to the caller, like a result
            result.set_exception(error)
        else:
            result.set_result(value)

    threading.Thread(target=run, name=f"measure-{device.name}", daemon=True).start()
    return result


def run_on(device: Processor, work: Callable[[], T]) -> T:
    """Call a function on a new thread that is bound to a device, and wait for what it returns."""
    return start_on(device, work).result()
