"""Makespans and peak memories that theory knows.

p devices, m micro-batches, v stages a device. F, I and W are the seconds of one device and micro-batch, B = I + W; a
stage takes and keeps the v-th part of what its device does.

::

    m = 4, p = 3    0F0 0F1 0F2 .   .   0B0 0F3 0B1 .   0B2 .   0B3      m (F + B) on any device,
                    .   1F0 1F1 .   1B0 1F2 1B1 1F3 1B2 .   1B3 .        and (p - 1)(F + B) more, in which
                    .   .   2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3 .   .        it waits for the others
"""

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.lower_schedule import StageCost
from simulator.pipeline import PipelineRun, simulate_schedule
from simulator.schedules import SCHEDULES
from tests.simulator.pipelines import drawn, equal_stages, peaks

EXACT = 1e-9

seconds = st.floats(1e-3, 1e3)


class Case(NamedTuple):
    """p devices, m micro-batches, v stages a device; seconds of F, I and W on one device."""

    p: int
    m: int
    v: int
    f: float
    i: float
    w: float

    @property
    def work_s(self) -> float:
        """Seconds that each device computes: m (F + B)."""
        return self.m * (self.f + self.i + self.w)

    def run(self, name: str) -> PipelineRun:
        schedule = SCHEDULES[name](self.p, self.m, self.v)
        return simulate_schedule(
            schedule, equal_stages(self.p * self.v, self.f / self.v, self.i / self.v, self.w / self.v)
        )


@st.composite
def cases(draw: st.DrawFn, at_least: str = "1", multiple: bool = False, max_v: int = 1) -> Case:
    """At least 1, p or 2p - 1 micro-batches, or a multiple of p."""
    p, v = draw(st.integers(1, 6)), draw(st.integers(1, max_v))
    if multiple:
        m = p * draw(st.integers(1, 4))
    else:
        least = {"1": 1, "p": p, "2p - 1": 2 * p - 1}[at_least]
        m = draw(st.integers(least, least + 15))
    return Case(p, m, v, *[draw(seconds) for _ in range(3)])


# --- equal stages ----------------------------------------------------------------------------------------------------


@given(cases())
def test_gpipe(case: Case) -> None:
    p, m, _, f, i, w = case
    run = case.run("gpipe")
    assert run.makespan_s == pytest.approx(case.work_s + (p - 1) * (f + i + w), rel=EXACT)
    assert peaks(run) == [m * 1000] * p


@given(cases())
def test_1f1b(case: Case) -> None:
    p, m, _, f, i, w = case
    run = case.run("1f1b")
    assert run.makespan_s == pytest.approx(case.work_s + (p - 1) * (f + i + w), rel=EXACT)
    assert peaks(run) == [min(p - r, m) * 1000 for r in range(p)]


@given(cases(multiple=True, max_v=4))
def test_interleaved(case: Case) -> None:
    p, m, v, f, i, w = case
    run = case.run("interleaved")
    assert run.makespan_s == pytest.approx(case.work_s + (p - 1) * (f + i + w) / v, rel=EXACT)
    # device 0 keeps p + (p - 1) / v micro-batches, of v stages each; there are no more than m
    assert peaks(run)[0] == min(p * v + p - 1, m * v) * 1000
    # further behind, the warm-up is shorter by two stages a device
    assert peaks(run) == [min((v - 1) * p + 2 * (p - 1 - r) + 1, m * v) * 1000 for r in range(p)]


@given(cases(at_least="p", max_v=4))
def test_breadth_first(case: Case) -> None:
    p, m, v, f, i, w = case
    run = case.run("breadth-first")
    assert run.makespan_s == pytest.approx(case.work_s + (p - 1) * (f + i + w) / v, rel=EXACT)
    assert peaks(run) == [m * v * 1000] * p


@given(cases(at_least="p"))
def test_zb_h1(case: Case) -> None:
    """The paper's (p - 1)(F + I - W) is for W that are no longer than F or I; else these are what devices wait for."""
    p, _, _, f, i, w = case
    run = case.run("zb-h1")
    assert run.makespan_s == pytest.approx(case.work_s + (p - 1) * max(f + i - w, f, i), rel=EXACT)
    if w <= min(f, i):
        assert run.makespan_s == pytest.approx(case.work_s + (p - 1) * (f + i - w), rel=EXACT)
    assert peaks(run) == [(p - r) * 1000 + r for r in range(p)]


@given(cases(at_least="2p - 1"))
def test_zb_h2(case: Case) -> None:
    """The paper's forms are for W up to F, or I up to 2 F. Else device 0 waits for its first gradient.

    That arrives after p F + (p - 1) I, and till then device 0 has 2 p - 1 F: (p - 1)(I - F) are left.
    """
    p, _, _, f, i, w = case
    run = case.run("zb-h2")
    assert run.makespan_s == pytest.approx(case.work_s + (p - 1) * max(f, f + i - 2 * w, i - f), rel=EXACT)
    if w <= f or i <= 2 * f:
        assert run.makespan_s == pytest.approx(case.work_s + (p - 1) * max(f, f + i - 2 * w), rel=EXACT)
    assert max(run.span_s) == pytest.approx(case.work_s + (p - 1) * max(0, f + i - 2 * w, i - f), rel=EXACT)
    if w <= min(f, (f + i) / 2):
        assert max(run.span_s) == pytest.approx(case.work_s + (p - 1) * (f + i - 2 * w), rel=EXACT)
    assert peaks(run) == [(2 * p - 2 * r - 1) * 1000 + 2 * r for r in range(p)]


@given(cases(at_least="2p - 1"), seconds)
def test_zbv_has_no_bubbles_if_everything_takes_equally_long(case: Case, second: float) -> None:
    """Between a device's first and last action; the last device starts p - 1 stages later."""
    p, m, *_ = case
    run = Case(p, m, 2, 2 * second, 2 * second, 2 * second).run("zbv")
    assert run.span_s.tolist() == pytest.approx([m * 6 * second] * p, rel=EXACT)
    assert run.makespan_s == pytest.approx((m * 6 + p - 1) * second, rel=EXACT)
    assert [peak // 1000 for peak in peaks(run)] == [2 * p] * p  # the two stages of p micro-batches, as 1F1B's first


# --- unequal stages --------------------------------------------------------------------------------------------------


unequal = st.lists(st.builds(StageCost, seconds, seconds, seconds), min_size=1, max_size=6)


def each_s(costs: Sequence[StageCost]) -> tuple[list[float], list[float]]:
    """[n_stages], seconds of F, and seconds of B."""
    return [cost.forward_s for cost in costs], [cost.input_grad_s + cost.weight_grad_s for cost in costs]


@given(unequal, st.integers(1, 20))
def test_gpipe_with_unequal_stages(costs: list[StageCost], m: int) -> None:
    f, b = each_s(costs)
    run = simulate_schedule(SCHEDULES["gpipe"](len(costs), m), costs)
    assert run.makespan_s == pytest.approx(sum(f) + sum(b) + (m - 1) * (max(f) + max(b)), rel=EXACT)


@given(unequal, st.integers(1, 20))
def test_forward_only_with_unequal_stages(costs: list[StageCost], m: int) -> None:
    f, _ = each_s(costs)
    run = simulate_schedule(SCHEDULES["forward-only"](len(costs), m), costs)
    assert run.makespan_s == pytest.approx(sum(f) + (m - 1) * max(f), rel=EXACT)
    assert peaks(run) == [0] * len(costs)


@given(unequal, st.integers(1, 20))
def test_1f1b_with_unequal_stages_is_not_below_its_bound(costs: list[StageCost], m: int) -> None:
    """A device works for m t; before, the first F has to arrive, and afterwards the last B to go back."""
    t = [f + b for f, b in zip(*each_s(costs), strict=True)]
    bound_s = max(sum(t), *(sum(t[:s]) + m * t[s] for s in range(len(t))))
    run = simulate_schedule(SCHEDULES["1f1b"](len(costs), m), costs)
    assert run.makespan_s >= bound_s * (1 - EXACT)


def picture_of_1f1b(costs: list[StageCost], m: int) -> list[str]:
    return drawn(simulate_schedule(SCHEDULES["1f1b"](len(costs), m), costs))


def test_1f1b_with_unequal_stages_may_beat_the_usual_formula() -> None:
    # Σt + (m - 1) max t = (4 + 2) + 2 · 4 = 14, but device 1's turns fit into the time that device 0 needs: 3 · 4 = 12
    assert picture_of_1f1b([StageCost(2, 2), StageCost(1, 1)], m=3) == [
        "0F0 -   0F1 -   0B0 -   0F2 -   0B1 -   0B2 -",
        ".   .   1F0 1B0 1F1 1B1 .   .   1F2 1B2 .   .",
    ]


def test_1f1b_with_unequal_stages_may_miss_the_usual_formula() -> None:
    # Σt + (m - 1) max t = (5 + 5 + 2) + 2 · 5 = 22, but it takes 23: the second F of stage 2 waits for 0F1
    assert picture_of_1f1b([StageCost(4, 1), StageCost(1, 4), StageCost(1, 1)], m=3) == [
        "0F0 -   -   -   0F1 -   -   -   0F2 -   -   -   .   0B0 .   .   .   .   0B1 .   .   .   0B2",
        ".   .   .   .   1F0 .   .   .   1F1 1B0 -   -   -   1F2 1B1 -   -   -   1B2 -   -   -   .",
        ".   .   .   .   .   2F0 2B0 .   .   2F1 2B1 .   .   .   2F2 2B2 .   .   .   .   .   .   .",
    ]


# --- messages --------------------------------------------------------------------------------------------------------


def with_messages(case: Case, message_s: float) -> list[StageCost]:
    return [StageCost(case.f, case.i, case.w, message_s, message_s)] * case.p


@given(cases(), st.floats(0, 1))
def test_gpipe_with_messages_that_are_faster_than_the_stages(case: Case, share: float) -> None:
    p, m, _, f, i, w = case
    c = share * min(f, i + w)
    run = simulate_schedule(SCHEDULES["gpipe"](p, m), with_messages(case, c))
    assert run.makespan_s == pytest.approx((m + p - 1) * (f + i + w) + 2 * (p - 1) * c, rel=EXACT)


@given(cases().filter(lambda case: case.p > 1), seconds)
def test_gpipe_with_messages_is_as_fast_as_its_links(case: Case, c: float) -> None:
    """Each direction on its own: a micro-batch all the way, and the others behind it as the slowest one lets them."""
    p, m, _, f, i, w = case
    run = simulate_schedule(SCHEDULES["gpipe"](p, m), with_messages(case, c))
    there_s, back_s = (p * t + (p - 1) * c + (m - 1) * max(t, c) for t in (f, i + w))
    assert run.makespan_s == pytest.approx(there_s + back_s, rel=EXACT)


@pytest.mark.parametrize(("message_s", "makespan_s"), [(0, 57), (0.25, 64), (0.5, 71), (1, 85)])
def test_1f1b_with_messages(message_s: float, makespan_s: float) -> None:
    # p = 4, m = 16, F = 1, B = 2: 57 = (16 + 3) · 3, and 28 messages that somebody waits for
    costs = [StageCost(1, 1, 1, message_s, message_s)] * 4
    assert simulate_schedule(SCHEDULES["1f1b"](4, 16), costs).makespan_s == makespan_s == 57 + 28 * message_s
