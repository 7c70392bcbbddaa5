"""Workloads: the defaults, and what they refuse."""

from typing import Any

import pytest

from costmodels.workload import Workload
from graphs.common.errors import InputError


def test_the_default_is_streaming_single_samples() -> None:
    assert Workload() == Workload(mode="inference", batch=1, in_flight=4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mode": "testing"}, "the workload has mode = 'testing'; it must be one of inference, training, generation"),
        ({"batch": 0}, "the batch is 0; it must be 1 or more"),
        ({"in_flight": 0}, "0 micro-batches in flight; it must be 1 or more"),
        ({"optimizer": "lion"}, "the optimizer is 'lion'; it must be one of sgd, momentum, adam"),
        ({"micro_batches": 0}, "0 micro-batches between two steps; it must be 1 or more"),
        (
            {"schedule": ""},
            "the schedule is ''; it must be one of gpipe, 1f1b, interleaved, breadth-first, zb-h1, zb-h2, zbv",
        ),
        ({"in_flight": -2}, "-2 micro-batches in flight; it must be 1 or more"),
        ({"recompute": "yes"}, "the workload has recompute = 'yes'; it must be one of none, selective, full"),
        ({"recompute": "full"}, "recompute is for the backward pass, and inference has none; leave it out"),
    ],
)
def test_a_workload_that_cannot_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        Workload(**fields)
    assert str(error.value) == message
