"""Measures the time of a tensor from one process to another through torch.distributed.

Two processes, each bound to its device, send a message back and forth; one way takes half of that time. The first
process compares the returned tensor with the one that it sent. Both processes end with the measurement in any case::

    process of src  ── send ──►         ──► recv, compare       half the time between is one way
    process of dst        recv ──► send
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TypeAlias

import torch
import torch.distributed as dist

from costmodels.calibrate.linktimes import EMPTY, LARGE, SIZES, LinkTimes, check_arrived, link_times, pattern
from costmodels.host.affinity import Processor, bound, torch_device_of
from costmodels.host.stores import served_store, visited_store
from graphs.errors import InputError

Echo: TypeAlias = Callable[[torch.Tensor], torch.Tensor]

ROUNDS, ROUNDS_LARGE = 20, 5
LIMIT_S = 120.0  # time limit of a measurement, including the start of two interpreters
END_S = 5.0  # time limit of a process to end by itself


def unchanged(tensor: torch.Tensor) -> torch.Tensor:
    """The receiver's answer: the tensor that it received."""
    return tensor


def measure_distributed_link(
    src: Processor, dst: Processor, backend: str = "gloo", sizes: tuple[int, ...] = SIZES, echo: Echo = unchanged
) -> LinkTimes:
    """One-way times between two processes of this host, the first of which sends first; ``echo`` makes the answer.

    The calling program must be importable without side effects (``if __name__ == "__main__"``), since the processes are
    spawned. Raise InputError if this host does not have both devices, a process fails or does not answer in `LIMIT_S`,
    or the link corrupts data.
    """
    for device in (src, dst):
        torch_device_of(device)  # fails here rather than in another process
    store = served_store()
    with _running(src, dst, (backend, store.port, sizes, echo)) as ends:
        waiting, end_s = list(ends), time.monotonic() + LIMIT_S
        while ready := wait(waiting, max(0.0, end_s - time.monotonic())):
            for end in [end for end in waiting if end in ready]:
                result = _received(end)
                if isinstance(result, InputError):
                    raise result
                if isinstance(result, str):
                    raise InputError(
                        f"the link from '{src.name}' to '{dst.name}' over {backend} failed: {result}; "
                        "see that the host lets processes talk to each other, or use the channel 'threads'"
                    )
                if result is not None:
                    return link_times(result)
                waiting.remove(end)
    raise InputError(
        f"the link from '{src.name}' to '{dst.name}' over {backend} gave no answer in {LIMIT_S:.0f} s; "
        "calibrate on a quieter host, or use the channel 'threads'"
    )


def _received(end: "Connection[None, object]") -> "dict[int, list[float]] | InputError | str | None":
    try:
        return end.recv()  # type: ignore[return-value]  # what `_work` sends
    except EOFError:
        return "a process ended without a word"


@contextmanager
def _running(
    src: Processor, dst: Processor, arguments: tuple[str, int, tuple[int, ...], Echo]
) -> "Iterator[list[Connection[None, object]]]":
    """The pipes on which two processes send their results; both processes end with the block."""
    spawn = get_context("spawn")  # a forked one would inherit OpenMP's locks, not its threads
    processes: list[BaseProcess] = []
    pipes: list[Connection[None, object]] = []
    try:
        for rank in (0, 1):
            reader, writer = spawn.Pipe(duplex=False)
            pipes.append(reader)
            process = spawn.Process(target=_work, args=(rank, src, dst, writer, arguments), daemon=True)
            process.start()
            processes.append(process)
            writer.close()  # so that the end of the process is the end of the pipe
        yield pipes
    finally:
        _end(processes)
        for pipe in pipes:
            pipe.close()


def _end(processes: list[BaseProcess]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(END_S)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()


def _work(
    rank: int,
    src: Processor,
    dst: Processor,
    pipe: "Connection[object, None]",
    arguments: tuple[str, int, tuple[int, ...], Echo],
) -> None:
    """Measure or answer in the new process, and send the result."""
    backend, port, sizes, echo = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one ends the others
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the name of the host need not resolve
    result: object = None
    try:
        with bound((src, dst)[rank]):
            limit = timedelta(seconds=LIMIT_S)
            dist.init_process_group(backend, store=visited_store(port), rank=rank, world_size=2, timeout=limit)
            if rank == 0:
                result = _ask(src, dst, sizes)
            else:
                _answer(dst, sizes, echo)
            dist.destroy_process_group()
    except InputError as error:
        result = error
    except Exception as error:  # the caller waits for a result
        result = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    pipe.send(result)


def _ask(src: Processor, dst: Processor, sizes: tuple[int, ...]) -> dict[int, list[float]]:
    """One-way seconds by size."""
    torch_device, times = torch_device_of(src), {}
    for n_bytes in (EMPTY, *sizes):
        seconds = []
        for number in range(_rounds(n_bytes)):
            tensor = pattern(n_bytes, number, torch_device)
            answer = torch.empty(tensor.shape)
            start_s = time.perf_counter()
            dist.send(tensor.cpu(), 1)
            dist.recv(answer, 1)
            arrived = answer.to(torch_device)
            if src.cuda is not None:
                torch.cuda.synchronize()
            seconds.append((time.perf_counter() - start_s) / 2)
            check_arrived(src, dst, pattern(n_bytes, number), arrived)
        times[n_bytes] = seconds[1:]  # the first message of a size includes allocations
    return times


def _answer(dst: Processor, sizes: tuple[int, ...], echo: Echo) -> None:
    torch_device = torch_device_of(dst)
    for n_bytes in (EMPTY, *sizes):
        buffer = torch.empty(pattern(n_bytes, 0).shape)
        for _ in range(_rounds(n_bytes)):
            dist.recv(buffer, 0)
            dist.send(echo(buffer.to(torch_device)).cpu(), 0)


def _rounds(n_bytes: int) -> int:
    return ROUNDS if n_bytes < LARGE else ROUNDS_LARGE
