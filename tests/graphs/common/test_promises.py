"""Results of other threads: waiting, errors, calls, and interrupts at any moment."""

import random
import threading
from collections.abc import Callable
from functools import partial

import pytest

from graphs.common.promises import Promise
from tests.interrupts import interrupted


def later(work: Callable[[], object]) -> None:
    threading.Thread(target=work, daemon=True).start()


def test_a_result_is_waited_for() -> None:
    result: Promise[int] = Promise()
    assert not result.done()
    assert not result.wait(0)
    with pytest.raises(TimeoutError):
        result.result(0.001)
    later(lambda: result.set_result(3))
    assert (result.result(60), result.exception(), result.done()) == (3, None, True)


def test_an_error_is_raised_each_time() -> None:
    result: Promise[int] = Promise()
    later(lambda: result.set_exception(KeyError("gone")))
    for _ in range(2):
        with pytest.raises(KeyError, match="gone"):
            result.result(60)


def test_each_call_is_made_once_before_and_after() -> None:
    result: Promise[str] = Promise()
    heard: list[tuple[int, str]] = []
    for number in range(3):
        result.add_done_callback(lambda done, number=number: heard.append((number, done.result())))  # type: ignore[misc]
    result.set_result("done")
    result.add_done_callback(lambda done: heard.append((3, done.result())))
    assert heard == [(0, "done"), (1, "done"), (2, "done"), (3, "done")]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt of a callback
def test_an_interrupt_at_any_moment_holds_up_no_thread() -> None:
    """`concurrent.futures.Future` in place of the result hangs within some dozen interrupts."""
    moments = random.Random(0)
    for _ in range(300):
        results: list[Promise[int]] = [Promise() for _ in range(1000)]
        thread = threading.Thread(target=partial(_set_all, results), daemon=True)
        thread.start()
        interrupted(partial(_wait_for_all, results), moments.uniform(1e-5, 1e-3))
        thread.join(60)
        assert not thread.is_alive()
        assert [result.result() for result in results] == list(range(1000))


def _set_all(results: list[Promise[int]]) -> None:
    for number, result in enumerate(results):
        result.set_result(number)


def _wait_for_all(results: list[Promise[int]]) -> None:
    for result in results:
        result.result()
