"""Training steps of random networks are the same with and without recomputation, and those of the user's own loop."""

import pytest
import torch

from tests.planner.runtime.training.random_steps import differences, drawn, failure

pytestmark = pytest.mark.attack("answer")


@pytest.mark.parametrize("seed", [*range(4), 204, 395])  # 204 writes to a part, 395 makes 4e-2 of a last digit
def test_a_random_network_trains_as_its_user_would_train_it(seed: int) -> None:
    assert not failure(seed), f"seed {seed}: {drawn(seed).words} with {drawn(seed).case.schedule}"


def test_other_steps_would_be_seen() -> None:
    right = [1.0, 0.5], {"weight": torch.ones(2), "running_mean": torch.zeros(2)}
    assert list(differences(right, right, exact=True)) == []
    nudged = [1.0, 0.5 + 1e-12], {**right[1], "running_mean": torch.tensor([0.0, 1e-3])}
    assert list(differences(nudged, right, exact=True)) == [
        "losses: off by 1.0e-12",
        "running_mean: off by 1.0e-03",
    ]
    assert list(differences(nudged, right, exact=False)) == ["running_mean: off by 1.0e-03"]
    far = right[0], {**right[1], "running_mean": torch.tensor([0.0, 3e-4])}
    assert list(differences(nudged, right, exact=False, moved=[right, far])) == []
    near = right[0], {**right[1], "running_mean": torch.tensor([0.0, 2e-4])}
    assert list(differences(nudged, right, exact=False, moved=[near])) == ["running_mean: off by 1.0e-03"]
    lost = right[0], {"weight": torch.ones(2)}
    assert list(differences(lost, right, exact=True)) == ["only one of the states has ['running_mean']"]
