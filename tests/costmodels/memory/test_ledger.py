"""Bytes alive: who holds, who keeps, and the most that was."""

from hypothesis import given
from hypothesis import strategies as st

from costmodels.memory.passes import Ledger


def test_a_storage_is_freed_by_its_last_holder() -> None:
    ledger = Ledger()
    storage = ledger.new(10)
    ledger.hold(storage)
    ledger.drop(storage)
    assert ledger.now_bytes == 10
    ledger.drop(storage)
    assert (ledger.now_bytes, ledger.peak_bytes) == (0, 10)


def test_what_is_kept_does_not_pass() -> None:
    ledger = Ledger()
    kept = ledger.keep(ledger.hold(ledger.new(10)))
    ledger.keep(ledger.hold(kept))  # by two
    ledger.new(3)
    assert (ledger.kept_bytes, ledger.peak_bytes, ledger.passing_bytes) == (10, 13, 10)  # it passed before it was kept
    ledger.restart()
    assert (ledger.peak_bytes, ledger.passing_bytes) == (13, 3)
    ledger.release(kept)
    assert ledger.kept_bytes == 10
    ledger.release(kept)
    assert (ledger.kept_bytes, ledger.now_bytes) == (0, 13)  # its first holder has it still


def test_a_burst_is_gone_at_once() -> None:
    ledger = Ledger()
    ledger.new(2)
    ledger.burst(5)
    assert (ledger.now_bytes, ledger.peak_bytes, ledger.passing_bytes) == (2, 7, 7)


@given(st.lists(st.integers(0, 9)))
def test_a_peak_is_never_less_than_what_is_there(sizes: list[int]) -> None:
    ledger = Ledger()
    storages = [ledger.new(size) for size in sizes]
    assert ledger.now_bytes == ledger.peak_bytes == sum(sizes)
    for storage in storages:
        ledger.drop(storage)
    assert ledger.now_bytes == 0
