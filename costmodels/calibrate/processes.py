"""Measures the time of a tensor from one process to another through torch.distributed.

Two processes, each bound to its device, send a message back and forth; one way takes half of that time. The first
process compares the returned tensor with the one that it sent. Both processes end with the measurement in any case::

    process of src  ── send ──►         ──► recv, compare       half the time between is one way
    process of dst        recv ──► send
"""

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from datetime import timedelta
from multiprocessing import get_context
from typing import TypeAlias

import torch
import torch.distributed as dist

from costmodels.calibrate.linktimes import EMPTY, LARGE, SIZES, LinkTimes, check_arrived, link_times, pattern
from costmodels.host.affinity import Processor, bound, torch_device_of
from costmodels.host.stores import served_store, visited_store
from graphs.common.errors import InputError, kind_and_line

Echo: TypeAlias = Callable[[torch.Tensor], torch.Tensor]

BACKEND = "gloo"  # of torch.distributed
ROUNDS, ROUNDS_LARGE = 20, 5
LIMIT_S = 120.0  # time limit of a measurement, including the start of two interpreters


def unchanged(tensor: torch.Tensor) -> torch.Tensor:
    """The receiver's answer: the tensor that it received."""
    return tensor


def measure_distributed_link(
    src: Processor, dst: Processor, sizes: tuple[int, ...] = SIZES, echo: Echo = unchanged
) -> LinkTimes:
    """One-way times between two processes of this host, the first of which sends first; ``echo`` makes the answer.

    The calling program must be importable without side effects (``if __name__ == "__main__"``), since the processes are
    spawned. Raise InputError if this host does not have both devices, a process fails or does not answer in `LIMIT_S`,
    or the link corrupts data.
    """
    for device in (src, dst):
        torch_device_of(device)  # fails here rather than in another process
    link = f"the link from '{src.name}' to '{dst.name}' over {BACKEND}"
    store = served_store()
    spawn = get_context("spawn")  # a forked one would inherit OpenMP's locks, not its threads
    # Ctrl-C reaches all processes; the first one ends the others.
    pool = ProcessPoolExecutor(2, spawn, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN))
    try:
        runs = [pool.submit(_work, rank, src, dst, store.port, sizes, echo) for rank in (0, 1)]
        done, _ = wait(runs, LIMIT_S, FIRST_EXCEPTION)
        times, *_ = [run.result() for run in sorted(done, key=runs.index)] or [None]
    except (OSError, RuntimeError) as error:  # of gloo, the store or the pool
        silent = isinstance(error, BrokenProcessPool)
        why = "a process ended without a word" if silent else kind_and_line(error)
        raise InputError(
            f"{link} failed: {why}; see that the host lets processes talk to each other, or use the channel 'threads'"
        ) from error
    finally:
        for process in list((pool._processes or {}).values()):
            process.kill()
        pool.shutdown()
    if times is None:
        raise InputError(
            f"{link} gave no answer in {LIMIT_S:.0f} s; calibrate on a quieter host, or use the channel 'threads'"
        )
    return link_times(times)


def _work(
    rank: int, src: Processor, dst: Processor, port: int, sizes: tuple[int, ...], echo: Echo
) -> dict[int, list[float]] | None:
    """Measure or answer in the new process; the first one returns one-way seconds by size."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the name of the host need not resolve
    with bound((src, dst)[rank]):
        limit = timedelta(seconds=LIMIT_S)
        dist.init_process_group(BACKEND, store=visited_store(port), rank=rank, world_size=2, timeout=limit)
        times = _ask(src, dst, sizes) if rank == 0 else None
        if rank == 1:
            _answer(dst, sizes, echo)
        dist.destroy_process_group()
    return times


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
