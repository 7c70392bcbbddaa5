"""Prices and what is left of them: made-up laws are found again."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.learning.regression import LEAST_S, Process, fit_prices, fit_process
from graphs.common.arrays import Floats

PRICES = np.array([5e-6, 1e-11, 1e-10])  # a call, a FLOP, a byte


def amounts(n: int, seed: int = 0) -> Floats:
    """[n, 3], a call, FLOP and bytes, from little to much."""
    draw = np.random.default_rng(seed)
    return np.column_stack([np.ones(n), 2.0 ** draw.uniform(10, 32, n), 2.0 ** draw.uniform(10, 26, n)])


def bent(terms: Floats) -> tuple[Floats, Floats]:
    """Places, and times of a device that is half as fast at one end of them as at the other, smoothly."""
    places = np.log2(terms[:, 1:])
    return places, terms @ PRICES * (1.5 + 0.5 * np.sin(places[:, 0] / 4))


@pytest.fixture(scope="module")
def process() -> Process:
    terms = amounts(200)
    return fit_process(terms, *bent(terms))


def test_prices_that_explain_everything_are_found() -> None:
    terms = amounts(60)
    np.testing.assert_allclose(fit_prices(terms, terms @ PRICES).price_s, PRICES, rtol=1e-6)


def test_an_amount_that_costs_nothing_is_not_paid_for() -> None:
    terms = amounts(60)
    prices = fit_prices(terms, terms[:, :2] @ PRICES[:2]).price_s
    np.testing.assert_allclose(prices[:2], PRICES[:2], rtol=1e-6)
    assert prices[2] == pytest.approx(0.0, abs=1e-16)


def test_a_few_outliers_do_not_spoil_the_prices() -> None:
    terms = amounts(200)
    seconds = terms @ PRICES
    seconds[::20] *= 10
    np.testing.assert_allclose(fit_prices(terms, seconds).seconds(terms), terms @ PRICES, rtol=0.05)


def test_the_rest_is_interpolated(process: Process) -> None:
    terms = amounts(100, seed=1)
    places, seconds = bent(terms)
    predicted, spread = process.predict(terms, places)
    off = np.abs(np.log(predicted / seconds))
    assert np.median(off) < 0.02
    assert np.sqrt(np.mean(off**2)) < 0.1
    assert np.all(spread > 0)
    prices_alone = np.abs(np.log(process.prices.seconds(terms) / seconds))
    assert np.mean(off) < np.mean(prices_alone) / 4


def test_what_all_others_contradict_counts_for_little() -> None:
    """As of a machine that somebody else used now and then: every twentieth operator took five times as long."""
    terms = amounts(200)
    places, seconds = bent(terms)
    disturbed = seconds.copy()
    disturbed[::20] *= 5
    predicted, _ = fit_process(terms, places, disturbed).predict(terms, places)
    off = np.abs(np.log(predicted / seconds))
    assert np.median(off) < 0.02
    assert np.mean(off[::20]) < np.log(5) / 10


def test_far_from_everything_the_prices_are_left_and_it_is_less_sure(process: Process) -> None:
    terms = amounts(3)
    near, _ = bent(terms)
    far, far_spread = process.predict(terms, near + 1000)
    np.testing.assert_allclose(far, process.prices.seconds(terms))
    assert np.all(far_spread > process.predict(terms, near)[1])


def test_its_own_estimate_fits_its_errors(process: Process) -> None:
    terms = amounts(300, seed=2)
    places, seconds = bent(terms)
    predicted, spread = process.predict(terms, places)
    share = np.mean(np.abs(np.log(predicted / seconds)) < 2 * spread)
    assert share > 0.85


def test_equal_measurements_give_equal_predictions() -> None:
    terms = amounts(50)
    first, second = (fit_process(terms, *bent(terms)).predict(*(terms, bent(terms)[0])) for _ in range(2))
    assert first[0].tobytes() == second[0].tobytes()
    assert first[1].tobytes() == second[1].tobytes()


@settings(max_examples=30)
@given(st.integers(1, 12), st.integers(0, 1000), st.floats(0, 1))
def test_whatever_was_measured_times_are_numbers_above_nothing(n: int, seed: int, noise: float) -> None:
    draw = np.random.default_rng(seed)
    terms = amounts(n, seed)
    seconds = np.maximum(terms @ PRICES * np.exp(draw.normal(0, 3 * noise, n)), LEAST_S)
    process = fit_process(terms, np.asarray(np.round(np.log2(terms[:, 1:])), dtype=float), seconds)
    predicted, spread = process.predict(amounts(20, seed + 1), draw.uniform(-10, 50, (20, 2)))
    assert np.all(np.isfinite(predicted))
    assert np.all(predicted >= LEAST_S)
    assert np.all(np.isfinite(spread))
    assert np.all(spread > 0)


def test_the_same_operator_measured_twice_is_no_problem() -> None:
    terms = np.repeat(amounts(1), 8, axis=0)
    places = np.zeros((8, 2))
    seconds = np.array([1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0, 1.0]) * 1e-3
    predicted, _ = fit_process(terms, places, seconds).predict(terms[:1], places[:1])
    assert predicted[0] == pytest.approx(1e-3, rel=0.05)
