"""``planner verify``: equal, different, or bad input."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from planner.cli import main
from tests.planner.cli.given import MNIST, pair_here
from tests.planner.runtime.verification.breaking import broken, failing_for_good

PINS = ["--pin", "conv*=a", "--pin", "relu*=a", "--pin", "fc*=b"]


@pytest.fixture
def planned(capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    def plan(goal: str = "latency", kind: str = "cpu") -> None:
        Path("pair.toml").write_text(pair_here(kind), encoding="utf-8")
        pins = PINS[:2] + PINS[4:] if goal == "training" else PINS
        assert main(["plan", MNIST, "--cluster", "pair.toml", "--goal", goal, *pins]) == 0
        capsys.readouterr()

    return plan


def relu_and_one(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) + 1


def failing(_x: torch.Tensor) -> torch.Tensor:
    raise ZeroDivisionError


def test_equal(planned: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    planned()
    assert main(["verify", "plan.json", MNIST]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("mnist: ")
    assert text.endswith("on a, b are bit-equal to the reference model's")


def test_gradients(planned: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    planned()
    assert main(["verify", "plan.json", MNIST, "--training", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["equal"], found["finding"], found["tolerance"]) == (True, None, {})
    assert found["n_gradients"] > 8  # of four weights and four biases, and of what crosses


def test_a_training_plan(planned: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    planned("training")
    assert main(["verify", "plan.json", MNIST]) == 0
    # the second stage's input and the result; its gradient and those of four weights and four biases
    text = " ".join(capsys.readouterr().out.split())
    assert text == ("mnist: 2 tensors and 9 gradients from 2 stages on a, b are bit-equal to the reference model's")


def test_within_a_tolerance(planned: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    planned(kind="other")
    assert main(["verify", "plan.json", MNIST]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.endswith("on a, b are equal to the reference model's within 0.002 (float32) of the largest element")
    assert main(["verify", "plan.json", MNIST, "--tolerance", "0.25", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tolerance"]["float32"] == 0.25


def test_different(planned: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    planned()
    with broken("relu_1", relu_and_one):
        assert main(["verify", "plan.json", MNIST]) == 1
        shown = capsys.readouterr()
        assert main(["verify", "plan.json", MNIST, "--json"]) == 1
        found = json.loads(capsys.readouterr().out)
        assert main(["verify", "plan.json", MNIST, "--quiet"]) == 1
        quiet = capsys.readouterr()
    assert shown.out.split()[-4:] == ["compared", "until", "one", "differs"]
    where, mismatch = shown.err.splitlines()[-2:]
    assert where.startswith("planner: '")
    assert " on a differs: " in where
    assert mismatch.startswith(
        "planner: operator 'relu_1' (aten.relu.default) in module 'relu2' is the first that differs on the right "
        "inputs: its output 'relu_1', 12,544 of 12,544 elements, by 1 at most"  # 64 x 14 x 14
    )
    assert quiet == ("", f"{where}\n{mismatch}\n")
    assert found["finding"]["operator"]["name"] == "relu_1"
    assert found["finding"]["operator"]["repeatable"] is True
    assert found["finding"]["operator"]["deviation"]["n_different"] == 12_544
    assert found["equal"] is False


def test_a_stage_that_fails(planned: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    planned()
    with failing_for_good("relu_1", failing):
        assert main(["verify", "plan.json", MNIST]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("planner: stage ")
    assert line.endswith(" on 'a' failed: ZeroDivisionError: ; the reference model does not")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["plan.json", "examples.networks:cifar10"], "the plan is for 'mnist'"),
        (["plan.json", "nowhere:net"], "no Python module 'nowhere'"),
        (["missing.json", MNIST], "cannot read the plan 'missing.json'"),
    ],
)
def test_bad_input(
    words: list[str], text: str, planned: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    planned()
    assert main(["verify", *words]) == 2
    assert text in capsys.readouterr().err.splitlines()[-1]


def test_a_tolerance_that_is_none() -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["verify", "plan.json", MNIST, "--tolerance", "2"])
    assert stopped.value.code == 2
