"""Threads that are devices: bound to processors, or to a stream of a GPU. What is measured here runs there as well."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch

from graphs.errors import InputError

T = TypeVar("T")

_SETTING_THREADS = threading.Lock()


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
                "go to the host that has it, or calibrate and plan for this one"
            )
        return torch.device("cuda", device.cuda)
    if not device.cores:
        raise InputError(
            f"device '{device.name}' has neither cores nor cuda in cluster.toml; it can be planned for and simulated, "
            "but neither measured nor run"
        )
    missing = sorted(set(device.cores) - usable_cores())
    if missing:
        raise InputError(
            f"device '{device.name}' is bound to core {missing[0]}, which this process may not use; "
            "go to the host that has it, or calibrate and plan for this one"
        )
    return torch.device("cpu")


@contextmanager
def bound(device: Processor) -> Iterator[torch.cuda.Stream | None]:
    """Make the calling thread the device: bound to its cores, with as many intra-op threads, or on a stream of its GPU.

    The processors and the number of threads are the calling thread's own and are put back; other threads keep theirs.
    """
    if device.cuda is not None:
        stream = torch.cuda.Stream(device.cuda)  # type: ignore[no-untyped-call]  # torch has no types here
        with torch.cuda.device(device.cuda), torch.cuda.stream(stream), torch.no_grad():
            yield stream
        return
    cores = usable_cores()
    os.sched_setaffinity(0, device.cores)  # 0 is the calling thread, not the process
    threads = _use_threads(len(device.cores))
    try:
        with torch.no_grad():  # not inference_mode, whose results PyTorch refuses to write to afterwards
            yield None
    finally:
        _use_threads(threads)
        os.sched_setaffinity(0, cores)


def _use_threads(count: int) -> int:
    """Set the intra-op threads of the calling thread alone; returns how many it had.

    ``torch.set_num_threads`` also decides what threads begin with that start later, so a passing one puts that back.
    """
    with _SETTING_THREADS, ThreadPoolExecutor(1) as passing:
        had, others = torch.get_num_threads(), passing.submit(torch.get_num_threads).result()
        torch.set_num_threads(count)
        passing.submit(torch.set_num_threads, others).result()
    return had


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

    threading.Thread(target=run, name=f"device-{device.name}", daemon=True).start()
    return result


def run_on(device: Processor, work: Callable[[], T]) -> T:
    """Call a function on a new thread that is bound to a device, and wait for what it returns."""
    return start_on(device, work).result()
