"""What it means to be a device of this host: a bound thread, or a GPU with a stream of its own."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

from costmodels.cluster import Device
from graphs.errors import InputError

_SETTING_THREADS = threading.Lock()


def torch_device(device: Device) -> torch.device:
    """Where the tensors of a device live.

    Raises:
        InputError: if the device stands on paper, or this host has no such processor or GPU.
    """
    if device.cuda is not None:
        if device.cuda >= torch.cuda.device_count():
            raise InputError(
                f"device '{device.name}' is GPU {device.cuda}, this host has {torch.cuda.device_count()}; "
                "run the plan where it was made for, or plan for this host"
            )
        return torch.device("cuda", device.cuda)
    if not device.cores:
        raise InputError(f"device '{device.name}' has neither cores nor cuda in cluster.toml; it can only be simulated")
    missing = sorted(set(device.cores) - os.sched_getaffinity(0))
    if missing:
        raise InputError(
            f"device '{device.name}' is bound to core {missing[0]}, which this process may not use; "
            "plan for this host with `planner calibrate`"
        )
    return torch.device("cpu")


@contextmanager
def bound(device: Device) -> Iterator[torch.cuda.Stream | None]:
    """Make the calling thread the device: bound to its cores, with as many intra-op threads, or on a stream of its GPU.

    The processors and the number of threads are the calling thread's own and are put back; other threads keep theirs.
    """
    if device.cuda is not None:
        stream = torch.cuda.Stream(device.cuda)  # type: ignore[no-untyped-call]  # torch has no types here
        with torch.cuda.device(device.cuda), torch.cuda.stream(stream), torch.no_grad():
            yield stream
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, device.cores)
    threads = _use_threads(len(device.cores))
    try:
        with torch.no_grad():
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
