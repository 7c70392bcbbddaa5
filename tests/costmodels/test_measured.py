"""Measurements, profiles, and what is refused."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.measured import Measurement, Noise, Profile, TrainingMeasurement, noisy
from graphs.common.errors import InputError
from tests.costmodels.profiles import CONTENDED, PROFILE, RELU, STEP, TRAINING_CONTENDED


def test_measurements_in_company_stand_beside_each_other() -> None:
    fresh = Measurement(4e-6, 0, 1)
    step = TrainingMeasurement(fresh, fresh)
    more = PROFILE.updated(Profile("abc123", {}, {}, {}, {}, {2: {"k": step}, 3: {"k": step}}))
    assert more.training_contended == {2: {**TRAINING_CONTENDED[2], "k": step}, 3: {"k": step}}
    assert more.contended == CONTENDED
    newer = Profile("abc123", {}, {}, {}, {3: {"aten.relu": fresh}, 4: {"aten.add": fresh}})
    assert PROFILE.updated(newer).contended == {
        2: CONTENDED[2],
        3: {"aten.relu": fresh},
        4: {**CONTENDED[4], "aten.add": fresh},
    }


def test_company_is_another_one_in_training() -> None:
    assert PROFILE.slowdown("aten.relu", 2) == pytest.approx(0.5)
    assert PROFILE.slowdown("aten.relu+grad", 2, training=True) == pytest.approx(1.0)  # 3 + 6 µs alone, 4 + 14 beside
    assert PROFILE.slowdown("another", 2, training=True) == pytest.approx(1.0)
    assert replace(PROFILE, training_contended={}).slowdown("aten.relu+grad", 2, training=True) == 0
    assert replace(PROFILE, contended={}).slowdown("aten.relu", 2) == 0


def test_newer_measurements_win() -> None:
    newer = Profile("abc123", {"a": "b"}, {"aten.relu": Measurement(3e-6, 0, 1), "aten.add": Measurement(1e-6, 0, 1)})
    merged = PROFILE.updated(newer)
    assert merged == Profile("abc123", {"a": "b"}, dict(newer.ops), PROFILE.training, CONTENDED, TRAINING_CONTENDED)
    assert newer.updated(PROFILE).ops == {"aten.relu": PROFILE.ops["aten.relu"], "aten.add": newer.ops["aten.add"]}


def test_profiles_of_different_machines_do_not_mix() -> None:
    with pytest.raises(InputError) as error:
        PROFILE.updated(Profile("def456", {}, {}))
    assert str(error.value) == (
        "profiles of different machines do not mix: 'abc123' and 'def456'; "
        "calibrate on the machine that will run the plan"
    )


@pytest.mark.parametrize("numbers", [(-1.0, 0.0, 1), (nan, 0.0, 1), (inf, 0.0, 1), (1.0, -1.0, 1), (1.0, 0.0, 0)])
def test_no_measurement_is_refused(numbers: tuple[Any, ...]) -> None:
    with pytest.raises(InputError, match="is no measurement; seconds and spread are 0 or more, count is 1 or more"):
        Measurement(*numbers)


def test_two_sittings_are_one_measurement() -> None:
    # seconds (1 * 2 + 3 * 4) / 4 = 3.5; widths: once 0.5 * 2 + 1.5, three times 0 + 0.5, so (2.5 + 3 * 0.5) / 4 = 1
    assert Measurement(2.0, 0.5, 1).joined(Measurement(4.0, 0.0, 3)) == Measurement(3.5, 0.29, 4)
    assert RELU.joined(RELU) == Measurement(2e-6, 0.25, 14)


@given(numbers=st.lists(st.tuples(st.floats(1e-9, 1e3), st.floats(0, 9), st.integers(1, 99)), min_size=2, max_size=2))
def test_a_joined_measurement_lies_between_both_and_either_may_come_first(
    numbers: list[tuple[float, float, int]],
) -> None:
    a, b = (Measurement(*each) for each in numbers)
    joined = a.joined(b)
    assert joined == b.joined(a)
    low, high = sorted((a.seconds, b.seconds))
    assert low * 0.999 <= joined.seconds <= high * 1.001
    assert joined.count == a.count + b.count


def test_a_step_is_both_passes() -> None:
    assert STEP.seconds == pytest.approx(9e-6)
    assert STEP.spread == pytest.approx((3e-6 * 0.5 + 6e-6 * 0.125) / 9e-6)
    assert STEP.count == 7
    assert STEP.joined(STEP) == TrainingMeasurement(Measurement(3e-6, 0.5, 14), Measurement(6e-6, 0.12, 16))
    nothing = Measurement(0.0, 0.0, 1)
    assert TrainingMeasurement(nothing, nothing).spread == 0


def test_noise_is_told_where_it_matters() -> None:
    known = {
        "long": Measurement(1.0, 0.1, 7),
        "twice": Measurement(0.5, 0.3, 7),
        "once": Measurement(1.0, 0.26, 7),
        "short": Measurement(0.01, 9.0, 7),
    }
    # 7 of long, 2 * 0.5 of twice, 1 of once and 0.01 of short; not measured ones do not count
    keys = [*["long"] * 7, "twice", "twice", "once", "short", "new"]
    total = 7 + 1 + 1 + 0.01
    assert noisy(keys, known) == (Noise("once", 0.26, 1 / total), Noise("twice", 0.3, 1 / total))
    assert noisy(["twice"], {"twice": STEP}) == ()  # a spread of exactly a quarter
    assert noisy([], {}) == ()
