"""Device threads, bound to processors or to a stream of a GPU, for both calibration and the runtime."""

import ctypes
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias, TypeVar

import torch

from costmodels.cluster.cluster import Device
from costmodels.units import format_bytes
from graphs.common.errors import InputError, first_line
from graphs.common.promises import Promise
from graphs.kernels.choice import Kernels

T = TypeVar("T")

STOP_S = 5.0  # time limit of a thread that was stopped to finish its current work

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8  # of glibc's malloc.h
HEAP_BYTES = 2**26  # of a thread, HEAP_MAX_SIZE of glibc's arena.c
PAUSE_SOFT = 1  # omp_pause_soft of OpenMP 5.0: threads end, settings stay
_SETTING_THREADS = threading.Lock()
_IDLE_STREAMS: dict[int, list[torch.cuda.Stream]] = {}
"""By GPU, streams that no thread uses. cuBLAS keeps a workspace of 32 MiB for each stream that it has seen."""
_THREAD = threading.local()
_THREADS_MAY_START = threading.Event()


class Stopped(Exception):  # noqa: N818  # it is no error
    """Raised by work that was stopped."""


class ThreadResult(Promise[T]):
    """The result of a thread, with a way to stop the thread."""

    def __init__(self) -> None:
        super().__init__()
        self.stop_event = threading.Event()
        self.thread: threading.Thread | None = None  # that has been started

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait as any promise does, and then for the end of the thread, which comes a moment after its result.

        On a busy machine that moment is long, and a thread that is not waited for would be left running.
        """
        is_there = super().wait(timeout_s)
        if is_there and self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join()
        return is_there

    def stop(self) -> None:
        """Stop the thread, whose work must poll `stopped`, and wait for it up to `STOP_S`.

        A thread that is in PyTorch when the interpreter ends may crash the process.
        """
        self.stop_event.set()
        self.wait(STOP_S)


def stopped() -> bool:
    """Return whether the calling thread was stopped."""
    stop_event: threading.Event | None = getattr(_THREAD, "stop_event", None)
    return stop_event is not None and stop_event.is_set()


def check_stopped() -> None:
    """Leave the work if the calling thread was stopped.

    Raises:
        Stopped: if so.
    """
    if stopped():
        raise Stopped


@dataclass(frozen=True, slots=True)
class DiscoveredDevice:
    """A device that is not measured yet; fields as in `costmodels.cluster.cluster.Device`."""

    name: str
    kind: str
    memory_bytes: float
    cores: tuple[int, ...] = ()
    cuda: int | None = None
    node: str = ""  # its memory node; links within one node are equal
    kernels: Kernels = "exact"


Processor: TypeAlias = Device | DiscoveredDevice
"""Cores or a GPU of this host."""


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
    """The torch device of a device's tensors.

    Raises:
        InputError: if the device is hypothetical, or this host does not have it.
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
    """Whether the calling thread can be the device: it may use the device's several cores, with a thread for each.

    Then the calling thread should do the work. GNU's OpenMP keeps a pool of waiting threads for every thread that has
    called an operator. If there are more waiting threads than processors, they sleep between two operators instead of
    spinning: with a second pool for the same two cores, ResNet-50 took a quarter longer.
    """
    several = device.cuda is None and len(device.cores) > 1
    return several and torch.get_num_threads() == len(device.cores) and set(device.cores) <= usable_cores()


def release_heap() -> None:
    """Give memory that this process has freed and kept, see `settle`, back to the system, if the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def end_waiting_threads() -> None:
    """End the waiting OpenMP threads of the calling thread (see `is_here`); its next operator starts new ones.

    It is called before devices of several cores start, so that no more threads wait than there are processors. The
    OpenMP libraries of other builds of PyTorch are not affected.
    """
    library = _gnu_openmp()
    if library is not None:
        library.omp_pause_resource_all(PAUSE_SOFT)


@cache
def _gnu_openmp() -> ctypes.CDLL | None:
    """GNU's OpenMP, if PyTorch has loaded it, and it can end threads (OpenMP 5.0)."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text(encoding="utf-8").splitlines() if maps.exists() else []
    path = next((line.split(maxsplit=5)[-1] for line in lines if "/libgomp" in line), None)
    library = ctypes.CDLL(path) if path else None
    return library if hasattr(library, "omp_pause_resource_all") else None


@contextmanager
def bound(device: Processor, ends: bool = False) -> Iterator[torch.cuda.Stream | None]:
    """Make the calling thread the device: bound to its cores, with as many intra-op threads, or on a stream of its GPU.

    The affinity and the number of threads are the calling thread's own and are restored; other threads keep theirs.
    With ``ends`` the thread ends afterwards, so that nothing has to be restored, even if Python ends. A GPU is done
    with the thread's work afterwards, so that others can read the results on streams of their own.
    """
    if device.cuda is not None:
        with torch.cuda.device(device.cuda), own_stream(device.cuda) as stream, torch.no_grad():
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


@contextmanager
def own_stream(gpu: int) -> Iterator[torch.cuda.Stream]:
    """Make a stream of a GPU that no other thread uses meanwhile the current one; its work is over afterwards."""
    idle = _IDLE_STREAMS.setdefault(gpu, [])
    try:
        stream = idle.pop()  # at once, so that no two threads get one
    except IndexError:
        stream = torch.cuda.Stream(gpu)  # type: ignore[no-untyped-call]  # torch has no types here
    try:
        with torch.cuda.stream(stream):
            yield stream
        stream.synchronize()
    finally:
        idle.append(stream)


def copied_to(tensor: torch.Tensor, torch_device: torch.device, written: torch.cuda.Event | None) -> torch.Tensor:
    """Return a copy of a tensor on another torch device, on which the calling thread can read it.

    ``written`` is over when a GPU has written the tensor; None if it has. What goes to a GPU is copied on its current
    stream, for which the thread does not wait. What comes from a GPU comes on a stream of its own, so that it waits for
    nothing but the tensor, and to pinned memory, to which the GPU copies by itself.
    """
    if torch_device.type == "cuda":
        return tensor.to(torch_device, non_blocking=True)
    gpu = tensor.device.index
    with torch.cuda.device(gpu), own_stream(gpu) as stream:
        if written is not None:
            stream.wait_event(written)
        return tensor.to(torch_device, non_blocking=True)


def settle(largest_bytes: int = 0) -> None:
    """Prepare the process before device threads start, for tensors of at most ``largest_bytes``; the first call counts.

    Libraries detect the processor in the first matrix product, which must not run in several threads.
    """
    if _THREADS_MAY_START.is_set():
        return
    _THREADS_MAY_START.set()
    settle_allocator(shared=largest_bytes >= HEAP_BYTES)
    torch.mm(torch.ones(16, 16), torch.ones(16, 16))


def settle_allocator(shared: bool) -> None:
    """Let the C library keep freed memory, so that tensors reuse its pages; threads share a heap, or have their own.

    By default, glibc returns large freed blocks to the system, and later allocates new pages; threads other than the
    first allocate from heaps of 64 MiB, which are given up once they are empty. In a network with large activations,
    this takes a varying tenth of the time. The function is called before threads start; the process then keeps memory
    until it ends (mallopt(3)). From a heap that two devices share, each gets blocks that lie in the other core's cache,
    which took a quarter of the time of two copies of MobileNet. But the heap of a thread holds no tensor of 64 MiB,
    whose pages would be new at each pass: 7 % of VGG-16's time with eight images.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is None:
        return
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    if shared:
        mallopt(M_ARENA_MAX, 1)
    else:
        mallopt(M_TOP_PAD, 2 * HEAP_BYTES)  # more than a heap, so that glibc keeps each that is empty


def use_threads(count: int) -> int:
    """Set the number of intra-op threads of the calling thread only, and return its former number.

    ``torch.set_num_threads`` also sets the default of later threads, which a temporary thread restores.
    """
    with _SETTING_THREADS, ThreadPoolExecutor(1) as temporary:
        before, default = torch.get_num_threads(), temporary.submit(torch.get_num_threads).result()
        torch.set_num_threads(count)
        temporary.submit(torch.set_num_threads, default).result()
    return before


def out_of_memory(device: Processor, error: BaseException) -> InputError:
    """Return the error of a GPU that ran out of memory, and release the tensors that the failed work held.

    They are locals of the functions in the traceback, and memory that PyTorch keeps for reuse.
    """
    traceback.clear_frames(error.__traceback__)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device.cuda)
    return InputError(
        f"'{device.name}' has run out of memory: {first_line(error).split('. GPU')[0]}; {format_bytes(free)} of "
        f"{format_bytes(total)} are free; use smaller batches, give it less memory in cluster.toml, or end what else "
        "runs on it"
    )


def start_on(device: Processor, work: Callable[[], T]) -> ThreadResult[T]:
    """Call a function on a new thread that is bound to a device; the result holds what it returns or raises.

    A GPU that runs out of memory raises InputError.

    Raises:
        InputError: if this host does not have the device.
    """
    torch_device_of(device)
    settle()
    if len(device.cores) > 1:
        end_waiting_threads()
    if device.cuda is not None:  # what the caller has given to the GPU is there for the thread's own stream
        torch.cuda.current_stream(device.cuda).synchronize()
    result: ThreadResult[T] = ThreadResult()

    def run() -> None:
        _THREAD.stop_event = result.stop_event
        try:
            with bound(device, ends=True):
                value = work()
        except torch.OutOfMemoryError as error:
            result.set_exception(out_of_memory(device, error))
        except BaseException as error:  # the caller gets it as it gets a result
            result.set_exception(error)
        else:
            result.set_result(value)

    result.thread = threading.Thread(target=run, name=f"device-{device.name}", daemon=True)
    result.thread.start()
    return result


def run_on(device: Processor, work: Callable[[], T]) -> T:
    """Call a function on a new thread that is bound to a device, and wait for its result.

    An interrupt stops the thread (see `stopped`). If the calling thread can be the device, no thread is started.
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
