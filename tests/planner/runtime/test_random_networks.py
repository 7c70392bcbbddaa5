"""Default plans of random networks give what the module gives; `tests.benchmarks.attack` tries thousands."""

import pytest
import torch

from tests.planner.runtime.random_answers import differences, failure, shrunk
from tests.planner.runtime.random_networks import Network, Step, random_network

pytestmark = pytest.mark.attack("answer")


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # of a layer without outputs
@pytest.mark.parametrize("seed", range(12))
def test_a_random_network_answers_as_the_module_does(seed: int) -> None:
    assert not failure(seed), f"seed {seed}: {[step.words for step in shrunk(seed).steps]}"


def test_a_seed_draws_the_same_network_again() -> None:
    (one, x), (other, y) = random_network(7), random_network(7)
    assert [step.words for step in one.steps] == [step.words for step in other.steps]
    assert torch.equal(x, y)
    assert torch.equal(one(x)[0], other(y)[0])


def test_a_wrong_answer_would_be_seen() -> None:
    right = torch.tensor([[1.0, 2.0], [3.0, float("nan")]])
    assert list(differences(right.clone(), right, right.double)) == []
    assert list(differences(right.nan_to_num(), right, right.double)) == ["[0] has 0 NaN and 0 inf, should be 1 and 0"]
    strides = list(differences(right.t().contiguous().t(), right, right.double))
    assert strides == ["[0] is torch.float32 (2, 2) (1, 2), should be torch.float32 (2, 2) (2, 1)"]
    off = list(differences(right + torch.tensor([[0.3, 0.0], [0.0, 0.0]]), right, right.double))
    assert off == ["[0] is off by 1.0e-01 of the largest value, PyTorch by 0.0e+00"]


def test_an_error_of_a_plan_is_a_failure_that_shrinks_to_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_seed: int, network: Network | None = None) -> str:
        return "no tanh" if any(step.words == "tanh" for step in (network or drawn).steps) else ""

    drawn = Network([Step(name, lambda _, v: v[-1].tanh()) for name in ("relu", "tanh", "relu")])
    monkeypatch.setattr("tests.planner.runtime.random_answers.failure", refuse)
    monkeypatch.setattr("tests.planner.runtime.random_answers.random_network", lambda _: (drawn, torch.ones(2)))
    assert [step.words for step in shrunk(0).steps] == ["tanh"]
