"""What is bound while a thread is a device, and what is not."""

import os
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from costmodels.host import affinity as pinned
from costmodels.host.affinity import bound, end_waiting_threads, is_here, run_on
from tests.costmodels.calibrate.hosts import OTHER
from tests.planner.runtime.small import CORE, PATIENCE_S, begin, cpu

OTHERS = 3  # intra-op threads of the process in these tests: neither one nor the number of cores


@pytest.fixture(autouse=True)
def _threads_of_the_process() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(OTHERS)
    yield
    torch.set_num_threads(before)


def in_fresh_thread() -> int:
    """Intra-op threads that a thread begins with."""
    return begin(torch.get_num_threads).result(PATIENCE_S)


def test_a_bound_thread_has_the_devices_cores_and_threads_and_puts_its_own_back() -> None:
    cores = os.sched_getaffinity(0)
    with bound(cpu("cpu0")):
        assert os.sched_getaffinity(0) == {CORE}
        assert torch.get_num_threads() == 1
        assert not torch.is_grad_enabled()
    assert os.sched_getaffinity(0) == cores
    assert torch.get_num_threads() == OTHERS
    assert torch.is_grad_enabled()


def test_they_are_put_back_after_an_error() -> None:
    cores = os.sched_getaffinity(0)
    with pytest.raises(KeyError), bound(cpu("cpu0")):
        raise KeyError
    assert (os.sched_getaffinity(0), torch.get_num_threads(), torch.is_grad_enabled()) == (cores, OTHERS, True)


def test_what_is_computed_may_be_written_to_afterwards() -> None:
    with bound(cpu("cpu0")):
        result = torch.ones(2) + 1
    result += 1  # PyTorch refuses this for what inference_mode made
    assert result.tolist() == [3, 3]


def test_other_threads_keep_theirs() -> None:
    inside, leave = threading.Event(), threading.Event()

    def work() -> int:
        with bound(cpu("cpu0")):
            inside.set()
            assert leave.wait(PATIENCE_S)
            return torch.get_num_threads()

    cores = os.sched_getaffinity(0)
    working = begin(work)
    assert inside.wait(PATIENCE_S)
    assert (os.sched_getaffinity(0), torch.get_num_threads()) == (cores, OTHERS)
    assert in_fresh_thread() == OTHERS  # torch.set_num_threads alone would have made it 1
    leave.set()
    assert working.result(PATIENCE_S) == 1
    assert in_fresh_thread() == OTHERS


def test_devices_that_come_and_go_in_any_order_leave_nothing_behind() -> None:
    """The second one comes while the first is there, and stays longer."""
    enter, leave = [threading.Event() for _ in range(2)], [threading.Event() for _ in range(2)]

    def work(i: int) -> None:
        with bound(cpu(f"cpu{i}")):
            enter[i].set()
            assert leave[i].wait(PATIENCE_S)

    working = []
    for i in range(2):
        working.append(begin(lambda i=i: work(i)))  # type: ignore[misc]  # the usual way to bind i
        assert enter[i].wait(PATIENCE_S)
    for i in range(2):
        leave[i].set()
        working[i].result(PATIENCE_S)
    assert in_fresh_thread() == OTHERS


def test_a_thread_that_ends_puts_nothing_back() -> None:
    def work() -> tuple[set[int], int]:
        with bound(cpu("cpu0"), ends=True):
            pass
        return os.sched_getaffinity(0), torch.get_num_threads()

    assert begin(work).result(PATIENCE_S) == ({CORE}, 1)
    assert in_fresh_thread() == OTHERS


@pytest.mark.usefixtures("gpu")
def test_a_gpu_has_a_stream_of_its_own() -> None:
    before = torch.cuda.current_stream(0)
    with bound(replace(cpu("gpu0"), cores=(), cuda=0)) as stream:
        assert stream is not None
        assert torch.cuda.current_stream(0) == stream != before
        assert not torch.is_grad_enabled()
    assert torch.cuda.current_stream(0) == before


@pytest.mark.skipif(CORE == OTHER, reason="this host has one core")
def test_a_thread_that_may_use_the_cores_and_has_their_threads_is_the_device() -> None:
    both = cpu("both", (CORE, OTHER))
    assert not is_here(both)  # the process has another number of threads in these tests
    assert run_on(both, torch.get_num_threads) == 2
    torch.set_num_threads(2)
    assert is_here(both)
    assert not is_here(cpu("one"))
    assert not is_here(cpu("another", (CORE, max(os.sched_getaffinity(0)) + 1)))
    assert not is_here(replace(both, cores=(), cuda=0))
    seen = run_on(both, lambda: (threading.current_thread(), torch.is_grad_enabled()))
    assert seen == (threading.current_thread(), False)
    assert torch.is_grad_enabled()
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {CORE})
    try:
        assert not is_here(both)
    finally:
        os.sched_setaffinity(0, cores)


def threads_of_the_process() -> int:
    return len(os.listdir("/proc/self/task"))


@pytest.mark.skipif(pinned._gnu_openmp() is None, reason="PyTorch uses another OpenMP here")
def test_threads_that_wait_for_the_next_operator_can_be_ended() -> None:
    x = torch.ones(256, 256)

    def work() -> tuple[int, int, torch.Tensor]:
        """On a thread of its own, which has no others yet."""
        torch.set_num_threads(OTHERS)
        first = x @ x
        before = threads_of_the_process()
        end_waiting_threads()
        ended = before
        for _ in range(int(PATIENCE_S * 100)):  # the system takes a moment to bury them
            ended = min(ended, threads_of_the_process())
            if ended <= before - (OTHERS - 1):
                break
            threading.Event().wait(0.01)
        return before, ended, (x @ x) - first

    before, ended, difference = begin(work).result(PATIENCE_S)
    assert before - ended >= OTHERS - 1
    assert not difference.any()


def test_another_openmp_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "_gnu_openmp", lambda: None)
    end_waiting_threads()
