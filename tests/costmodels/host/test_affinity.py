"""Threads that are devices."""

import ctypes
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from costmodels.cluster.cluster import Device
from costmodels.host import affinity as pinned
from costmodels.host.affinity import (
    Stopped,
    ThreadResult,
    check_stopped,
    run_on,
    settle_allocator,
    start_on,
    stopped,
    torch_device_of,
)
from graphs.common.errors import InputError
from tests.children import LIMIT_S, ran
from tests.costmodels.calibrate.hosts import CORE, OTHER, device

PAPER = Device("paper", "paper", 1e9, {"float32": 1e9}, 1e9)
GPU = Device("gpu7", "gpu", 1e9, {"float32": 1e9}, 1e9, cuda=7)


def test_work_runs_on_a_thread_of_its_own_bound_to_the_cores() -> None:
    mine = os.sched_getaffinity(0)

    def work() -> tuple[int, set[int], int, bool]:
        return (
            threading.get_ident(),
            os.sched_getaffinity(0),
            torch.get_num_threads(),
            torch.is_grad_enabled(),
        )

    thread, cores, n_threads, gradients = run_on(device(), work)
    assert thread != threading.get_ident()
    assert (cores, n_threads, gradients) == ({CORE}, 1, False)
    assert os.sched_getaffinity(0) == mine


def test_as_many_intra_op_threads_as_cores_and_only_there() -> None:
    def here_and_in_a_new_thread() -> tuple[int, int]:
        with ThreadPoolExecutor(1) as new:
            return torch.get_num_threads(), new.submit(torch.get_num_threads).result(LIMIT_S)

    before = here_and_in_a_new_thread()  # which differ where another test has set this thread's number
    cores = tuple(sorted({CORE, OTHER}))
    assert run_on(device("both", *cores), torch.get_num_threads) == len(cores)
    assert here_and_in_a_new_thread() == before


def test_an_error_reaches_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        run_on(device(), lambda: 1 // 0)


def test_two_devices_run_at_the_same_time() -> None:
    meeting = threading.Barrier(2)
    ends = [start_on(device(f"cpu{i}", core), lambda: meeting.wait(60)) for i, core in enumerate((CORE, OTHER))]
    assert sorted(end.result(60) for end in ends) == [0, 1]


@pytest.mark.parametrize(
    ("absent", "message"),
    [
        (
            PAPER,
            "device 'paper' has neither cores nor cuda in cluster.toml; it can be planned for",
        ),
        (device("far", 10**6), "device 'far' is bound to core 1000000, which this process may not use; go to the"),
        (GPU, "device 'gpu7' is GPU 7, this host has 0; go to the host that has it, or calibrate"),
    ],
)
def test_a_device_of_another_host_is_refused(absent: Device, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(InputError) as error:
        start_on(absent, lambda: None)
    assert str(error.value).startswith(message)


def test_a_system_that_cannot_bind_threads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    with pytest.raises(InputError) as error:
        start_on(device(), lambda: None)
    assert str(error.value) == (
        "this system cannot bind threads to processors; measure on Linux, or write cluster.toml by hand"
    )


def test_where_tensors_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert torch_device_of(GPU) == torch.device("cuda", 7)
    assert torch_device_of(device()) == torch.device("cpu")


def test_work_that_is_told_to_stop_ends() -> None:
    going = threading.Event()

    def endless() -> None:
        while True:
            going.set()
            check_stopped()

    work = start_on(device(), endless)
    assert going.wait(60)
    work.stop()
    assert isinstance(work.exception(0), Stopped)


def test_an_interrupt_of_the_caller_stops_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    going = threading.Event()
    ended = threading.Event()

    class Interrupted(ThreadResult[None]):
        def result(self, timeout: float | None = None) -> None:
            going.wait(timeout)
            raise KeyboardInterrupt

    def work() -> None:
        try:
            while not stopped():
                going.set()
        finally:
            ended.set()

    monkeypatch.setattr(pinned, "ThreadResult", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_on(device(), work)
    assert ended.is_set()


def test_a_result_is_there_when_its_thread_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(ThreadResult[int]):
        def set_result(self, value: int) -> None:
            super().set_result(value)
            time.sleep(0.2)  # as on a busy machine, where the thread is interrupted here

    monkeypatch.setattr(pinned, "ThreadResult", Slow)
    for with_timeout in (False, True):
        assert (start_on(device(), lambda: 3).result(60) if with_timeout else run_on(device(), lambda: 3)) == 3
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("device-")]


def test_nobody_else_is_stopped() -> None:
    assert not stopped()
    check_stopped()


LARGE = """
import resource
import torch
from costmodels.host.affinity import run_on, settle
from tests.costmodels.calibrate.hosts import device

sizes = SIZES
settle(max(sizes))

def work():
    for number in range(30):
        if number == 20:
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        for n_bytes in sizes:
            torch.zeros(n_bytes // 4)
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before

print(run_on(device(), work))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="of glibc alone")
@pytest.mark.parametrize("sizes", [[2**26, 2**24], [2**25, 2**24, 2**25 + 2**24]])
def test_a_large_tensor_finds_the_pages_of_the_one_before(sizes: list[int]) -> None:
    """80 MiB are 20,480 pages, ten times, once the heap has grown. In a process of its own: what is set stays."""
    done = ran([sys.executable, "-c", LARGE.replace("SIZES", str(sizes))])
    assert int(done.stdout) < 500


OWN = """
from concurrent.futures import ThreadPoolExecutor
import torch
from costmodels.host.affinity import settle

settle()
with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
    freed = [pool.submit(lambda: torch.empty(2**20).data_ptr()).result() for pool in (one, other, one, other)]
heaps = [address // 2**26 for address in freed]
print(len(set(heaps)), heaps[:2] == heaps[2:])
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="of glibc alone")
def test_threads_find_their_own_blocks_again() -> None:
    """Those of another thread lie in another core's cache."""
    assert ran([sys.executable, "-c", OWN]).stdout == "2 True\n"


def test_a_c_library_that_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    settle_allocator(shared=False)
