"""Links between two processes; the first test starts two interpreters, the others forks of one, which is quicker."""

import multiprocessing
import os
import time

import pytest
import torch

from costmodels.calibrate import processes
from costmodels.calibrate.processes import measure_distributed_link
from graphs.common.errors import InputError
from tests.costmodels.calibrate.hosts import CORE, OTHER, device
from tests.planner.runtime.distributed.pipelines import CONTEXT

A, B = device("a", CORE), device("b", OTHER)
SIZES = (2**12, 2**16)


def corrupting(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2 if len(tensor) > 1 else tensor


def failing(_: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("the answer fails")


def leaving(_: torch.Tensor) -> torch.Tensor:
    os._exit(1)


def hanging(_: torch.Tensor) -> torch.Tensor:
    while True:
        time.sleep(60)


@pytest.fixture(autouse=True)
def _no_process_is_left() -> object:
    yield
    assert multiprocessing.active_children() == []


@pytest.fixture
def _forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "get_context", lambda _: CONTEXT)


@pytest.mark.slow
def test_a_link_between_two_processes() -> None:
    times = measure_distributed_link(A, B, sizes=SIZES)
    assert [n_bytes for n_bytes, _ in times.points] == [0, *SIZES]
    assert all(seconds > 0 for _, seconds in times.points)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("echo", "message"),
    [
        (corrupting, "the link from 'a' to 'b' corrupts data: of 4 KiB, element 0 arrived as -2048 instead of -1024;"),
        (failing, "the link from 'a' to 'b' over gloo failed: "),
        (leaving, "the link from 'a' to 'b' over gloo failed: "),
    ],
)
@pytest.mark.usefixtures("_forked")
def test_what_goes_wrong_is_told(echo: processes.Echo, message: str) -> None:
    with pytest.raises(InputError) as error:
        measure_distributed_link(A, B, sizes=SIZES, echo=echo)
    assert str(error.value).startswith(message)


@pytest.mark.slow
@pytest.mark.usefixtures("_forked")
def test_no_answer_in_time_is_told_and_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LIMIT_S", 2.0)  # of this process; the others would wait longer
    with pytest.raises(InputError) as error:
        measure_distributed_link(A, B, sizes=SIZES, echo=hanging)
    assert str(error.value) == (
        "the link from 'a' to 'b' over gloo gave no answer in 2 s; calibrate on a quieter host, "
        "or use the channel 'threads'"
    )


def test_a_device_that_is_not_here_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "ProcessPoolExecutor", None)
    with pytest.raises(InputError, match="device 'far' is bound to core 100000, which this process may not use"):
        measure_distributed_link(A, device("far", 100000))
