"""Spans of what travels between ranks, from the times that both ends have kept."""

from planner.runtime.distributed.inference.coordinator import transfers
from planner.runtime.distributed.transport.layout import RankLayout
from planner.runtime.inference.recorder import LoggedTransfer, Recorder
from simulator.stages import Stage
from simulator.timeline import Span

LAYOUT = RankLayout(((), (0,), (1,), (2,)), ("a", "b", "c"))  # the coordinator alone, then a device each
# stage 0 on a sends flow 3 to b and to c, flow 4 to c; stage 1 on b sends nothing to a device
STAGES = (Stage(0, (0,), (), ((3, 1), (3, 2), (4, 2)), ()), Stage(1, (1,), ((3, 0),), (), (0,)))


def leaves(stage: int, rank: int, at_s: float, micro_batch: int = 0) -> LoggedTransfer:
    return LoggedTransfer(stage, rank, micro_batch, True, at_s)


def comes(stage: int, rank: int, at_s: float, micro_batch: int = 0) -> LoggedTransfer:
    return LoggedTransfer(stage, rank, micro_batch, False, at_s)


def test_a_bundle_becomes_a_span_for_each_of_its_tensors() -> None:
    found = transfers([comes(0, 3, 1.5, 1), leaves(0, 2, 1.0), leaves(0, 3, 1.25, 1), comes(0, 2, 4.0)], STAGES, LAYOUT)
    assert sorted(found, key=lambda span: (span.micro_batch, span.index)) == [
        Span("transfer", "a → b", "", 0, 3, 1.0, 4.0),
        Span("transfer", "a → c", "", 1, 3, 1.25, 1.5),
        Span("transfer", "a → c", "", 1, 4, 1.25, 1.5),
    ]


def test_who_comes_later_waits_for_the_connection() -> None:
    ways = [(0, 1.0, 4.0), (1, 2.0, 5.5), (2, 7.0, 8.0)]  # micro-batch, left, came
    logged = [end for m, left_s, came_s in ways for end in (comes(0, 2, came_s, m), leaves(0, 2, left_s, m))]
    other = [leaves(0, 3, 2.0), comes(0, 3, 3.0)]
    found = {
        (span.resource, span.micro_batch): (span.start_s, span.end_s)
        for span in transfers([*logged, *other], STAGES, LAYOUT)
    }
    assert found == {
        ("a → b", 0): (1.0, 4.0),
        ("a → b", 1): (4.0, 5.5),
        ("a → b", 2): (7.0, 8.0),
        ("a → c", 0): (2.0, 3.0),
    }


def test_what_goes_to_the_front_alone_is_no_transfer() -> None:
    assert list(transfers([leaves(1, 0, 1.0), comes(1, 0, 2.0)], STAGES, LAYOUT)) == []


def test_what_does_not_come_is_left_out() -> None:
    assert list(transfers([leaves(0, 2, 1.0)], STAGES, LAYOUT)) == []


def test_nothing_takes_less_than_no_time() -> None:
    (span,) = transfers([leaves(0, 2, 1.0), comes(0, 2, 0.5)], STAGES, LAYOUT)
    assert (span.start_s, span.end_s) == (1.0, 1.0)


def test_a_rank_keeps_what_is_of_recorded_micro_batches() -> None:
    kept = Recorder([], {})
    kept.note(leaves(0, 2, 5.0, 7))
    assert kept.noted == []
    kept.start(7, 100.0)
    for micro_batch in (6, 7, 9):
        kept.note(comes(0, 2, 200.0, micro_batch))
    kept.note(leaves(1, 3, 210.0, 8))
    assert kept.noted == [(0, 2, 0, False, 100.0), (0, 2, 2, False, 100.0), (1, 3, 1, True, 110.0)]
    kept.spans()
    kept.note(comes(0, 2, 200.0, 9))
    assert len(kept.noted) == 3
