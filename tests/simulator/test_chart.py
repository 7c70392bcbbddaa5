"""The picture of a timeline: it is well-formed, shows every bar at its place, and is the same each time."""

from textwrap import dedent
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphs.common.errors import InputError
from simulator.chart import COLOURS, TICKS, WIDTH, _ticks, ascii_chart, svg_chart
from simulator.lower_schedule import StageCost
from simulator.pipeline import simulate_schedule
from simulator.schedules import SCHEDULES
from simulator.simulate import simulate
from simulator.timeline import Span, Timeline
from tests.simulator.tables import placements, tables

SVG = "{http://www.w3.org/2000/svg}"
RUN = Timeline(
    ("a<b", "c"),
    2,
    (
        Span("compute", "a<b", "x & y", 0, 3, 0, 0.5),
        Span("transfer", "a<b → c", "t", 0, 0, 0.5, 0.75),
        Span("compute", "c", "z", 1, 4, 0.75, 2),
    ),
)


def bars(text: str) -> list[tuple[str, float]]:
    """What each bar tells, and how wide it is."""
    found = ElementTree.fromstring(text).iter(f"{SVG}rect")
    return [(told, float(bar.attrib["width"])) for bar in found if (told := bar.findtext(f"{SVG}title"))]


def texts(text: str) -> list[str]:
    return [found.text or "" for found in ElementTree.fromstring(text).iter(f"{SVG}text")]


def test_each_bar_tells_what_it_is_and_is_as_wide_as_it_is_long() -> None:
    # 2 s are WIDTH pixels
    assert bars(svg_chart(RUN)) == [
        ("x & y, micro-batch 0: 0 s to 500 ms", WIDTH / 4),
        ("t, micro-batch 0: 500 ms to 750 ms", WIDTH / 8),
        ("z, micro-batch 1: 750 ms to 2 s", WIDTH * 5 / 8),
    ]


def test_lanes_legend_and_axis_are_named() -> None:
    shown = texts(svg_chart(RUN, "a run"))
    assert shown[:4] == ["a run", "micro-batch", "0", "1"]
    assert {"a<b", "c", "a<b → c", "0 s", "1 s", "2 s", "x & y", "z"} <= set(shown)


def test_more_numbers_than_colours_share_them() -> None:
    spans = tuple(Span("compute", "a", "s", i, 0, i, i + 1) for i in range(20))
    assert texts(svg_chart(Timeline(("a",), 20, spans)))[1:9] == [
        *("0, 8, …", "1, 9, …", "2, 10, …", "3, 11, …", "4, 12", "5, 13", "6, 14", "7, 15")
    ]


def test_backward_passes_are_paler() -> None:
    run = simulate_schedule(SCHEDULES["1f1b"](2, 2), [StageCost(1, 1, 1)] * 2)
    chart = svg_chart(run.timeline)
    assert "backward" in texts(chart)
    assert chart.count('<rect class="c0 back"') == 1 + 2  # the sample, and micro-batch 0 on two devices


def test_what_cannot_be_seen_is_left_out() -> None:
    spans = tuple(Span("compute", "a", "s", i, 0, i, i + 1) for i in range(10 * WIDTH))
    assert WIDTH / 2 <= len(bars(svg_chart(Timeline(("a",), 10 * WIDTH, spans)))) <= 2 * WIDTH


def test_a_picture_is_light_or_dark_and_needs_nothing_else() -> None:
    chart = svg_chart(RUN)
    assert "prefers-color-scheme: dark" in chart
    assert chart.count("http") == chart.count("http://www.w3.org/2000/svg") == 1
    assert len(set(COLOURS)) == 8


def test_an_empty_run_has_a_picture() -> None:
    assert bars(svg_chart(Timeline(("a",), 1, ()))) == []


@given(st.floats(1e-9, 1e6))
def test_ticks_are_few_and_within_the_run(whole_s: float) -> None:
    ticks = _ticks(whole_s)
    assert ticks[0] == 0
    assert 3 <= len(ticks) <= TICKS + 1
    assert ticks[-1] <= whole_s * (1 + 1e-6)


@given(st.data())
def test_every_run_has_a_picture_that_is_the_same_each_time(data: st.DataObject) -> None:
    table = data.draw(tables())
    timeline = simulate(table, data.draw(placements(table)), 2)
    chart = svg_chart(timeline)
    assert chart == svg_chart(timeline)
    assert len(bars(chart)) <= len(timeline.spans)


def test_the_end_of_a_step_looks_like_no_micro_batch() -> None:
    run = simulate_schedule(SCHEDULES["1f1b"](2, 2), [StageCost(1, 1, 1, sync_s=2, optimizer_s=6)] * 2)
    text = svg_chart(run.timeline)
    looks = [element.get("class") for element in ElementTree.fromstring(text).iter(f"{SVG}rect")]
    assert looks.count("end") == 4 + 1  # two syncs, two optimizers, and the legend
    assert ">end of the step<" in text
    assert "<title>optimizer: 11 s to 17 s</title>" in text
    assert ascii_chart(run.timeline, 17) == chart("""
        0  01..00.11..======
        1  .000111..======..
        """)


# --- in characters ---------------------------------------------------------------------------------------------------


def compute(device: str, micro_batch: int, start_s: float, end_s: float) -> Span:
    return Span("compute", device, "conv … relu", micro_batch, 7, start_s, end_s)


TWO = Timeline(
    ("cpu0", "gpu"),
    2,
    (
        compute("cpu0", 0, 0, 0.5),
        Span("transfer", "cpu0 → gpu", "relu", 0, 3, 0.5, 0.75),
        compute("gpu", 1, 0.75, 2),
    ),
)


def chart(text: str) -> str:
    return dedent(text).strip()


def test_a_chart_has_a_row_for_each_device() -> None:
    # 2 seconds in 8 pieces of 0.25: cpu0 works for 0.5, the gpu from 0.75 to 2
    assert ascii_chart(TWO, 8) == chart("""
        cpu0  00......
        gpu   ...11111
        """)


def test_a_piece_shows_what_runs_in_its_middle() -> None:
    # 2 seconds in 2 pieces, with the middles 0.5 (cpu0 has just ended) and 1.5; in 3 pieces: 1/3, 1 and 5/3
    assert ascii_chart(TWO, 2) == chart("""
        cpu0  ..
        gpu   .1
        """)
    assert ascii_chart(TWO, 3) == chart("""
        cpu0  0..
        gpu   .11
        """)


def test_a_chart_shows_the_last_digit_of_the_micro_batch() -> None:
    spans = tuple(compute("x", i, i, i + 1) for i in range(12))
    assert ascii_chart(Timeline(("x",), 12, spans), 24) == "x  001122334455667788990011"


def test_a_run_without_duration_is_idle() -> None:
    assert ascii_chart(Timeline(("x",), 1, (compute("x", 0, 0, 0),)), 4) == "x  ...."


def test_a_chart_needs_a_width() -> None:
    with pytest.raises(InputError) as error:
        ascii_chart(TWO, 0)
    assert str(error.value) == "the chart's width is 0; it must be 1 or more"


@given(st.data(), st.integers(1, 200))
def test_a_chart_is_as_wide_as_asked_for(data: st.DataObject, width: int) -> None:
    table = data.draw(tables())
    rows = ascii_chart(simulate(table, data.draw(placements(table)), micro_batches=3), width).splitlines()
    assert [len(row) for row in rows] == [len("0  ") + width] * table.n_devices
