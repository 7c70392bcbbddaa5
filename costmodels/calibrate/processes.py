"""How long a tensor takes from one process to another through torch.distributed.

Two processes, each bound to its device, send a message there and back; a way takes half of that. The one that began
compares what comes back with what it sent. Both end with the measurement, whatever happens to it::

    process of src  ── send ──►         ──► recv, compare       half the time between is one way
    process of dst        recv ──► send
"""

import os
import signal
import tempfile
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
from graphs.errors import InputError

Echo: TypeAlias = Callable[[torch.Tensor], torch.Tensor]

ROUNDS, ROUNDS_LARGE = 20, 5
LIMIT_S = 120.0  # for everything, the start of two interpreters included
END_S = 5.0  # for a process to end by itself


def unchanged(tensor: torch.Tensor) -> torch.Tensor:
    """What the receiver sends back."""
    return tensor


def measure_distributed_link(
    src: Processor, dst: Processor, backend: str = "gloo", sizes: tuple[int, ...] = SIZES, echo: Echo = unchanged
) -> LinkTimes:
    """One-way times between two processes of this host.

    The program that calls this must be importable without side effects (``if __name__ == "__main__"``), because the
    processes start from nothing.

    Args:
        src: device of the process that sends first.
        dst: device of the one that answers.
        backend: of torch.distributed; it must carry tensors of the host's memory.
        sizes: in bytes, beside the empty message.
        echo: a function of a module, which makes the answer.

    Raises:
        InputError: if this host does not have both devices, a process fails or does not answer in `LIMIT_S`, or what
            comes back is not what was sent.
    """
    for device in (src, dst):
        torch_device_of(device)  # fails here rather than in another process
    with tempfile.TemporaryDirectory() as folder, _running(src, dst, (backend, folder, sizes, echo)) as ends:
        waiting, end_s = list(ends), time.monotonic() + LIMIT_S
        while ready := wait(waiting, max(0.0, end_s - time.monotonic())):
            for end in [end for end in waiting if end in ready]:
                found = _received(end)
                if isinstance(found, InputError):
                    raise found
                if isinstance(found, str):
                    raise InputError(
                        f"the link from '{src.name}' to '{dst.name}' over {backend} failed: {found}; "
                        "see that the host lets processes talk to each other, or use the channel 'threads'"
                    )
                if found is not None:
                    return link_times(found)
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
    src: Processor, dst: Processor, arguments: tuple[str, str, tuple[int, ...], Echo]
) -> "Iterator[list[Connection[None, object]]]":
    """Two processes, and the pipes on which they tell what they found. None of them outlives the block."""
    spawn = get_context("spawn")  # a forked one would inherit OpenMP's locks, not its threads
    processes: list[BaseProcess] = []
    pipes: list[Connection[None, object]] = []
    try:
        for rank in (0, 1):
            here, there = spawn.Pipe(duplex=False)
            pipes.append(here)
            process = spawn.Process(target=_work, args=(rank, src, dst, there, arguments), daemon=True)
            process.start()
            processes.append(process)
            there.close()  # so that the end of the process is the end of the pipe
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
    arguments: tuple[str, str, tuple[int, ...], Echo],
) -> None:
    """In the new process: measure or answer, and tell."""
    backend, folder, sizes, echo = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the one who began ends the others
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # both are here; the name of the host need not resolve
    told: object = None
    try:
        with bound((src, dst)[rank]):
            dist.init_process_group(
                backend,
                init_method=f"file://{folder}/store",
                rank=rank,
                world_size=2,
                timeout=timedelta(seconds=LIMIT_S),
            )
            if rank == 0:
                told = _ask(src, dst, sizes)
            else:
                _answer(dst, sizes, echo)
            dist.destroy_process_group()
    except InputError as error:
        told = error
    except Exception as error:  # the other process waits for a word
        told = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    pipe.send(told)


def _ask(src: Processor, dst: Processor, sizes: tuple[int, ...]) -> dict[int, list[float]]:
    """One-way seconds by size."""
    place, times = torch_device_of(src), {}
    for n_bytes in (EMPTY, *sizes):
        found = []
        for number in range(_rounds(n_bytes)):
            tensor = pattern(n_bytes, number, place)
            back = torch.empty(tensor.shape)
            start_s = time.perf_counter()
            dist.send(tensor.cpu(), 1)
            dist.recv(back, 1)
            arrived = back.to(place)
            if src.cuda is not None:
                torch.cuda.synchronize()
            found.append((time.perf_counter() - start_s) / 2)
            check_arrived(src, dst, pattern(n_bytes, number), arrived)
        times[n_bytes] = found[1:]  # the first message of a size waits for memory
    return times


def _answer(dst: Processor, sizes: tuple[int, ...], echo: Echo) -> None:
    place = torch_device_of(dst)
    for n_bytes in (EMPTY, *sizes):
        buffer = torch.empty(pattern(n_bytes, 0).shape)
        for _ in range(_rounds(n_bytes)):
            dist.recv(buffer, 0)
            dist.send(echo(buffer.to(place)).cpu(), 0)


def _rounds(n_bytes: int) -> int:
    return ROUNDS if n_bytes < LARGE else ROUNDS_LARGE
