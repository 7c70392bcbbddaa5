"""A round of requests and of starts, and what grows is seen; `tests.benchmarks.attack --hours N` has the rest."""

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from tests.attacks.long import WARM, Holdings, losses, requests, same, starts


@pytest.mark.attack("process")
def test_a_round_is_right() -> None:
    with ExitStack() as until:
        for judged in (requests(until), starts()):
            assert [judged(seed) for seed in range(2)] == ["", ""]


@pytest.mark.slow
@pytest.mark.attack("process")
def test_a_training_goes_on_after_losses_as_if_there_were_none() -> None:
    with ExitStack() as until:
        judged = losses(until)
        assert [judged(seed) for seed in range(2)] == ["", ""]


def test_another_bit_is_another_state() -> None:
    state = {"steps": 2, "model": {"a": torch.ones(2), "b": torch.zeros(1)}}
    assert same(state, {"model": {"b": torch.zeros(1), "a": torch.ones(2)}, "steps": 2})
    assert not same(state, {"steps": 2, "model": {"a": torch.ones(2), "b": torch.tensor([1e-45])}})
    assert not same(state, {"steps": 2, "model": {"a": torch.ones(2)}})


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
