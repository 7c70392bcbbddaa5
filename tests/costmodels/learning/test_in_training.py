"""What training takes beside inference: amounts by hand, and a made-up device that is found again."""

import random

import numpy as np
import pytest

from costmodels.learning.features import features_of
from costmodels.learning.in_training import LEAST_STEPS, MOST_STEPS, Query, fit_both_ways
from costmodels.measured import Measurement, TrainingMeasurement
from costmodels.operators.keys import parse_key

SIZES = "float32[4,5]{}, float32[5,6]{})->float32[4,6]"


def mm(first: str, second: str, inference_s: float = 2.0) -> Query:
    op = parse_key(f"aten.mm.default({SIZES.format(first, second)}")
    return Query(op, features_of(op, 2.0**28), inference_s)


def relu(rows: int, inference_s: float, gradient: str = "+grad") -> Query:
    op = parse_key(f"aten.relu.default(float32[{rows},1024]{gradient})->float32[{rows},1024]")
    return Query(op, features_of(op, 2.0**28), inference_s)


def step(forward_s: float, backward_s: float) -> TrainingMeasurement:
    return TrainingMeasurement(Measurement(forward_s, 0, 1), Measurement(backward_s, 0, 1))


def test_a_product_goes_back_once_for_each_gradient() -> None:
    flop = 2 * 4 * 5 * 6
    both, weight, none = mm("+grad", "+grad"), mm("", "+grad"), mm("", "")
    # 80 bytes in, 120 bytes of weights, 96 bytes out; gradients have the size of what they belong to
    assert both.forward_terms == (2.0, 1.0, 80 + 96)
    assert both.backward_terms == (2 * 2.0, 2 * flop, 1.0, 80 + 96, 120)
    assert weight.backward_terms == (2.0, flop, 1.0, 96, 120)
    assert (both.products, weight.products, none.products) == (2, 1, 0)
    assert (both.place[-1], weight.place[-1], none.place[-1]) == (4.0, 2.0, 0.0)
    assert both.place[:-1] == both.features.place


def test_the_way_back_of_a_view_moves_gradients_too() -> None:
    op = parse_key("aten.select.int(float32[8,4]+grad)->float32[4]")
    assert Query(op, features_of(op, 2.0**28), 1.0).backward_terms == (1.0, 0.0, 1.0, 128 + 16, 0.0)


def test_what_nothing_is_learned_through_has_no_way_back() -> None:
    for key, products in (
        ("aten.argmax.default(float32[4,5]+grad)->int64[4]", 0),
        ("aten.amax.default(float32[4,5]+grad)->float32[4]", 1),
    ):
        op = parse_key(key)
        assert Query(op, features_of(op, 2.0**28), 1.0).products == products


def device_step(one: Query) -> TrainingMeasurement:
    """Forward half as long again as in inference; backward a nanosecond for each byte of gradients and 10 µs."""
    return step(1.5 * one.inference_s, 1e-5 + 1e-9 * one.backward_terms[3])


def relus(count: int, seed: int) -> list[Query]:
    draw = random.Random(seed)
    return [relu(rows, 2e-6 + rows * 1e-7) for rows in (round(2 ** draw.uniform(1, 12)) for _ in range(count))]


def test_the_law_of_the_device_is_found_again() -> None:
    both = fit_both_ways([(one, device_step(one)) for one in relus(30, seed=0)])
    assert both is not None
    others = relus(20, seed=1)
    forward_s, backward_s, spread = both.predict(others)
    np.testing.assert_allclose(forward_s, [device_step(one).forward.seconds for one in others], rtol=0.02)
    np.testing.assert_allclose(backward_s, [device_step(one).backward.seconds for one in others], rtol=0.02)
    assert np.all(np.isfinite(spread))
    assert np.all(spread > 0)


def test_what_asks_for_no_gradient_takes_no_time_back() -> None:
    both = fit_both_ways([(one, device_step(one)) for one in relus(30, seed=0)])
    assert both is not None
    forward_s, backward_s, _ = both.predict([relu(64, 1e-5, gradient=""), relu(64, 1e-5)])
    assert backward_s[0] == 0 < backward_s[1]
    assert np.all(forward_s > 0)


@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_a_device_that_is_as_much_slower_in_both_keeps_the_ratio(factor: float) -> None:
    rows = relus(30, seed=0)
    slower = [Query(one.op, one.features, factor * one.inference_s) for one in rows]
    ways = [
        fit_both_ways([(one, step(2 * one.inference_s, 3 * one.inference_s)) for one in ops]) for ops in (rows, slower)
    ]
    for both, ops in zip(ways, (rows, slower), strict=True):
        assert both is not None
        forward_s, backward_s, _ = both.predict(ops)
        inference_s = np.array([one.inference_s for one in ops])
        np.testing.assert_allclose(forward_s, 2 * inference_s, rtol=0.05)
        np.testing.assert_allclose(backward_s, 3 * inference_s, rtol=0.05)


def test_of_a_few_steps_nothing_is_learned() -> None:
    rows = [(one, device_step(one)) for one in relus(LEAST_STEPS, seed=0)]
    assert fit_both_ways(rows[1:]) is None
    both = fit_both_ways(rows)
    assert both is not None
    assert both.backward is not None


def test_where_only_the_way_there_was_measured_the_way_back_is_as_long_for_each_product() -> None:
    rows = [(relu(rows, rows * 1e-7, gradient=""), step(rows * 1e-7, 0.0)) for rows in range(10, 30)]
    both = fit_both_ways(rows)
    assert both is not None
    assert both.backward is None
    _, backward_s, _ = both.predict([relu(16, 3e-6)])
    assert backward_s.tolist() == [3e-6]


def test_a_way_back_that_could_not_be_told_from_nothing_is_left_out() -> None:
    """The call of the engine is subtracted, which may leave nothing of a short one."""
    rows = [(one, device_step(one)) for one in relus(30, seed=0)]
    short = [(one, step(there.forward.seconds, 0.0)) for one, there in rows[:5]]
    first, second = fit_both_ways(rows[5:]), fit_both_ways(rows[5:] + short)
    assert first is not None
    assert second is not None
    assert first.predict([rows[0][0]])[1].tobytes() == second.predict([rows[0][0]])[1].tobytes()


def test_many_steps_are_thinned_out() -> None:
    rows = [(relu(n, n * 1e-7), step(n * 1e-7, n * 1e-7)) for n in range(1, 2 * MOST_STEPS + 1)]
    both = fit_both_ways(rows)
    assert both is not None
    assert len(both.forward.places) == MOST_STEPS
