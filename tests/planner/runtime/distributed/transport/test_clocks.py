"""What another clock shows, from messages there and back."""

from types import SimpleNamespace

import pytest

from planner.runtime.distributed.transport import liveness
from planner.runtime.distributed.transport.liveness import LOOKS, clock_name, measured_ahead_s


def ahead_s(echoes: list[tuple[float, float, float]], monkeypatch: pytest.MonkeyPatch) -> float:
    """Of a clock that answers so: when it was asked, what it showed, when the answer came."""
    echoes = [echoes[0]] * (LOOKS - len(echoes)) + echoes
    own_s = iter([at_s for sent_s, _, received_s in echoes for at_s in (sent_s, received_s)])
    shown_s = iter([answered_s for _, answered_s, _ in echoes])
    monkeypatch.setattr(liveness, "time", SimpleNamespace(perf_counter=own_s.__next__))
    return measured_ahead_s(shown_s.__next__)


def test_the_fastest_answer_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    # sent at 10, back at 12: the other's 111 was read at about 11, so it is 100 ahead; the slow one says 101
    assert ahead_s([(20.0, 123.0, 24.0), (10.0, 111.0, 12.0)], monkeypatch) == pytest.approx(100.0)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_it_errs_by_half_of_the_way_at_most(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    there_and_back_s = 0.2
    echo = (1.0, 1.0 + share * there_and_back_s - 5.0, 1.0 + there_and_back_s)
    assert abs(ahead_s([echo], monkeypatch) + 5.0) <= there_and_back_s / 2 + 1e-12


def test_a_host_has_one_name() -> None:
    assert clock_name() == clock_name()
