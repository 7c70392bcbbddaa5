"""What training takes beside inference, by hand."""

import pytest

from costmodels.learning.in_training import Ratios, fit_ratios
from costmodels.learning.keys import Described, parse_key
from costmodels.measured import Measurement, Step

BOTH = parse_key("aten.mm.default(float32[4,5]+grad, float32[5,5]+grad)->float32[4,5]")  # two products come back
ONE = parse_key("aten.mm.default(float32[4,5], float32[5,5]+grad)->float32[4,5]")
NONE = parse_key("aten.mm.default(float32[4,5], float32[5,5])->float32[4,5]")


def row(op: Described, forward_s: float, backward_s: float, learned_s: float) -> tuple[Described, Step, float]:
    return op, Step(Measurement(forward_s, 0, 1), Measurement(backward_s, 0, 1)), learned_s


def test_ratios_are_medians_weighted_by_time() -> None:
    rows = [row(BOTH, 3.0, 8.0, 2.0), row(ONE, 9.0, 9.0, 1.0), row(ONE, 3.0, 2.4, 2.0), row(NONE, 1.5, 0.0, 1.0)]
    # forward 1.5 (2 s), 9 (1 s), 1.5 (2 s), 1.5 (1 s); backward 8 / 2 / 2 = 2 (4 s), 9 (1 s), 1.2 (2 s)
    assert fit_ratios(rows) == Ratios(forward=1.5, backward=2.0)


def test_what_gives_nobody_a_gradient_says_nothing_of_the_way_back() -> None:
    assert fit_ratios([row(NONE, 3.0, 0.0, 2.0)] * 3) == Ratios(forward=1.5)


def test_of_a_few_steps_nothing_is_learned() -> None:
    assert fit_ratios([row(BOTH, 3.0, 8.0, 2.0)] * 2) == Ratios(1.0, 1.0)
    assert fit_ratios([row(BOTH, 3.0, 8.0, 2.0)] * 3) == Ratios(1.5, 2.0)


@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_a_device_that_is_as_much_slower_in_both_has_the_same_ratios(factor: float) -> None:
    rows = [(2.0, 7.0, 1.0), (5.0, 6.0, 2.0), (1.0, 9.0, 3.0)]
    scaled = [row(BOTH, *(factor * seconds for seconds in times)) for times in rows]
    assert fit_ratios(scaled) == fit_ratios([row(BOTH, *times) for times in rows])
