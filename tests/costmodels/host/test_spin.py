"""A thread that spins sees what another one counts, and does not wait for ever."""

import threading
import time

from costmodels.host.spin import Count


def test_it_ends_by_itself_and_at_once_where_the_number_has_changed() -> None:
    count = Count()
    count.spin(0)  # nobody ever increases it
    count.increase()
    assert count.value == 1
    count.spin(0)


def test_other_threads_run_meanwhile() -> None:
    count, seen = Count(), list[int]()

    def wait() -> None:
        while not count.value:
            count.spin(0)
        seen.append(count.value)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.01)
    count.increase()
    thread.join(60)
    assert seen == [1]
