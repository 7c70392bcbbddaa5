"""Switches of PyTorch go to another process as they are here."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from graphs.common.errors import InputError
from planner.runtime.stages.numerics import IN_PROCESSES, check_numerics, numerics, numerics_to_text, use_numerics

OTHER: dict[str, Any] = {
    "torch.set_default_dtype": "float64",
    "torch.use_deterministic_algorithms": [True, True],
    "torch.backends.quantized.engine": min(torch.backends.quantized.supported_engines),
}
"""What else a switch can be, where it is not on or off."""


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    before = numerics_to_text()
    yield
    use_numerics(before)
    assert numerics_to_text() == before


@pytest.mark.attack("answer")
@pytest.mark.parametrize("name", IN_PROCESSES)
def test_a_switch_is_told_set_and_missed(name: str) -> None:
    before = numerics(IN_PROCESSES)
    other = OTHER.get(name, "ieee" if name.startswith("the precision") else not before[name])
    if other == before[name]:
        other = "tf32"
    use_numerics(json.dumps({**before, name: other}))
    assert numerics(IN_PROCESSES)[name] == other
    with pytest.raises(InputError) as error:
        check_numerics(before, {name: IN_PROCESSES[name]})
    assert str(error.value) == (
        f"{name} is {other} here, and was {before[name]} when the runner was started, which its devices keep to; start "
        "the runner again, or switch back"
    )


def test_what_a_user_switches_is_seen() -> None:
    before = numerics(IN_PROCESSES)
    torch.set_float32_matmul_precision("medium")
    with pytest.raises(InputError, match=r"the precision of (cuda|mkldnn)\.matmul is (tf32|bf16) here"):
        check_numerics(before, IN_PROCESSES)
