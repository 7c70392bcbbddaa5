"""Default plans of random networks give what the module gives; `tests.benchmarks.attack` tries thousands."""

import pytest
import torch
from torch import nn

import planner
from graphs.importers.from_torch import program_from_module
from tests.planner.runtime.random_answers import Rounded, devices_of, differences, failure, roundings, shrunk
from tests.planner.runtime.random_networks import Network, Step, random_network
from tests.planner.runtime.sampled_answers import failure as failure_of_sample
from tests.planner.runtime.sampled_answers import outcome

pytestmark = pytest.mark.attack("answer")


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # of a layer without outputs
@pytest.mark.parametrize("seed", [*range(12), 884])  # 884 makes complex numbers of halves
def test_a_random_network_answers_as_the_module_does(seed: int) -> None:
    assert not failure(seed), f"seed {seed}: {[step.words for step in shrunk(seed).steps]}"


def test_a_seed_draws_the_same_network_again() -> None:
    (one, x), (other, y) = random_network(7), random_network(7)
    assert [step.words for step in one.steps] == [step.words for step in other.steps]
    assert torch.equal(x, y)
    assert torch.equal(one(x)[0], other(y)[0])


def test_a_wrong_answer_would_be_seen() -> None:
    right = torch.tensor([[1.0, 2.0], [3.0, float("nan")]])

    def rounded() -> list[Rounded]:
        return [(right, right.double())]

    assert list(differences(right.clone(), right, rounded)) == []
    assert list(differences(right.nan_to_num(), right, rounded)) == ["[0] has 0 NaN and 0 inf, should be 1 and 0"]
    strides = list(differences(right.t().contiguous().t(), right, rounded))
    assert strides == ["[0] is torch.float32 (2, 2) (1, 2), should be torch.float32 (2, 2) (2, 1)"]
    off = list(differences(right + torch.tensor([[0.3, 0.0], [0.0, 0.0]]), right, rounded))
    assert off == ["[0] is off by 3.0e-01, rounding by 0.0e+00, where the largest is 3.0e+00"]


def test_what_rounding_does_to_a_norm_of_constant_rows_is_no_wrong_answer() -> None:
    """Seed 1408: it is 0 to PyTorch, and 4e-5 if the mean of a row is rounded."""
    rows = Network([Step("constant", lambda _, v: v[-1][:, :1].expand(8, 256)), _norm_of(256)]).eval()
    x = torch.randn(8, 256)
    with torch.no_grad():
        zero = rows(x)
        assert list(differences(zero + 4e-5, zero, lambda: roundings(rows, x))) == []
        (far,) = differences(zero + 1e-2, zero, lambda: roundings(rows, x))
    assert far.startswith("[0] is off by 1.0e-02, rounding by ")


def _norm_of(n: int) -> Step:
    norm = nn.LayerNorm(n)
    return Step("norm", lambda m, v: m[0](v[-1]), (norm,))


def test_an_error_of_a_plan_is_a_failure_that_shrinks_to_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_seed: int, network: Network | None = None) -> str:
        return "no tanh" if any(step.words == "tanh" for step in (network or drawn).steps) else ""

    drawn = Network([Step(name, lambda _, v: v[-1].tanh()) for name in ("relu", "tanh", "relu")])
    monkeypatch.setattr("tests.planner.runtime.random_answers.failure", refuse)
    monkeypatch.setattr("tests.planner.runtime.random_answers.random_network", lambda _: (drawn, torch.ones(2)))
    assert [step.words for step in shrunk(0).steps] == ["tanh"]


@pytest.mark.slow  # torch's descriptions of its operators take seconds to load
@pytest.mark.parametrize("seed", range(4))
def test_a_network_around_a_sample_answers_as_it_does_itself(seed: int) -> None:
    said, words = failure_of_sample(seed)
    assert words
    assert not said, words


@pytest.mark.slow
@pytest.mark.parametrize("seed", [15608, 16003, 16260, 17402])  # no axis, two of strides, a number of zeros
def test_a_network_around_a_sample_that_broke_through(seed: int) -> None:
    assert outcome(seed)[:2] == ("right", "")


@pytest.mark.parametrize("shape", [(0, 4), (2, 0, 4)])
def test_inputs_without_elements_have_a_plan(shape: tuple[int, ...]) -> None:
    network, x = Network([_norm_of(4)]).eval(), torch.ones(shape)
    program = program_from_module(network, (x,))
    plan = planner.plan(program, cluster=devices_of(1), goal="latency")
    with planner.start(plan, program) as runner:
        assert runner(x).shape == shape
    assert plan.workload.batch == max(shape[0], 1)
