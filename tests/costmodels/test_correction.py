"""Costs corrected by stages: what the regression promises, and what a table and a profile make of it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from costmodels.correction import LIMIT, RIDGE, Correction, StageTime, fit_correction, fit_factors
from costmodels.measured import Measurement, Profile, TrainingMeasurement
from costmodels.table import CostTable
from graphs.common.arrays import Floats
from tests.costmodels.parts import table_with
from tests.simulator.tables import make_table

KEYS = ("a", "b", "c", "d")
EXACT = 1e-9  # as good as no ridge


def seconds(n_stages: int, n_times: int) -> st.SearchStrategy[Floats]:
    return arrays(float, (n_stages, n_times), elements=st.sampled_from([0.0, 1.0, 2.0, 5.0]))


def largest(predicted_s: Floats) -> Floats:
    return np.asarray(predicted_s.max(axis=0, initial=0.0))


class TestRegression:
    def test_without_data_every_factor_is_1(self) -> None:
        assert fit_factors(np.zeros((0, 3)), np.zeros(3), np.zeros(0), RIDGE).tolist() == [1.0, 1.0, 1.0]

    def test_a_single_stage_blames_its_times_alike(self) -> None:
        factors = fit_factors(np.array([[3.0, 1.0, 0.0]]), np.array([3.0, 1.0, 0.0]), np.array([4.8]), RIDGE)
        assert factors == pytest.approx([1 + 0.2 / (1 + RIDGE), 1 + 0.2 / (1 + RIDGE), 1.0])

    def test_stages_that_overlap_tell_times_apart(self) -> None:
        predicted_s = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [1.0, 0.0, 1.0]])
        assert fit_factors(predicted_s, np.ones(3), predicted_s @ [1.0, 3.0, 1.0], EXACT) == pytest.approx(
            [1, 3, 1], rel=1e-6
        )

    @given(st.data(), st.integers(1, 4), st.integers(1, 6))
    def test_without_ridge_exact_stages_are_explained(self, data: st.DataObject, n_stages: int, n_times: int) -> None:
        predicted_s = data.draw(seconds(n_stages, n_times))
        predicted_s = predicted_s[predicted_s.any(axis=1)]
        truth = data.draw(arrays(float, n_times, elements=st.floats(0.5, 2.0)))
        measured_s = predicted_s @ truth
        assert predicted_s @ fit_factors(predicted_s, largest(predicted_s), measured_s, EXACT) == pytest.approx(
            measured_s, rel=1e-4
        )

    @given(st.data(), st.integers(1, 4), st.integers(1, 6))
    def test_what_ran_as_predicted_is_left_alone(self, data: st.DataObject, n_stages: int, n_times: int) -> None:
        predicted_s = data.draw(seconds(n_stages, n_times))
        predicted_s = predicted_s[predicted_s.any(axis=1)]
        factors = fit_factors(predicted_s, largest(predicted_s), predicted_s.sum(axis=1), RIDGE)
        assert factors == pytest.approx(np.ones(n_times))

    def test_a_time_that_hardly_counts_is_hardly_blamed(self) -> None:
        factors = fit_factors(np.array([[9.0, 1.0]]), np.array([10.0, 10.0]), np.array([12.0]), EXACT)
        assert 9 * factors[0] + factors[1] == pytest.approx(12)
        assert factors[0] - 1 == pytest.approx(9 * (factors[1] - 1))


def table(slowdown: float = 0.0) -> CostTable:
    """Operators of 1, 2, 3 and 4 s on two devices of a kind."""
    alone = make_table([1.0, 2.0, 3.0, 4.0])
    return table_with(alone, slowdown=np.full((4, 2), slowdown))


class TestTable:
    def test_a_stage_corrects_its_operators_on_all_devices_of_the_kind(self) -> None:
        correction = fit_correction(table(), KEYS, [StageTime((0, 1), 0, 1.0, 6.0)], EXACT)
        assert correction.table(table(), KEYS).forward_s == pytest.approx(np.array([[2, 2], [4, 4], [3, 3], [4, 4]]))

    def test_operators_with_the_same_key_share_a_factor(self) -> None:
        correction = fit_correction(table(), ("a", "b", "c", "a"), [StageTime((0,), 0, 0.0, 1.5)], EXACT)
        assert correction.table(table(), ("a", "b", "c", "a")).forward_s[:, 0] == pytest.approx([1.5, 2, 3, 6])

    def test_devices_of_other_kinds_keep_their_times(self) -> None:
        apart = table_with(table(), contention_group=np.array([0, 1]))
        correction = fit_correction(apart, KEYS, [StageTime((0,), 1, 0.0, 3.0)], EXACT)
        assert correction.table(apart, KEYS).forward_s[0] == pytest.approx([1.0, 3.0])

    def test_under_contention_the_isolated_times_stay(self) -> None:
        correction = fit_correction(table(0.5), KEYS, [StageTime((0, 1), 0, 1.0, 9.0)], EXACT)
        corrected = correction.table(table(0.5), KEYS)
        assert corrected.forward_s == pytest.approx(table().forward_s)
        assert corrected.contended.forward_s[:, 0] == pytest.approx([3.0, 6.0, 4.5, 6.0])

    def test_of_copies_only_those_times_change(self) -> None:
        correction = fit_correction(table(0.5), KEYS, [StageTime((0, 1), 0, 1.0, 9.0, copies=True)], EXACT)
        corrected = correction.table(table(0.5), KEYS)
        assert corrected.in_copies.forward_s[:2, 0].sum() == pytest.approx(9.0)
        assert corrected.forward_s == pytest.approx(table(0.5).forward_s)
        assert (corrected.copies_slowdown[:2, 0] > table(0.5).copies_slowdown[:2, 0]).all()

    def test_in_isolation_the_contended_times_stay(self) -> None:
        correction = fit_correction(table(0.5), KEYS, [StageTime((0, 1), 0, 0.0, 6.0)], EXACT)
        corrected = correction.table(table(0.5), KEYS)
        assert corrected.forward_s[:, 0] == pytest.approx([2.0, 4.0, 3.0, 4.0])
        assert corrected.contended.forward_s == pytest.approx(table(0.5).contended.forward_s)

    def test_part_of_the_time_corrects_both(self) -> None:
        stages = [StageTime((0, 1), 0, 0.25, 7.5)]
        corrected = fit_correction(table(0.5), KEYS, stages, EXACT).table(table(0.5), KEYS)
        part = corrected.with_contention(np.array([0.25, 1.0]))
        assert part.forward_s[:2, 0].sum() == pytest.approx(7.5)

    def test_factors_have_a_limit(self) -> None:
        correction = fit_correction(table(), KEYS, [StageTime((0,), 0, 0.0, 1e6)], EXACT)
        assert correction.isolated == {(0, "a"): LIMIT}

    def test_a_stage_without_predicted_seconds_tells_nothing(self) -> None:
        free = make_table([0.0, 1.0])
        assert fit_correction(free, ("a", "b"), [StageTime((0,), 0, 0.0, 1.0)]) == Correction({}, {})


def measured(**seconds: float) -> dict[str, Measurement]:
    return {key: Measurement(s, 0.1, 5) for key, s in seconds.items()}


class TestProfile:
    PROFILE = Profile("f", {}, measured(a=1.0, b=2.0), contended={2: measured(a=1.5, b=3.0), 4: measured(a=2.0)})

    def test_both_columns(self) -> None:
        correction = Correction({(0, "a"): 2.0, (7, "b"): 9.0}, {(0, "a"): 3.0, (0, "none"): 2.0})
        profile = correction.profile(self.PROFILE, 0, 2, training=False)
        assert profile.ops == measured(a=2.0, b=2.0)
        assert profile.contended == {2: measured(a=4.5, b=3.0), 4: measured(a=2.0)}

    def test_copies_have_their_own_column(self) -> None:
        both = replace(self.PROFILE, copies={2: measured(a=1.2, b=2.0)})
        profile = Correction({}, {}, {(0, "a"): 2.0}).profile(both, 0, 2, training=False)
        assert profile == replace(both, copies={2: measured(a=2.4, b=2.0)})

    @pytest.mark.parametrize("n_devices", [2, 3, 4])
    def test_the_profile_has_the_slowdown_of_the_table(self, n_devices: int) -> None:
        correction = Correction({(0, "a"): 1.1}, {(0, "a"): 1.3})
        before = self.PROFILE.slowdown("a", n_devices)
        after = correction.profile(self.PROFILE, 0, n_devices, training=False)
        assert after.slowdown("a", n_devices) == pytest.approx((1 + before) * 1.3 / 1.1 - 1, rel=1e-3)

    def test_one_device_has_no_contention(self) -> None:
        profile = Correction({(0, "a"): 2.0}, {}).profile(self.PROFILE, 0, 1, training=False)
        assert profile == replace(self.PROFILE, ops=measured(a=2.0, b=2.0))

    def test_training_corrects_both_passes(self) -> None:
        one = TrainingMeasurement(*measured(forward=1.0, backward=2.0).values())
        trained = replace(self.PROFILE, training={"a": one})
        profile = Correction({(0, "a"): 1.5}, {}).profile(trained, 0, 2, training=True)
        assert profile.training == {"a": TrainingMeasurement(*measured(forward=1.5, backward=3.0).values())}
        assert profile.ops == self.PROFILE.ops
