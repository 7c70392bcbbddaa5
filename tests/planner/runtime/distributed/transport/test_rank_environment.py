"""Who a rank is, by its environment."""

from collections.abc import Mapping
from typing import Any

import pytest

from costmodels.host.stores import HERE
from graphs.common.errors import InputError
from planner.runtime.distributed.transport.rendezvous import RankEnvironment

TOLD = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": HERE, "MASTER_PORT": "4321"}


def told(**change: str | None) -> Mapping[str, str]:
    return {name: value for name, value in (TOLD | change).items() if value is not None}


def test_what_torchrun_tells() -> None:
    assert RankEnvironment.of(told()) == RankEnvironment(1, 2, HERE, 4321, served=False, attempt=0)
    again = told(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="2")
    assert RankEnvironment.of(again) == RankEnvironment(1, 2, HERE, 4321, served=True, attempt=2)


@pytest.mark.parametrize(
    ("change", "what"), [({"RANK": None}, "KeyError: 'RANK'"), ({"MASTER_PORT": "x"}, "ValueError: invalid literal")]
)
def test_what_torchrun_has_not_told(change: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError) as error:
        RankEnvironment.of(told(**change))
    assert str(error.value).startswith(f"the environment does not say which rank we are ({what}")
    assert str(error.value).endswith(
        "; start with torchrun --nproc-per-node=N -m planner rank PLAN MODEL, or with planner run --processes"
    )
