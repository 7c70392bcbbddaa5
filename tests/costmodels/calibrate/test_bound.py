"""What is bound while a thread is a device, and what is not."""

import os
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from costmodels.calibrate.pinned import bound
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_has_a_stream_of_its_own() -> None:
    before = torch.cuda.current_stream(0)
    with bound(replace(cpu("gpu0"), cores=(), cuda=0)) as stream:
        assert stream is not None
        assert torch.cuda.current_stream(0) == stream != before
        assert not torch.is_grad_enabled()
    assert torch.cuda.current_stream(0) == before
