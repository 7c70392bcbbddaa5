"""Workloads: the defaults, and what they refuse."""

from typing import Any

import pytest

from costmodels.workload import Workload
from graphs.errors import InputError


def test_the_default_is_streaming_single_samples() -> None:
    assert Workload() == Workload(mode="inference", batch=1, in_flight=4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mode": "training"}, "the mode is 'training'; this version knows 'inference'"),
        ({"batch": 0}, "the batch is 0; it must be 1 or more"),
        ({"in_flight": 0}, "0 micro-batches in flight; it must be 1 or more"),
        ({"in_flight": -2}, "-2 micro-batches in flight; it must be 1 or more"),
    ],
)
def test_a_workload_that_cannot_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        Workload(**fields)
    assert str(error.value) == message
