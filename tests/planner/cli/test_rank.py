"""``python -m planner rank``: ranks started by torchrun, or by hand with what torchrun tells them."""

import json
import os
import signal
import socket
import sys
import time
from itertools import takewhile
from pathlib import Path

import pytest

from costmodels.host.stores import HERE
from planner.cli.rank import main
from planner.plans.files import save_plan
from planner.runtime.checkpoint.shards import write_shards
from planner.runtime.distributed.inference.launcher import ROOT
from simulator.placement import Placement
from tests.children import Process, ran
from tests.planner.cli.started import Started
from tests.planner.runtime.distributed.inference.test_launcher import SOON_S, plan_of
from tests.planner.runtime.small import CORE, cpu, make_plan, program_of, with_device

MODEL = "tests.planner.runtime.distributed.ranks:tied"
SAID = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": HERE, "MASTER_PORT": "4321"}


STEPS = ["meeting the other ranks at the store", "reading the plan", "importing the model", "waiting for 2 ranks"]
"""Progress that the coordinator reports before it measures."""


def until_it_measures(rank: Process) -> list[str]:
    """The steps that a rank reports before it measures."""
    assert rank.stderr is not None
    lines = iter(rank.stderr.readline, "")
    return [line.removesuffix(" …\n") for line in takewhile(lambda line: "measuring" not in line, lines)]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Of a network of four operators, on cpu0 and cpu1 in turns."""
    write_shards(plan_of(), program_of("tied"), tmp_path / "shards")
    return tmp_path / "shards"


@pytest.mark.slow
def test_torchrun_with_the_whole_model(tmp_path: Path) -> None:
    save_plan(plan_of(), tmp_path / "plan.json")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    words = ["-m", "planner", "rank", str(tmp_path / "plan.json"), MODEL, "--json", "--rounds", "1"]
    done = ran([*torchrun, *words], env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["bit_equal"] is True
    assert set(document["measured"]) == {"plan", "one device"}
    assert {row["name"] for row in document["against_prediction"]["devices"]} == {"cpu0", "cpu1"}


@pytest.mark.slow
@pytest.mark.parametrize("n_ranks", [2, 3])
def test_each_rank_with_its_own_shard(shards: Path, started: Started, tmp_path: Path, n_ranks: int) -> None:
    for rank in range(n_ranks):
        started.start(
            rank, n_ranks, shards / "plan.json", shards, "--json", "--rounds", "1", "-o", tmp_path / "run.json"
        )
    (status, out, errors), *others = started.ends()
    assert status == 0, errors
    document = json.loads(out)
    assert (document["bit_equal"], document["differences"]) == (None, None)
    assert set(document["measured"]) == {"plan"}
    assert all(end[:2] == (0, "") for end in others), others
    assert (tmp_path / "run.json").is_file()


@pytest.mark.slow
def test_ranks_that_do_not_fit_together_end_all(shards: Path, started: Started, tmp_path: Path) -> None:
    program = program_of("tied")
    other = make_plan(program, Placement((0, 0, 1, 1)))
    write_shards(other, program, tmp_path / "other")
    started.start(0, 2, shards / "plan.json", shards)
    started.start(1, 2, tmp_path / "other" / "plan.json", tmp_path / "other")
    ends = started.ends()
    assert [status for status, _, _ in ends] in ([2, 2], [2, 1])  # with rank 0 the store is gone
    assert not any("Traceback" in errors for _, _, errors in ends)
    assert "planner: rank 0: rank 1 ('cpu1') has come with another plan (" in ends[0][2]


@pytest.mark.slow
def test_trouble_of_one_rank_ends_all(started: Started, tmp_path: Path) -> None:
    program = program_of("tied")
    write_shards(with_device(plan_of(), 1, cpu("cpu1", cores=(CORE + 4096,))), program, tmp_path / "far")
    for rank in range(3):
        started.start(rank, 3, tmp_path / "far" / "plan.json", tmp_path / "far")
    ends = started.ends()
    assert [ends[0][0], ends[2][0]] == [2, 2]
    trouble = f"device 'cpu1' is bound to core {CORE + 4096}, which this process may not use; "
    assert f"planner: rank 2: {trouble}" in ends[2][2]
    assert f"planner: rank 0: rank 2 ('cpu1') cannot start: {trouble}" in ends[0][2]
    by_when_it_came = (
        "cannot start",
        "the store where the ranks meet is gone; see what rank 0 says",
        "see that rank 0 runs there",
    )
    assert any(words in ends[1][2] for words in by_when_it_came)
    assert not any("Traceback" in errors for _, _, errors in ends)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_ends_all(shards: Path, started: Started, victim: int) -> None:
    for rank in range(2):
        started.start(rank, 2, shards / "plan.json", shards, "--rounds", "1000000")
    assert until_it_measures(started.ranks[0]) == STEPS
    started.ranks[victim].send_signal(signal.SIGKILL)
    killed_s = time.monotonic()
    ends = started.ends()
    assert time.monotonic() - killed_s < SOON_S
    assert ends[victim][0] == -signal.SIGKILL
    assert ends[1 - victim][0] == 1
    assert victim == 0 or "planner: rank 0: rank 1 ('cpu1') is gone: its connection broke" in ends[0][2]


@pytest.mark.slow
def test_an_interrupt_ends_all(shards: Path, started: Started) -> None:
    for rank in range(2):
        started.start(rank, 2, shards / "plan.json", shards, "--rounds", "1000000")
    assert until_it_measures(started.ranks[0]) == STEPS
    started.ranks[0].send_signal(signal.SIGINT)
    ends = started.ends()
    assert [status for status, _, _ in ends] == [130, 0]
    assert not any("Traceback" in errors for _, _, errors in ends)


# What can be said without a second process


def test_without_torchrun_one_line_says_how(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert main(["plan.json", "model.pt2"]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("planner: rank ?: the environment does not say which rank we are (KeyError: 'RANK')")
    assert errors.count("\n") == 1


def alone(monkeypatch: pytest.MonkeyPatch, n_ranks: int) -> None:
    with socket.create_server((HERE, 0)) as free:
        port = free.getsockname()[1]
    for name, value in {**SAID, "RANK": "0", "WORLD_SIZE": str(n_ranks), "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("silence", ["0", "-1", "soon", "inf"])
def test_a_silence_is_a_number_of_seconds(silence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["plan.json", "model.pt2", "--silence", silence])
    assert end.value.code == 2
    assert f"argument --silence: '{silence}' is not a number of seconds above 0" in capsys.readouterr().err


def test_the_wrong_number_of_ranks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shards: Path
) -> None:
    alone(monkeypatch, 7)
    assert main([str(shards / "plan.json"), str(shards)]) == 2
    assert "planner: rank 0: the plan uses 2 devices, there are 7 ranks; " in capsys.readouterr().err


def test_a_rank_that_never_comes_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shards: Path
) -> None:
    monkeypatch.setattr("planner.cli.rank.MEET_S", 0.6)
    alone(monkeypatch, 2)
    assert main([str(shards / "plan.json"), str(shards)]) == 1
    assert "planner: rank 0: rank 1 ('cpu1') did not come within 1 s; see that its " in capsys.readouterr().err


def test_nobody_serves_the_store(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shards: Path
) -> None:
    monkeypatch.setattr("planner.runtime.distributed.transport.rendezvous.STORE_S", 0.5)
    alone(monkeypatch, 2)
    monkeypatch.setenv("RANK", "1")
    assert main([str(shards / "plan.json"), str(shards)]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith(f"planner: rank 1: no store at {HERE}:")
    assert errors.endswith("; see that rank 0 runs there\n")
    assert errors.count("\n") == 1
