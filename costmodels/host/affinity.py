"""Threads that are devices: bound to processors, or to a stream of a GPU. What is measured here runs there as well."""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from graphs.errors import InputError

T = TypeVar("T")

STOP_S = 5.0  # for the piece of work that a thread is in the middle of when it is told to stop

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8  # of glibc's malloc.h
NODES = Path("/sys/devices/system/node")  # parts of the host's memory
PAUSE_SOFT = 1  # omp_pause_soft of OpenMP 5.0: threads end, settings stay
_SETTING_THREADS = threading.Lock()
_HERE = threading.local()


class Stopped(Exception):  # noqa: N818  # no error: somebody wants no more
    """Raised by work that was told to stop."""


class ThreadResult(Future[T]):
    """What a thread will return, and a way to tell it that nobody waits any more."""

    def __init__(self) -> None:
        super().__init__()
        self.told = threading.Event()

    def stop(self) -> None:
        """Ask the thread to end, and wait for it a little; it does if its work asks `stopped` now and then.

        Otherwise it would still be in PyTorch when the interpreter ends, which ends badly.
        """
        self.told.set()
        wait([self], STOP_S)


def stopped() -> bool:
    """Whether the calling thread was told to stop."""
    told: threading.Event | None = getattr(_HERE, "told", None)
    return told is not None and told.is_set()


def check_stopped() -> None:
    """Leave the work if the calling thread was told to stop.

    Raises:
        Stopped: if so.
    """
    if stopped():
        raise Stopped


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

    @property
    def kernels(self) -> str:
        """What computes operators: "exact" or "quick"."""
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


def torch_device_of(device: Processor) -> torch.device:
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


def is_here(device: Processor) -> bool:
    """Whether the calling thread is as good as the device: it may use its cores, and has a thread for each of several.

    Then work is better done on it. GNU's OpenMP keeps waiting threads for every thread that has called an operator; as
    soon as there are more than processors, they go to sleep between two operators rather than watch for the next one.
    A second thread for the same cores took a quarter longer for ResNet-50 on two of them.
    """
    several = device.cuda is None and len(device.cores) > 1
    return several and torch.get_num_threads() == len(device.cores) and set(device.cores) <= usable_cores()


def end_waiting_threads() -> None:
    """End the threads that GNU's OpenMP keeps for the calling thread (see `is_here`); its next operator starts others.

    Before devices of several cores start, so that no more threads wait than there are processors. Another OpenMP, as
    other builds of PyTorch have, is left alone.
    """
    library = _gnu_openmp()
    if library is not None:
        library.omp_pause_resource_all(PAUSE_SOFT)


@cache
def _gnu_openmp() -> ctypes.CDLL | None:
    """The library as PyTorch has loaded it, if it is that one and new enough (OpenMP 5.0) to be told."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text(encoding="utf-8").splitlines() if maps.exists() else []
    path = next((line.split(maxsplit=5)[-1] for line in lines if "/libgomp" in line), None)
    library = ctypes.CDLL(path) if path else None
    return library if hasattr(library, "omp_pause_resource_all") else None


@contextmanager
def bound(device: Processor, ends: bool = False) -> Iterator[torch.cuda.Stream | None]:
    """Make the calling thread the device: bound to its cores, with as many intra-op threads, or on a stream of its GPU.

    The processors and the number of threads are the calling thread's own and are put back; other threads keep theirs.

    Args:
        device: of this host.
        ends: the thread ends behind it, so that nothing has to be put back; it can end when Python does.
    """
    if device.cuda is not None:
        stream = torch.cuda.Stream(device.cuda)  # type: ignore[no-untyped-call]  # torch has no types here
        with torch.cuda.device(device.cuda), torch.cuda.stream(stream), torch.no_grad():
            yield stream
        return
    cores = usable_cores()
    os.sched_setaffinity(0, device.cores)  # 0 is the calling thread, not the process
    threads = use_threads(len(device.cores))
    try:
        with torch.no_grad():  # not inference_mode, whose results PyTorch refuses to write to afterwards
            yield None
    finally:
        if not ends:
            use_threads(threads)
            os.sched_setaffinity(0, cores)


@cache
def settle() -> None:
    """What is done once in a process, before threads that are devices begin.

    The first matrix product is one thread's alone: libraries find out in it what the processor can do.
    """
    settle_allocator()
    torch.mm(torch.ones(16, 16), torch.ones(16, 16))


def settle_allocator() -> None:
    """Let the C library keep memory that is freed, so that a tensor finds pages that are there.

    By itself, glibc returns large blocks to the system when they are freed, and makes their pages anew for the next
    tensor; and threads other than the first allocate from heaps of 64 MiB, which come and go. In a network with large
    activations that takes a tenth of the time, now more and now less. To be called before threads begin; memory is then
    kept until the process ends. Where memory is near some processors and far from others, each thread keeps heaps of
    its own (mallopt(3)).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is None:
        return
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    if len(list(NODES.glob("node[0-9]*"))) <= 1:
        mallopt(M_ARENA_MAX, 1)


def use_threads(count: int) -> int:
    """Set the intra-op threads of the calling thread alone; returns how many it had.

    ``torch.set_num_threads`` also decides what threads begin with that start later, so a passing one puts that back.
    """
    with _SETTING_THREADS, ThreadPoolExecutor(1) as passing:
        had, others = torch.get_num_threads(), passing.submit(torch.get_num_threads).result()
        torch.set_num_threads(count)
        passing.submit(torch.set_num_threads, others).result()
    return had


def start_on(device: Processor, work: Callable[[], T]) -> ThreadResult[T]:
    """Call a function on a new thread that is bound to a device; the result holds what it returns or raises.

    Raises:
        InputError: if this host does not have the device.
    """
    torch_device_of(device)
    settle()
    if len(device.cores) > 1:
        end_waiting_threads()
    result: ThreadResult[T] = ThreadResult()

    def run() -> None:
        _HERE.told = result.told
        try:
            with bound(device, ends=True):
                value = work()
        except BaseException as error:  # handed to the caller, like a result
            result.set_exception(error)
        else:
            result.set_result(value)

    threading.Thread(target=run, name=f"device-{device.name}", daemon=True).start()
    return result


def run_on(device: Processor, work: Callable[[], T]) -> T:
    """Call a function on a new thread that is bound to a device, and wait for what it returns.

    An interrupt tells the thread to stop (see `stopped`). Where the calling thread is the device, there is no new one.
    """
    if is_here(device):
        settle()
        with torch.no_grad():
            return work()
    running = start_on(device, work)
    try:
        return running.result()
    except BaseException:
        running.stop()
        raise
