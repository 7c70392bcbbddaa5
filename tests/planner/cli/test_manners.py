"""What every command is to a shell: exit statuses, JSON alone on stdout, silence, one line for bad input, Ctrl-C."""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from costmodels.cluster.one_line import catalogue_cluster
from costmodels.cluster.writer import write_cluster
from graphs.files import write_graph
from planner.cli import COMMANDS, main
from planner.plans.files import load_plan, save_plan
from planner.plans.runs import load_run
from tests import children
from tests.children import LIMIT_S, Completed, Process, running
from tests.planner.cli.given import MNIST, PAPER, ROOT, pair_here
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
    "choose": ["gpt.json", "--cluster", "gpus.toml", "--global-batch", "4"],
    "fit": ["llama.json", "--cluster", "gpus.toml"],
    "explain": ["plan.json", "--time-limit", "1"],
    "diff": ["plan.json", "plan.json"],
    "show": ["plan.json", "-o", "plan.svg"],
    "export": ["plan.json", "--to", "networkx"],
    "import-map": ["map.json", "graph.json", "--cluster", "desk.toml", "-o", "hand.json"],
    "schema": ["plan"],
    "devices": ["RTX"],
    "completion": ["fish"],
}
"""What ends well; those that measure or run have tests of their own."""

MEASURING = {"calibrate", "tune", "run", "verify", "shard"}

LLAMA = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2}
LLAMA |= {"num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256}

BAD = {
    "import": ["no.onnx"],
    "calibrate": ["no.onnx"],
    "plan": ["graph.json", "--cluster", "no.toml", "--goal", "latency"],
    "tune": ["graph.json", "--cluster", "no.toml", "--goal", "latency"],
    "solve": ["no.json", "--goal", "latency"],
    "simulate": ["no.json"],
    "choose": ["no.json", "--cluster", "gpus.toml", "--global-batch", "4"],
    "fit": ["no.gguf", "--cluster", "gpus.toml"],
    "explain": ["graph.json"],
    "diff": ["plan.json", "no.json"],
    "run": ["no.json", MNIST],
    "verify": ["no.json", MNIST],
    "shard": ["no.json", MNIST, "-o", "shards"],
    "show": ["problem.json"],
    "export": ["plan.json", "--to", "torch-schedule-csv"],
    "import-map": ["no.json", "graph.json", "--cluster", "desk.toml"],
    "schema": ["soup"],
    "devices": ["soup"],
    "completion": ["tcsh"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_plan(chain_plan(MODULES, 2), tmp_path / "plan.json")
    write_graph(chain_graph(MODULES), tmp_path / "graph.json")
    write_cluster(cluster(), tmp_path / "desk.toml")
    (tmp_path / "paper.toml").write_text(PAPER)
    (tmp_path / "problem.json").write_text(json.dumps(PROBLEM))
    (tmp_path / "llama.json").write_text(json.dumps(LLAMA))
    (tmp_path / "gpt.json").write_text(json.dumps({"layers": 2, "hidden": 64, "heads": 2}))
    write_cluster(catalogue_cluster("A100-SXM-80GB", 2, "NVLink3"), tmp_path / "gpus.toml")
    (tmp_path / "map.json").write_text(json.dumps({"stem": "cpu0", "block": "cpu1"}))
    return tmp_path


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)}


def ran(folder: Path, *words: str) -> Completed:
    return children.ran([sys.executable, "-m", "planner", *words], cwd=folder, env=environment(), check=False)


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
@pytest.mark.usefixtures("afresh")
def test_1_is_no_plan(folder: Path) -> None:
    (folder / "small.toml").write_text((folder / "desk.toml").read_text().replace('memory = "1 MB"', 'memory = "1 B"'))
    done = ran(folder, "plan", "graph.json", "--cluster", "small.toml", "--goal", "latency", "-o", "none.json")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith("planner: no plan (infeasible): ")
    assert not (folder / "none.json").exists()


@pytest.mark.slow
def test_1_is_no_plan_of_other_commands_either(folder: Path) -> None:
    assert ran(folder, "simulate", "plan.json", "--set", "*.memory=1B", "--replan").returncode == 1
    (folder / "problem.json").write_text(json.dumps(PROBLEM | {"maxSizePerFPGA": 1.0}))
    assert ran(folder, "solve", "problem.json", "--goal", "throughput").returncode == 1


@contextmanager
def searching(folder: Path, words: list[str], begun: str = "planning") -> Iterator[Process]:
    """A command in the middle of its search."""
    with running([sys.executable, "-m", "planner", *words], cwd=folder, env=environment()) as process:
        assert process.stderr is not None
        seen = ""
        while begun not in seen:
            part = os.read(process.stderr.fileno(), 4096).decode()
            assert part, seen
            seen += part
        yield process


@pytest.fixture
def endless(folder: Path) -> list[str]:
    """The words of a search for much that is to gain, with slow devices, that has no end of its own."""
    write_graph(random_plan(0, n_ops=300, n_devices=4).graph, folder / "large.json")
    fast = cluster(4)
    slow = [replace(device, flops_per_s={"float32": 1e6}, memory_bytes_per_s=1e6) for device in fast.devices]
    write_cluster(replace(fast, devices=tuple(slow)), folder / "four.toml")
    return ["plan", "large.json", "--cluster", "four.toml", "--gap", "0", "--time-limit", "100", "-o", "best.json"]


@pytest.mark.slow
@pytest.mark.attack("file")
@pytest.mark.parametrize(
    ("goal", "number"), [("throughput", signal.SIGINT), ("latency", signal.SIGINT), ("throughput", signal.SIGTERM)]
)
def test_130_is_interrupted_and_the_best_is_written(
    goal: str, number: signal.Signals, folder: Path, endless: list[str]
) -> None:
    with searching(folder, [*endless, "--goal", goal]) as process:
        time.sleep(2)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "planner: interrupted: 'best.json' is the best plan until then"
    assert "no plan can be more than" in out
    assert load_plan(folder / "best.json").evaluation.feasible
    assert not list(folder.glob(".*"))


@pytest.mark.slow
@pytest.mark.attack("process")
@pytest.mark.parametrize(("goal", "processes"), [("throughput", ["--processes"]), ("training", [])])
def test_what_a_run_has_measured_until_ctrl_c_is_shown(goal: str, processes: list[str], folder: Path) -> None:
    (folder / "pair.toml").write_text(pair_here())
    assert ran(folder, "plan", MNIST, "--cluster", "pair.toml", "--goal", goal, "-o", "run.plan").returncode == 0
    words = ["run", "run.plan", MNIST, *processes, "--rounds", "1000000", "-o", "run.json"]
    with searching(folder, words, "ing one device") as process:  # the last one of the first round
        started = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "planner: interrupted: the figures are of the rounds until then"
    assert "Traceback" not in err
    assert "plan, measured" in out
    assert load_run(folder / "run.json", load_plan(folder / "run.plan")).timeline.spans
    assert len(started) == (2 if processes else 0)
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)


@pytest.mark.slow
@pytest.mark.attack("process")
@pytest.mark.usefixtures("afresh")
def test_the_second_ctrl_c_ends_at_once(folder: Path) -> None:
    deaf = (
        "import time\ndef factory(batch=1):\n    try:\n        time.sleep(60)\n    finally:\n        time.sleep(60)\n"
    )
    (folder / "deaf.py").write_text(deaf)
    with searching(folder, ["import", "deaf:factory", "-o", "x.json"], "importing") as process:
        for _ in range(2):
            time.sleep(3)
            process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
    assert not (folder / "x.json").exists()


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(folder: Path) -> None:
    command = f"{sys.executable} -m planner schema plan | head -1"
    done = children.ran(["bash", "-o", "pipefail", "-c", command], cwd=folder, env=environment())
    assert (done.returncode, done.stdout, done.stderr) == (0, "{\n", "")


@pytest.mark.attack("process")
@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
@pytest.mark.parametrize(
    ("work", "line", "who"),
    [("schema_.run", "schema plan", "planner"), ("rank._run", "rank plan.json model", "planner: rank 1")],
)
def test_a_shortage_of_the_machine_is_one_line(
    work: str,
    line: str,
    who: str,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def short(*_: object) -> int:
        raise error

    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(f"planner.cli.{work}", short)
    assert main(line.split()) == 2
    said = str(error) or "Cannot allocate memory"
    assert capsys.readouterr().err == (
        f"{who}: this machine has too little: {said}; end other programs, raise the limit (ulimit -a) or make room, "
        "and begin again\n"
    )
