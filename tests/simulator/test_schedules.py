"""The known schedules as pictures, and that each of them runs in any size."""

import pytest

from graphs.common.errors import InputError
from simulator.lower_schedule import StageCost
from simulator.pipeline import simulate_schedule
from simulator.schedules import SCHEDULES
from tests.simulator.pipelines import drawn

PICTURES = {
    ("forward-only", 3, 3, 1): """
        0F0 0F1 0F2 .   .
        .   1F0 1F1 1F2 .
        .   .   2F0 2F1 2F2
        """,
    ("gpipe", 2, 3, 1): """
        0F0 0F1 0F2 .   .   0B0 0B1 0B2
        .   1F0 1F1 1F2 1B0 1B1 1B2 .
        """,
    ("1f1b", 3, 4, 1): """
        0F0 0F1 0F2 .   .   0B0 0F3 0B1 .   0B2 .   0B3
        .   1F0 1F1 .   1B0 1F2 1B1 1F3 1B2 .   1B3 .
        .   .   2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3 .   .
        """,
    ("interleaved", 2, 4, 2): """
        0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 .   2B2 .   2B3 0B2 0B3
        .   1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3 .
        """,
    ("breadth-first", 2, 2, 2): """
        0F0 0F1 2F0 2F1 .   .   2B1 2B0 0B1 0B0
        .   1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0 .
        """,
    ("zb-h1", 3, 4, 1): """
        0F0 0F1 0F2 .   .   0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3
        .   1F0 1F1 .   1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3
        .   .   2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3
        """,
    ("zb-h2", 3, 5, 1): """
        0F0 0F1 0F2 0F3 0F4 0I0 0W0 0I1 0W1 0I2 0W2 0I3 0W3 0I4 0W4 .   .
        .   1F0 1F1 1F2 1I0 1F3 1I1 1F4 1I2 1W0 1I3 1W1 1I4 1W2 1W3 1W4 .
        .   .   2F0 2I0 2F1 2I1 2F2 2I2 2F3 2I3 2F4 2I4 2W0 2W1 2W2 2W3 2W4
        """,
    ("zbv", 2, 3, 2): """
        0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2 .
        .   1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2
        """,
}
"""(schedule, devices, micro-batches, stages a device): F, B, I and W take a second each, messages none."""


@pytest.mark.parametrize(("name", "n_devices", "micro_batches", "stages_per_device"), PICTURES)
def test_pictures(name: str, n_devices: int, micro_batches: int, stages_per_device: int) -> None:
    schedule = SCHEDULES[name](n_devices, micro_batches, stages_per_device)
    backward = (1.0, 1.0) if name.startswith("zb") else (0.5, 0.5)  # B is I + W
    run = simulate_schedule(schedule, [StageCost(1.0, *backward)] * schedule.n_stages)
    picture = PICTURES[name, n_devices, micro_batches, stages_per_device]
    assert drawn(run) == [line.strip() for line in picture.strip().splitlines()]


def test_every_schedule_has_a_picture() -> None:
    assert [name for name, *_ in PICTURES] == list(SCHEDULES)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("n_devices", range(1, 6))
def test_every_schedule_runs_in_any_size(name: str, n_devices: int) -> None:
    """However few micro-batches there are: each stage is where it should be, and nobody waits in a circle."""
    for micro_batches in range(1, 3 * n_devices + 2):
        if name == "interleaved" and micro_batches % n_devices:
            continue
        for per_device in {"interleaved": (1, 2, 3), "breadth-first": (1, 2, 3), "zbv": (2,)}.get(name, (1,)):
            schedule = SCHEDULES[name](n_devices, micro_batches, per_device)
            assert (schedule.n_devices, schedule.micro_batches) == (n_devices, micro_batches)
            there, back = list(range(n_devices)), list(range(n_devices))[::-1]
            assert list(schedule.device) == (there + back if name == "zbv" else there * per_device)
            run = simulate_schedule(schedule, [StageCost(1, 1, 1, 1, 1)] * schedule.n_stages)
            seconds = 1 if name == "forward-only" else 3
            assert run.timeline.busy_s.tolist() == [seconds * micro_batches * per_device] * n_devices


def test_schedules_have_a_usual_number_of_stages() -> None:
    stages = {name: SCHEDULES[name](2, 4).n_stages for name in SCHEDULES}
    assert stages == {name: 4 if name in ("interleaved", "breadth-first", "zbv") else 2 for name in SCHEDULES}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ((0, 4), "a schedule of 0 devices; it must be 1 or more"),
        ((2, 0), "a schedule of 0 micro-batches; it must be 1 or more"),
        ((2, -4, 2), "a schedule of -4 micro-batches; it must be 1 or more"),
        ((2, 4, 0), "a schedule of 0 stages a device; it must be 1 or more"),
    ],
)
def test_counts_start_at_one(name: str, counts: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError) as error:
        SCHEDULES[name](*counts)
    assert str(error.value) == message


@pytest.mark.parametrize("name", ["forward-only", "gpipe", "1f1b", "zb-h1", "zb-h2", "zbv"])
def test_some_schedules_are_for_one_number_of_stages_a_device(name: str) -> None:
    with pytest.raises(InputError) as error:
        SCHEDULES[name](2, 4, 3)
    assert str(error.value) == f"a schedule of 3 stages a device; this one is for {2 if name == 'zbv' else 1}"


def test_interleaved_needs_a_multiple_of_the_devices() -> None:
    with pytest.raises(InputError) as error:
        SCHEDULES["interleaved"](4, 6)
    assert str(error.value) == "6 micro-batches on 4 devices; interleaved needs a multiple of these"
