"""What contention costs, by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.measured import Contention, Measurement, TrainingMeasurement, weighted_median


def measured(seconds: float) -> Measurement:
    return Measurement(seconds, 0, 1)


CONTENTION = Contention({"relu": measured(2.0)}, {2: {"relu": measured(3.0)}, 4: {"relu": measured(5.0)}})


@pytest.mark.parametrize(
    ("n_devices", "seconds"),
    [
        (1, 2.0),  # nobody is beside it
        (2, 3.0),
        (3, 2 + 3 * 2 / 3),  # measured for four: three neighbours cost 3 us, two of them two thirds
        (4, 5.0),
        (9, 5.0),  # more were not measured
    ],
)
def test_the_slowdown_grows_with_the_devices_that_compute(n_devices: int, seconds: float) -> None:
    assert 2 * (1 + CONTENTION.slowdown("relu", n_devices)) == pytest.approx(seconds)


def test_where_no_company_was_measured_nothing_is_slowed_down() -> None:
    nothing = Contention({"relu": measured(2.0), "nothing": measured(0.0)}, {2: {"nothing": measured(2.0)}})
    assert nothing.slowdown("nothing", 2) == 0  # takes no time, so there is no share of it
    assert nothing.slowdown("relu", 2) == 0
    assert Contention({"relu": measured(2.0)}, {}).slowdown("relu", 2) == 0


def contended(*pairs: tuple[float, float]) -> Contention:
    """Operators "0", "1", ... with their seconds alone and beside two others."""
    isolated, contended = ({str(i): measured(pair[which]) for i, pair in enumerate(pairs)} for which in range(2))
    return Contention(isolated, {3: contended})


def test_what_was_not_measured_in_company_is_slowed_down_like_the_rest() -> None:
    company = contended((3.0, 3.3), (1.0, 2.0), (5.0, 6.0))  # 10 %, 100 %, 20 %: at half of 9 s are the 20 %
    assert company.slowdown("another", 3) == pytest.approx(0.2)
    assert company.slowdown("another", 2) == pytest.approx(0.1)  # beside one, not two
    assert company.slowdown("another", 1) == 0
    assert company.slowdown("1", 3) == pytest.approx(1.0)


def test_nothing_is_usually_faster_in_company() -> None:
    company = contended((3.0, 2.7), (1.0, 2.0))
    assert company.slowdown("another", 3) == 0
    assert company.slowdown("0", 3) == pytest.approx(-0.1)  # what was measured stays


@given(st.lists(st.tuples(st.floats(1e-6, 1), st.floats(0, 1)), min_size=1, max_size=9))
def test_the_usual_slowdown_has_half_of_the_time_on_either_side(pairs: list[tuple[float, float]]) -> None:
    company = contended(*((isolated, isolated * (1 + share)) for isolated, share in pairs))
    usual = company.slowdown("another", 3)
    shares = [company.slowdown(str(i), 3) for i in range(len(pairs))]
    whole = sum(isolated for isolated, _ in pairs)
    assert (
        sum(isolated for (isolated, _), share in zip(pairs, shares, strict=True) if share < usual) <= whole / 2 * 1.001
    )
    assert (
        sum(isolated for (isolated, _), share in zip(pairs, shares, strict=True) if share > usual) <= whole / 2 * 1.001
    )


def test_in_training_both_passes_count() -> None:
    isolated, contended = (
        TrainingMeasurement(measured(1.0), measured(2.0)),
        TrainingMeasurement(measured(1.5), measured(3.0)),
    )
    assert Contention({"relu": isolated}, {2: {"relu": contended}}).slowdown("relu", 2) == pytest.approx(0.5)


def test_the_weighted_median() -> None:
    assert weighted_median([(3.0, 1.0), (1.0, 1.0), (2.0, 5.0)]) == 2.0
    assert weighted_median([(1.0, 3.0), (9.0, 1.0)]) == 1.0
    assert weighted_median([]) == 0.0
