"""A cost table with accelerators next to a host refuses what it would not count."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodels.contention_costs import ContentionCosts
from graphs.common.errors import InputError
from tests.planner.literature.placement.offloads import offload_table

TABLE = offload_table([[1, 1, 5]] * 2, [(0, (1,), 10)])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"contention": ContentionCosts(np.full((2, 3), 0.5))},
            "the cost table has both offload and slowdown; accelerators do not share their host's memory: leave out "
            "the slowdown",
        ),
        (
            {"overlap": True},
            "the cost table has offload and overlap or overhead_s; all that transfers cost is in offload: leave out "
            "the others",
        ),
    ],
)
def test_costs_that_do_not_count_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        replace(TABLE, **fields)
    assert str(error.value) == said


def test_its_arrays_are_checked_and_kept_with_their_devices() -> None:
    with pytest.raises(
        InputError, match=r"^the cost table's offload\.store_s is -1\.0 for tensor 't0'; costs are 0 or"
    ):
        replace(TABLE, offload=replace(TABLE.offload, store_s=TABLE.offload.store_s - 11))
    chosen = TABLE.of_devices([2, 0])
    assert chosen.offload.host.tolist() == [True, False]  # type: ignore[attr-defined]  # the type of table stays
