"""planner compare: step time against memory."""

import json
from pathlib import Path

import pytest

from planner.cli import main
from tests.planner.cli.given import MNIST, PAPER

pytestmark = pytest.mark.usefixtures("_paper")


def test_it_shows_what_is_worth_choosing_between(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", MNIST, "--cluster", "paper.toml", "--batch", "4", "--optimizer", "adam", "--time-limit", "60"]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert f"{MNIST}: steps of 4 samples" in shown
    assert "slower with no less memory: --all shows them" in shown
    assert main([*command, "--all", "--json"]) == 0
    choices = json.loads(capsys.readouterr().out)["choices"]
    assert any(choice["best"] for choice in choices)
    assert not all(choice["best"] for choice in choices)
    assert {choice["micro_batches"] * choice["samples"] * choice["replicas"] for choice in choices} == {4}
    assert {choice["replicas"] for choice in choices} == {1, 2}
    assert {choice["recompute"] for choice in choices} == {False, True}
    assert all(choice["peak_bytes"] == max(choice["memory_bytes"].values()) for choice in choices)


def test_nothing_that_fits_is_exit_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    Path("paper.toml").write_text(PAPER.replace("1 GiB", "1 KiB"))
    assert main(["compare", MNIST, "--cluster", "paper.toml", "--batch", "2", "--time-limit", "60"]) == 1
    told = capsys.readouterr().err
    assert "planner: nothing fits into memory; take more or larger devices, or a smaller batch" in told
