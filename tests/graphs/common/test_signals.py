"""Signals wait for the end of a block, unless a second one comes."""

import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from graphs.common.signals import signals_held


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Ctrl-C as Python handles it, whatever the process was started with."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@signals_held()
def interrupted_once(done: list[str]) -> None:
    signal.raise_signal(signal.SIGINT)
    done.append("after the signal")


def test_a_signal_is_handled_when_the_work_is_done() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted_once(done)
    assert done == ["after the signal"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_block_within_a_block_leaves_signals_to_the_outer_one() -> None:
    done: list[str] = []

    @signals_held()
    def outer() -> None:
        interrupted_once(done)
        done.append("after the inner block")

    with pytest.raises(KeyboardInterrupt):
        outer()
    assert done == ["after the signal", "after the inner block"]


def test_the_second_signal_is_handled_at_once_after_the_first() -> None:
    seen: list[str] = []

    def handler(_number: int, _frame: FrameType | None) -> None:
        seen.append("handled")
        raise KeyboardInterrupt

    @signals_held()
    def interrupted_twice() -> None:
        interrupted_once(seen)
        signal.raise_signal(signal.SIGINT)
        seen.append("after the second signal")

    signal.signal(signal.SIGINT, handler)
    with pytest.raises(KeyboardInterrupt):
        interrupted_twice()
    assert seen == ["after the signal", "handled", "handled"]
    assert signal.getsignal(signal.SIGINT) is handler


def test_trouble_of_the_work_is_told_and_signals_are_as_before() -> None:
    with pytest.raises(ValueError, match="trouble"), signals_held():
        raise ValueError("trouble")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_hold_nothing() -> None:
    seen = []

    def work() -> None:
        with signals_held():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
