"""A round of requests and of starts, and what grows is seen; `tests.benchmarks.attack --hours N` has the rest."""

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.attacks.long import WARM, Holdings, requests, starts


@pytest.mark.attack("process")
def test_a_round_is_right() -> None:
    with ExitStack() as until:
        for judged in (requests(until), starts()):
            assert [judged(seed) for seed in range(2)] == ["", ""]


def test_what_grows_is_seen(tmp_path: Path) -> None:
    held = Holdings()
    assert [held.grown() for _ in range(WARM)] == [""] * WARM
    assert held.grown() == ""
    ended = threading.Event()
    threads = [threading.Thread(target=ended.wait) for _ in range(50)]
    with (tmp_path / "open").open("w"):
        opened = [(tmp_path / "open").open() for _ in range(50)]
        for thread in threads:
            thread.start()
        said = held.grown()
        ended.set()
        for thread in threads:
            thread.join()
        for file in opened:
            file.close()
    assert f"threads after {WARM + 2} rounds" in said
    assert f"descriptors after {WARM + 2} rounds" in said
