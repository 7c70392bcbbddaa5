"""A thread that waits sees each change that another one makes, and misses none."""

import time
from functools import partial

import pytest

from costmodels.host.spin import EventCount
from tests.planner.runtime.small import PATIENCE_S, begin, eventually

ROUNDS = 500


@pytest.mark.parametrize("spins", [False, True])
def test_it_waits_until_the_number_changes(spins: bool) -> None:
    count = EventCount(spins)
    waiting = begin(lambda: count.wait(0))
    eventually(lambda: count._asleep)  # however long it spins
    assert not waiting.done()
    count.advance()
    waiting.result(PATIENCE_S)
    assert count.value == 1
    count.wait(0)  # it has changed already


@pytest.mark.parametrize("spins", [False, True])
def test_two_threads_that_wait_for_each_other_and_for_a_third_miss_nothing(spins: bool) -> None:
    counts, done = [EventCount(spins) for _ in range(2)], [0, 0]

    def work(mine: int) -> None:
        for turn in range(ROUNDS):
            if mine or turn:
                seen = counts[mine].value
                while done[1 - mine] < turn + mine:
                    counts[mine].wait(seen)
                    seen = counts[mine].value
            done[mine] += 1
            counts[1 - mine].advance()

    def disturb() -> None:
        while done[1] < ROUNDS:
            for count in counts:
                count.advance()
            time.sleep(0)  # others may take Python's lock at once

    threads = [begin(partial(work, mine)) for mine in range(2)] + [begin(disturb)]
    for thread in threads:
        thread.result(PATIENCE_S)
    assert done == [ROUNDS, ROUNDS]
