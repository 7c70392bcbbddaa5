"""A training plan started by torchrun: with the whole model on every rank, and with a shard on each."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]  # it is public

from graphs.errors import InputError
from planner.cli import main
from planner.cli.training_rank import train_rank
from planner.plans import load_plan
from tests.planner.cli.given import MNIST, ROOT, pair_here

LIMIT_S = 200.0


@pytest.fixture(autouse=True)
def _planned(capsys: pytest.CaptureFixture[str]) -> None:
    Path("pair.toml").write_text(pair_here(), encoding="utf-8")
    command = ["plan", MNIST, "--cluster", "pair.toml", "--goal", "training", "--micro-batches", "2"]
    assert main([*command, "--pin", "conv*=a", "--pin", "fc*=b"]) == 0
    capsys.readouterr()


def torchrun(n_ranks: int, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={n_ranks}", "--standalone"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, "-m", "planner.runtime", "plan.json", *words, "--rounds", "1"],
        capture_output=True, text=True, env=environment, timeout=LIMIT_S, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_with_the_whole_model() -> None:
    done = torchrun(2, MNIST)
    assert done.returncode == 0, done.stderr
    assert "steps of 2 micro-batches of 1 by 1f1b" in " ".join(done.stdout.split())
    assert "the gradients are bit-equal to the unsplit model's" in done.stdout


@pytest.mark.slow
def test_with_a_shard_on_each_rank(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shard", "plan.json", MNIST, "-o", "shards", "-q"]) == 0
    capsys.readouterr()
    done = torchrun(2, "shards", "--json", "-o", "run.json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["bit_equal"] is None
    assert found["measured"]["step_s"] > 0
    assert [figure["name"] for figure in found["against_prediction"]["devices"]] == ["a", "b"]
    assert Path("run.json").is_file()


@pytest.mark.slow
def test_replicas(capsys: pytest.CaptureFixture[str]) -> None:
    """Two of one device, which share the core here as they would not elsewhere."""
    command = ["plan", MNIST, "--cluster", "pair.toml", "--goal", "training", "--micro-batches", "2"]
    assert main([*command, "--replicas", "2", "--force"]) == 0
    capsys.readouterr()
    done = torchrun(2, MNIST)
    assert done.returncode == 0, done.stderr
    assert "the gradients are bit-equal to the unsplit model's" in done.stdout


def test_as_many_ranks_as_devices() -> None:
    """Before anybody waits for another."""
    with pytest.raises(InputError) as error:
        train_rank(argparse.Namespace(model=MNIST), load_plan("plan.json"), HashStore(), 0, 3)
    assert str(error.value) == "the plan trains on 2 devices (a, b), and there are 3 ranks; start 2, one for each"
