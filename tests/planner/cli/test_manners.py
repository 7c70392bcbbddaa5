"""What every command is to a shell: exit statuses, JSON alone on stdout, silence, one line for bad input, Ctrl-C."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from costmodels.clusterwriter import write_cluster
from graphs.files import write_graph
from planner.cli import COMMANDS
from planner.planfile import save_plan
from tests.planner.cli.given import MNIST, PAPER, ROOT
from tests.planner.view.samples import chain_graph, chain_plan, cluster, random_plan

MODULES = ["stem", "stem", "block", "block"]
PROBLEM = {
    "maxFPGAs": 2,
    "maxCPUs": 0,
    "maxSizePerFPGA": 10.0,
    "nodes": [
        {"id": n, "supportedOnFpga": 1, "cpuLatency": 9.0, "fpgaLatency": 1.0, "isBackwardNode": 0, "size": 3}
        for n in (1, 2)
    ],
    "edges": [{"sourceId": 1, "destId": 2, "cost": 0}],
}

DONE = {
    "import": [MNIST, "-o", "mnist.json"],
    "plan": ["graph.json", "--cluster", "desk.toml", "--goal", "throughput", "-o", "p.json"],
    "solve": ["problem.json", "--goal", "throughput", "-o", "answer.json"],
    "simulate": ["plan.json"],
    "compare": [MNIST, "--cluster", "paper.toml", "--batch", "2", "--time-limit", "1"],
    "explain": ["plan.json", "--time-limit", "1"],
    "diff": ["plan.json", "plan.json"],
    "show": ["plan.json", "-o", "plan.svg"],
    "export": ["plan.json", "--to", "networkx"],
    "import-map": ["map.json", "graph.json", "--cluster", "desk.toml", "-o", "hand.json"],
    "schema": ["plan"],
    "completion": ["fish"],
}
"""What ends well; those that measure or run have tests of their own."""

MEASURING = {"calibrate", "run", "verify", "shard"}

BAD = {
    "import": ["no.onnx"],
    "calibrate": ["no.onnx"],
    "plan": ["graph.json", "--cluster", "no.toml", "--goal", "latency"],
    "solve": ["no.json", "--goal", "latency"],
    "simulate": ["no.json"],
    "compare": [MNIST, "--cluster", "no.toml"],
    "explain": ["graph.json"],
    "diff": ["plan.json", "no.json"],
    "run": ["no.json", MNIST],
    "verify": ["no.json", MNIST],
    "shard": ["no.json", MNIST, "-o", "shards"],
    "show": ["problem.json"],
    "export": ["plan.json", "--to", "torch-schedule-csv"],
    "import-map": ["no.json", "graph.json", "--cluster", "desk.toml"],
    "schema": ["soup"],
    "completion": ["tcsh"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_plan(chain_plan(MODULES, 2), tmp_path / "plan.json")
    write_graph(chain_graph(MODULES), tmp_path / "graph.json")
    write_cluster(cluster(), tmp_path / "desk.toml")
    (tmp_path / "paper.toml").write_text(PAPER)
    (tmp_path / "problem.json").write_text(json.dumps(PROBLEM))
    (tmp_path / "map.json").write_text(json.dumps({"stem": "cpu0", "block": "cpu1"}))
    return tmp_path


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)}


def ran(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "planner", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(),
        timeout=120,
        check=False,
    )


def test_every_command_is_tried() -> None:
    assert DONE.keys() | MEASURING == BAD.keys() == set(COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("command", DONE)
def test_0_is_done_and_json_is_alone_on_stdout(command: str, folder: Path) -> None:
    done = ran(folder, command, *DONE[command], "--json")
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), dict | list)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["plan", "explain", "show", "solve"])
def test_quiet_says_nothing(command: str, folder: Path) -> None:
    done = ran(folder, command, *DONE[command], "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["schema", "completion", "export"])
def test_quiet_leaves_the_document_that_was_asked_for(command: str, folder: Path) -> None:
    done = ran(folder, command, *DONE[command], "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ran(folder, command, *DONE[command]).stdout != ""


@pytest.mark.slow
@pytest.mark.parametrize("command", BAD)
def test_2_is_bad_input_in_one_line(command: str, folder: Path) -> None:
    before = sorted(path.name for path in folder.iterdir())
    done = ran(folder, command, *BAD[command])
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.endswith(" …")]  # progress
    assert len(lines) == 1
    assert re.match(r"planner[ \w-]*: ", lines[0])
    assert sorted(path.name for path in folder.iterdir() if path.name != "cache") == before


@pytest.mark.slow
def test_1_is_no_plan(folder: Path) -> None:
    (folder / "small.toml").write_text((folder / "desk.toml").read_text().replace('memory = "1 MB"', 'memory = "1 B"'))
    done = ran(folder, "plan", "graph.json", "--cluster", "small.toml", "--goal", "latency", "-o", "none.json")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith("planner: no plan (infeasible): ")
    assert not (folder / "none.json").exists()
    done = ran(folder, "simulate", "plan.json", "--set", "*.memory=1B", "--replan")
    assert done.returncode == 1
    (folder / "problem.json").write_text(json.dumps(PROBLEM | {"maxSizePerFPGA": 1.0}))
    assert ran(folder, "solve", "problem.json", "--goal", "throughput").returncode == 1


def interrupted(folder: Path, words: list[str]) -> tuple[bytes, bytes, int]:
    """stdout, stderr and status of a command that gets Ctrl-C in the middle of its search."""
    command = [sys.executable, "-m", "planner", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, cwd=folder, env=environment()) as process:
        try:
            assert process.stderr is not None
            seen = b""
            while b"planning" not in seen:
                assert select.select([process.stderr], [], [], 60)[0], seen
                part = os.read(process.stderr.fileno(), 4096)
                assert part, seen
                seen += part
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    return out, seen + err, process.returncode


@pytest.mark.slow
@pytest.mark.parametrize("goal", ["throughput", "latency"])
def test_130_is_interrupted(goal: str, folder: Path) -> None:
    plan = random_plan(0, n_ops=300, n_devices=4)
    write_graph(plan.graph, folder / "large.json")
    fast = cluster(4)  # with slow devices there is much to gain, and the search has no end
    slow = [replace(device, flops_per_s={"float32": 1e6}, memory_bytes_per_s=1e6) for device in fast.devices]
    write_cluster(replace(fast, devices=tuple(slow)), folder / "four.toml")
    before = sorted(folder.iterdir())
    search = ["--gap", "0", "--time-limit", "100", "-o", "x"]
    out, err, status = interrupted(folder, ["plan", "large.json", "--cluster", "four.toml", "--goal", goal, *search])
    assert (status, out) == (130, b"")
    assert err.splitlines()[-1] == b"planner: interrupted"
    assert [path for path in sorted(folder.iterdir()) if path.name != "cache"] == before


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(folder: Path) -> None:
    command = f"{sys.executable} -m planner schema plan | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, cwd=folder, env=environment()
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "{\n", "")
