"""The spans of transfers: by hand, and cause before effect in every run."""

from hypothesis import given
from hypothesis import strategies as st

from costmodels.cluster.cluster import Sharing
from simulator.lower_schedule import StageCost
from simulator.pipeline import simulate_schedule
from simulator.placement import Placement
from simulator.schedule import Schedule
from simulator.schedules import SCHEDULES
from simulator.simulate import simulate
from simulator.trace import TransferSpans, schedule_transfer_spans, transfer_spans
from tests.simulator.pipelines import schedules, stage_costs
from tests.simulator.tables import make_table, placements, tables

ROUNDING = 1e-9


def names(spans: list[TransferSpans]) -> list[tuple[str, str, str, int]]:
    return [(sender.label, transfer.label, to.label, to.micro_batch) for sender, transfer, to in spans]


def test_a_tensor_goes_to_the_stage_that_reads_it_first() -> None:
    # a on 0 is read by b on 1 and by d on 1; c on 0 is read by d: [a], a*, [b]; [c], c*, [d]
    table = make_table([1, 1, 1, 1], [(0, (1, 3), 1.0), (2, (3,), 1.0)])
    placement = Placement((0, 1, 0, 1))
    transfers = transfer_spans(table, placement, simulate(table, placement, 2))
    once = [("a", "a*", "b"), ("c", "c*", "d")]
    assert sorted(names(transfers)) == sorted((*arrow, i) for arrow in once for i in (0, 1))


def test_a_schedule_sends_activations_ahead_and_gradients_back() -> None:
    run = simulate_schedule(SCHEDULES["1f1b"](2, 1), [StageCost(1, 1, 1, 1, 1)] * 2)
    assert names(schedule_transfer_spans(run)) == [("0F0", "0SEND_F0", "1F0", 0), ("1B0", "1SEND_B0", "0B0", 0)]


@given(st.data(), st.integers(1, 3), st.sampled_from(["fifo", "fair"]))
def test_nothing_is_read_before_it_has_arrived(data: st.DataObject, n: int, sharing: Sharing) -> None:
    table = data.draw(tables(shared=True))
    placement = data.draw(placements(table, copies=3))
    timeline = simulate(table, placement, n, in_flight=2, sharing=sharing)
    for sender, transfer, receiver in transfer_spans(table, placement, timeline):
        assert sender.end_s <= transfer.start_s + ROUNDING
        assert transfer.end_s <= receiver.start_s + ROUNDING
        assert sender.micro_batch == transfer.micro_batch == receiver.micro_batch


@given(schedules(), st.data(), st.booleans())
def test_nor_in_a_schedule(schedule: Schedule, data: st.DataObject, overlap: bool) -> None:
    run = simulate_schedule(schedule, data.draw(stage_costs(schedule.n_stages)), overlap)
    for sender, transfer, receiver in schedule_transfer_spans(run):
        assert sender.end_s <= transfer.start_s + ROUNDING
        assert transfer.end_s <= receiver.start_s + ROUNDING
        assert abs(sender.index - receiver.index) == 1
