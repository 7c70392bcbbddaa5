"""Usage: the seconds of a device add up to the period, and each wait has its reason."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.table import CostTable
from simulator.simulate import simulate
from simulator.stages import Stage, split_stages
from simulator.timeline import Span, Timeline
from simulator.usage import DeviceUsage, Usage, usage
from tests.simulator.tables import placements, tables

FIRST = Stage(0, (0,), (), ((0, 1),), ())
SECOND = Stage(1, (1,), ((0, 0),), (), (0,))


def stream(begun_s: Sequence[tuple[float, float]]) -> Timeline:
    """Micro-batches whose first stage takes 1 s on a, the tensor 0.5 s, and the second stage 3 s on b."""
    spans = [
        span
        for i, (a_s, b_s) in enumerate(begun_s)
        for span in (
            Span("compute", "a", "one", i, 0, a_s, a_s + 1.0, 0.75),
            Span("transfer", "a → b", "x", i, 0, a_s + 1.0, a_s + 1.5),
            Span("compute", "b", "two", i, 1, b_s, b_s + 3.0, 3.0),
        )
    ]
    return Timeline(("a", "b", "c"), len(begun_s), tuple(sorted(spans, key=lambda span: span.start_s)))


def test_two_devices_by_hand() -> None:
    """b is the bottleneck and takes 0.25 s between two stages; a starts 0.5 s after a micro-batch may enter."""
    # ends: 4.5, 7.75, 11, 14.25, 17.5; two in flight, so number 2 enters at 4.5, 3 at 7.75, 4 at 11
    found = usage(stream([(0.0, 1.5), (1.0, 4.75), (5.0, 8.0), (8.25, 11.25), (11.5, 14.5)]), (FIRST, SECOND), 2)
    assert found is not None
    assert found == Usage(
        3.25,
        {
            "a": DeviceUsage(busy_s=1.0, input_s=0.0, admission_s=1.75, between_s=0.5, processor_s=0.75),
            "b": DeviceUsage(busy_s=3.0, input_s=0.0, admission_s=0.0, between_s=0.25, processor_s=3.0),
        },
        {"a → b": 0.5},
    )


def test_a_device_that_waits_for_its_input() -> None:
    """One micro-batch at a time: b waits for a and the link, a waits until a micro-batch may enter."""
    found = usage(stream([(4.5 * i, 4.5 * i + 1.5) for i in range(4)]), (FIRST, SECOND), 1)
    assert found is not None
    assert found.period_s == 4.5
    assert found.devices["a"] == DeviceUsage(1.0, 0.0, 3.5, 0.0, 0.75)
    assert found.devices["b"] == DeviceUsage(3.0, 1.5, 0.0, 0.0, 3.0)
    assert found.devices["b"].idle_s == 1.5


@pytest.mark.parametrize("in_flight", [2, 3])
def test_a_short_stream_has_no_steady_part(in_flight: int) -> None:
    assert usage(stream([(0.0, 1.5), (1.0, 4.5), (2.0, 7.5)]), (FIRST, SECOND), in_flight) is None


@given(tables(overlap=True), st.data(), st.integers(1, 5))
def test_seconds_add_up(table: CostTable, data: st.DataObject, in_flight: int) -> None:
    placement = data.draw(placements(table, copies=3))
    timeline = simulate(table, placement, 10 * in_flight, in_flight)
    found = usage(timeline, split_stages(table, placement), in_flight)
    assert found is not None or timeline.makespan_s == 0
    for used in found.devices.values() if found else ():
        assert used.busy_s + used.idle_s == pytest.approx(found.period_s if found else 0.0, rel=1e-9, abs=1e-12)
        assert used.between_s == pytest.approx(0.0, abs=1e-9), "a simulated device starts what could start"
