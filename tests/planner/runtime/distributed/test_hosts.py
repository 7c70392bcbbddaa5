"""A plan over two hosts: a rank in a network namespace each, joined by a cable with a latency and a bandwidth."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from planner.cli import main
from planner.plans.files import save_plan
from planner.runtime.distributed.inference.launcher import ROOT
from tests.children import Process, running
from tests.planner.cli.given import MNIST, pair_here
from tests.planner.runtime.distributed.hosts import DEVICE, Host, two_hosts
from tests.planner.runtime.distributed.inference.test_launcher import SOON_S, plan_of
from tests.planner.runtime.small import PATIENCE_S

MODEL = "tests.planner.runtime.distributed.ranks:tied"
LATENCY_S, BYTES_PER_S = 0.02, 1e7
PORT = 29_517


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    try:
        with two_hosts(LATENCY_S, BYTES_PER_S) as both:
            yield both
    except OSError as error:
        pytest.skip(f"this machine makes no network namespaces: {error}")


class Ranks:
    """Both ranks of the plan in a folder, one on each host."""

    def __init__(
        self, hosts: tuple[Host, Host], folder: Path, *options: str, model: str = MODEL, alone: bool = False
    ) -> None:
        command = ["planner", "rank", str(folder / "plan.json"), model, *options]
        told = {"WORLD_SIZE": "2", "MASTER_ADDR": hosts[0].address, "MASTER_PORT": str(PORT), "OMP_NUM_THREADS": "1"}
        told["GLOO_SOCKET_IFNAME"] = DEVICE  # what torch itself joins training by
        self._undo = ExitStack()
        self._starts = [
            running(host.command(command, alone), env={**os.environ, **told, "RANK": str(rank)}, cwd=ROOT)
            for rank, host in enumerate(hosts)
        ]

    def __enter__(self) -> list[Process]:
        return [self._undo.enter_context(start) for start in self._starts]

    def __exit__(self, *_: object) -> None:
        self._undo.close()


@pytest.fixture
def inference(tmp_path: Path) -> Path:
    save_plan(plan_of(), tmp_path / "plan.json")
    return tmp_path


@pytest.fixture
def training(tmp_path: Path) -> Path:
    (tmp_path / "pair.toml").write_text(pair_here(), encoding="utf-8")
    command = ["plan", MNIST, "--cluster", str(tmp_path / "pair.toml"), "--goal", "training", "--micro-batches", "2"]
    assert main([*command, "--pin", "conv*=a", "--pin", "fc*=b", "-o", str(tmp_path / "plan.json"), "-q"]) == 0
    return tmp_path


@pytest.mark.slow
def test_the_answers_are_the_same_and_take_their_way(hosts: tuple[Host, Host], inference: Path) -> None:
    with Ranks(hosts, inference, "--json", "--rounds", "1") as ranks:
        (out, errors), (_, others) = (process.communicate(timeout=PATIENCE_S) for process in ranks)
        assert [process.returncode for process in ranks] == [0, 0], errors + others
    document = json.loads(out)
    assert document["bit_equal"] is True
    # the operators are on cpu0, cpu1, cpu0 and cpu1, and the coordinator is beside cpu0: four ways
    assert document["measured"]["plan"]["latency_s"] > 4 * LATENCY_S


@pytest.mark.slow
def test_a_cable_that_is_cut_is_told(hosts: tuple[Host, Host], inference: Path) -> None:
    with Ranks(hosts, inference, "--rounds", "1000000", alone=True) as (near, far):
        assert near.stderr is not None
        assert any("measuring" in line for line in iter(near.stderr.readline, ""))
        hosts[0].cut.set()
        cut_s = time.monotonic()
        _, errors = near.communicate(timeout=PATIENCE_S)
        assert time.monotonic() - cut_s < 2 * SOON_S  # it is told within 5 s; then all is closed
        assert near.returncode == 1
        assert "rank 1 ('cpu1') is gone: nothing was heard of it for 4" in errors
        far.communicate(timeout=PATIENCE_S)
        assert far.returncode == 1


@pytest.mark.slow
def test_a_host_that_is_gone_is_told(hosts: tuple[Host, Host], inference: Path) -> None:
    with Ranks(hosts, inference, "--rounds", "1000000") as (near, far):
        assert near.stderr is not None
        assert any("measuring" in line for line in iter(near.stderr.readline, ""))
        far.send_signal(signal.SIGKILL)
        killed_s = time.monotonic()
        _, errors = near.communicate(timeout=PATIENCE_S)
        assert time.monotonic() - killed_s < SOON_S
        assert near.returncode == 1
        assert "rank 1 ('cpu1') is gone: its connection broke; start the runner again" in errors


@pytest.mark.slow
def test_a_step_is_trained_over_the_cable(hosts: tuple[Host, Host], training: Path) -> None:
    with Ranks(hosts, training, "--json", "--rounds", "1", model=MNIST) as ranks:
        (out, errors), (_, others) = (process.communicate(timeout=PATIENCE_S) for process in ranks)
        assert [process.returncode for process in ranks] == [0, 0], errors + others
    document = json.loads(out)
    assert document["bit_equal"] is True
    ways = {row["name"]: row["measured_s"] for row in document["against_prediction"]["links"]}
    assert ways.keys() == {"a → b", "b → a"}
    assert min(ways.values()) > LATENCY_S


@pytest.mark.slow
def test_a_cable_that_is_cut_is_told_to_those_who_train(hosts: tuple[Host, Host], training: Path) -> None:
    """Both are told: neither of them could do anything but wait."""
    with Ranks(hosts, training, "--rounds", "1000000", model=MNIST, alone=True) as ranks:
        first = ranks[0].stderr
        assert first is not None
        assert any("measuring" in line for line in iter(first.readline, ""))
        hosts[0].cut.set()
        for number, process in enumerate(ranks):
            _, errors = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 1
            other = 1 - number
            gone = f"planner: rank {number}: rank {other} ('{'ab'[other]}') is gone: nothing was heard of it for 4"
            assert gone in errors
