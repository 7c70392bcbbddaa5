"""Predicted against measured: medians by stage, sums by device, and when a prediction is off."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from planner.plans.compare import Comparison, Figure, PaceChange, compare, compare_stream, pace_change, stages_of
from simulator.timeline import Span, Timeline
from tests.planner.runtime.small import alternating, make_plan, program_of
from tests.planner.view.samples import fork_plan, slower


def run(*stages: tuple[str, Sequence[float]]) -> Timeline:
    """Stages in order, (device, seconds in each micro-batch); starts do not matter."""
    spans = [
        Span("compute", device, f"op{number}", batch, number, 10.0 * batch, 10.0 * batch + seconds)
        for number, (device, times) in enumerate(stages)
        for batch, seconds in enumerate(times)
    ]
    spans.append(Span("transfer", "a → b", "t", 0, 0, 0.0, 5.0))
    return Timeline(("a", "b", "c"), max(len(times) for _, times in stages), tuple(spans))


PREDICTED = run(("a", [1.0]), ("b", [2.0]), ("a", [0.5]))


def test_stages_are_medians_and_devices_their_sums() -> None:
    found = compare(PREDICTED, run(("a", [1, 1, 9]), ("b", [3, 2, 2.5]), ("a", [0.5] * 3)), ())
    assert found.stages == (Figure("a: op0", 1, 1), Figure("b: op1", 2, 2.5), Figure("a: op2", 0.5, 0.5))
    assert found.devices == (Figure("a", 1.5, 1.5), Figure("b", 2, 2.5))  # c has nothing to do
    assert [round(figure.error, 6) for figure in found.devices] == [0, 0.25]


def test_links_are_sums_of_what_their_tensors_take() -> None:
    def sent(*times: tuple[str, int, Sequence[float]]) -> Timeline:
        spans = [
            Span("transfer", link, f"t{flow}", batch, flow, 1.0, 1.0 + seconds)
            for link, flow, each in times
            for batch, seconds in enumerate(each)
        ]
        return Timeline(("a", "b"), 3, tuple(spans))

    predicted = sent(
        ("b → a", 2, [0.5]), ("a → b", 0, [1.0]), ("a → b", 1, [2.0]), ("a → c", 0, [1.0]), ("c → a", 3, [1.0])
    )
    found = compare(
        predicted,
        sent(("a → b", 0, [1, 1, 9]), ("a → b", 1, [4, 2, 3]), ("b → a", 2, [0.25] * 3), ("c → a", 3, [0.0])),
        (),
    )
    assert found.links == (Figure("b → a", 0.5, 0.25), Figure("a → b", 3.0, 4.0), Figure("c → a", 1.0, 0.0))
    assert found.devices == ()


def test_a_stage_that_did_not_run_is_left_out() -> None:
    found = compare(PREDICTED, run(("a", [1]), ("b", [2])), ())
    assert [figure.name for figure in found.stages] == ["a: op0", "b: op1"]


@pytest.mark.parametrize(("measured_s", "off"), [(1.0, False), (1.09, False), (1.2, True), (0.8, True)])
def test_ten_percent_is_off(measured_s: float, off: bool) -> None:
    totals = Figure("time", 1.0, measured_s), Figure("latency", 3.0, 3.0)
    assert Comparison((), (), totals).off == off


def test_what_was_predicted_to_take_no_time_has_no_error() -> None:
    assert Figure("nothing", 0.0, 1.0).error == 0


def test_the_way_forward_and_the_way_back_count_as_one() -> None:
    spans = tuple(
        Span("compute", "a", label, micro_batch, 0, start_s, end_s)
        for label, micro_batch, start_s, end_s in (
            *(("0F0", 0, 0.0, 1.0), ("0F1", 1, 1.0, 2.5), ("0B0", 0, 3.0, 5.0), ("0B1", 1, 5.0, 8.0)),
            ("optimizer", 1, 8.0, 20.0),
        )
    )
    sent = (Span("transfer", "a → b", f"1SEND_{way}0", 0, 1, 1.0, 2.0) for way in "FB")  # as when stages are in turns
    step = Timeline(("a", "b"), 2, (*spans, *sent))
    merged = stages_of(step, ["stage 0, conv … relu", "stage 1"])
    assert [(span.label, span.micro_batch, span.end_s - span.start_s) for span in merged.spans] == [
        ("stage 0, conv … relu", 0, 3.0),  # 1 + 2
        ("stage 0, conv … relu", 1, 4.5),  # 1.5 + 3
        ("stage 1", 0, 2.0),  # what it sends over one link: 1 + 1
    ]
    found = compare(merged, merged, ())
    assert found.stages == (Figure("a: stage 0, conv … relu", 3.75, 3.75),)
    assert found.devices == (Figure("a", 3.75, 3.75),)
    assert found.links == (Figure("a → b", 2.0, 2.0),)


def test_the_pace_explains_a_part_of_an_error() -> None:
    figure = Figure("time per micro-batch", 2.0, 3.3)
    assert figure.error == pytest.approx(0.65)
    assert figure.error_after(1.5) == pytest.approx(0.1)
    slow = Comparison((), (), (figure,), pace=PaceChange(1.6, 1.6, {"computing": 1.6, "streaming": 1.0}))
    assert not slow.off
    assert replace(slow, pace=None).off
    assert slow.unexplained(replace(figure, pace=1.1)) == pytest.approx(0.5)  # that of its own operators


def test_the_pace_of_a_plan() -> None:
    program = program_of("tied")
    plan = make_plan(program, alternating(program))
    assert pace_change(plan, [{"computing": 2.0}]) is None
    kind = plan.cluster.devices[0].kind
    paced = replace(plan, pace={kind: {"computing": 1.0, "memory": 1.0}})
    assert pace_change(paced, []) is None
    found = pace_change(paced, [{"computing": 2.0, "computing on 2": 9.0}])
    assert found is not None
    assert found.network == pytest.approx(2.0, rel=1e-3)  # none of its operators streams
    assert found.contended == found.network  # nobody measured two devices before
    assert found.kinds["streaming"] == found.kinds["computing"]  # nobody measured memory since
    steady = pace_change(paced, [{"computing": 1.03}])
    assert steady is not None
    assert 1.0 < steady.network < 1.03  # a part of it is chance


def test_devices_and_links_of_a_stream_are_those_of_the_steady_part() -> None:
    plan = fork_plan()
    stream = slower(plan.steady, 1.5)
    found = compare_stream(plan, stream, 1.5 * plan.period_s, 1.5 * plan.latency_s)
    assert found.usage is not None
    assert [round(figure.error, 6) for figure in (*found.devices, *found.totals)] == [0.5] * 4
    for device in found.usage.devices.values():
        assert device.busy_s + device.idle_s == pytest.approx(found.usage.period_s)
    short = compare_stream(plan, plan.simulate(1), 1.0, 1.0)
    assert short.usage is None
    assert [figure.name for figure in short.devices] == [figure.name for figure in found.devices]
