"""Commands that faults come to, how to see that what they write is whole, and the files that they read.

A command starts as a fork of a process that has its modules (`tests.forkserver`), or as a new interpreter.
"""

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from costmodels.cluster.file import read_cluster
from planner.plans.files import load_plan, save_plan
from planner.runtime.checkpoint.shards import read_model_shard
from tests.children import running
from tests.forkserver import MODULES, Forked, Server

ROOT = Path(__file__).parents[2]
MORE_MODULES = ("transformers.models.llama.modeling_llama", "tests.attacks.network", "tests.attacks.lies")
"""Further modules of the process that is forked, apart from those of every command."""


Ranks = Literal["", "run", "train"]


@dataclass(frozen=True)
class Command:
    """A command, and how to see that the file that it writes is whole."""

    words: tuple[str, ...]  # after `planner`; "FILE" stands for what is written
    file: str = ""  # empty if it writes none
    whole: Callable[[Path], object] = lambda _: None
    ranks: Ranks = ""  # what processes that it starts do; empty if it starts none
    measures: bool = False  # whether it measures what the cache lacks


def _is_html(path: Path) -> None:
    assert path.read_text(encoding="utf-8").rstrip().endswith("</html>"), "a page without an end"


def _is_svg(path: Path) -> None:
    assert path.read_text(encoding="utf-8").rstrip().endswith("</svg>"), "a picture without an end"


def _is_json(path: Path) -> None:
    json.loads(path.read_text(encoding="utf-8"))


def _is_cluster(path: Path) -> None:
    assert read_cluster(path).devices, "a cluster without devices"


def is_shards(path: Path) -> None:
    plan = load_plan(path / "plan.json")
    for device in plan.placement.used:
        read_model_shard(path, plan.cluster.devices[device].name)


MODEL = "tests.attacks.network:small"
ON_PAPER = ("--cluster", "2xRTX-4090:PCIe4")
LANGUAGE = "tests.attacks.network:llama"
SENTENCES = ("--goal", "generation", "--prompt", "6", "--output", "4", "--sequences", "2", "--rows", "1")
IN_TWO = ("--pin", "model.model.layers.0=a", "--pin", "model.model.layers.1=b")
ON_PAIR = ("--cluster", "pair.toml", *SENTENCES, *IN_TWO, "--rewrites", "none", "--time-limit", "0.1")
WRITES = ("-o", "FILE", "--force")
QUICK = ("--rounds", "1")
GENERATES = (*QUICK, "--generate", "3")

COMMANDS: Mapping[str, Command] = {
    "import": Command(("import", MODEL, *WRITES), "graph.json", _is_json),
    "calibrate": Command(("calibrate", MODEL, *WRITES), "cluster.toml", _is_cluster, measures=True),
    "plan": Command(("plan", MODEL, *ON_PAPER, "--goal", "throughput", *WRITES), "new.json", load_plan),
    "tune": Command(
        ("tune", MODEL, "--cluster", "host.toml", "--goal", "throughput", "--seconds", "0.1", *WRITES),
        "tuned.json",
        load_plan,
    ),
    "devices": Command(("devices",)),
    "solve": Command(("solve", "problem.json", "--goal", "throughput", *WRITES), "answer.json", _is_json),
    "simulate": Command(("simulate", "plan.json", "--trace", "FILE", "--force"), "trace.json", _is_json),
    "choose": Command(("choose", MODEL, *ON_PAPER, "--global-batch", "8", *WRITES), "row.json", _is_json),
    "fit": Command(("fit", "config.json", *ON_PAPER, *WRITES), "fit.json", _is_json),
    "explain": Command(("explain", "plan.json", "--time-limit", "1")),
    "diff": Command(("diff", "plan.json", "plan.json")),
    "run": Command(("run", "two.json", MODEL, *QUICK, *WRITES), "run.json", _is_json),
    "run in processes": Command(
        ("run", "two.json", MODEL, *QUICK, "--processes", *WRITES), "run.json", _is_json, ranks="run"
    ),
    "train": Command(("run", "training.json", MODEL, *QUICK, *WRITES), "run.json", _is_json),
    "train in processes": Command(
        ("run", "training.json", MODEL, *QUICK, "--processes", *WRITES), "run.json", _is_json, ranks="train"
    ),
    "verify": Command(("verify", "two.json", MODEL)),
    "shard": Command(("shard", "two.json", MODEL, *WRITES), "shards", is_shards),
    "plan generation": Command(("plan", LANGUAGE, *ON_PAIR, *WRITES), "new.json", load_plan),
    "run generation": Command(("run", "generation.json", LANGUAGE, *GENERATES)),
    "run generation in processes": Command(
        ("run", "generation.json", LANGUAGE, *GENERATES, "--processes"), ranks="run"
    ),
    "verify generation": Command(("verify", "generation.json", LANGUAGE)),
    "shard generation": Command(("shard", "generation.json", LANGUAGE, *WRITES), "shards", is_shards),
    "show": Command(("show", "plan.json", *WRITES), "plan.html", _is_html),
    "show svg": Command(("show", "plan.json", *WRITES), "plan.svg", _is_svg),
    "export": Command(("export", "plan.json", "--to", "networkx", *WRITES), "nx.json", _is_json),
    "import-map": Command(("import-map", "map.json", MODEL, *ON_PAPER, *WRITES), "hand.json", load_plan),
    "schema": Command(("schema", "plan")),
    "completion": Command(("completion", "bash")),
}


class Ready(Forked[str]):
    """A process that starts as a fork of one that has what every command imports."""

    server = staticmethod(cache(lambda: Server.started(*MODULES, *_modules())))


def _modules() -> Iterator[str]:
    from planner.cli import COMMANDS as NAMES
    from planner.cli.parser import command_module

    yield from (command_module(name).__name__ for name in NAMES)
    yield from MORE_MODULES


@cache
def laid_out() -> Path:
    """Write what the commands read: plans on paper and for this host, clusters, a problem, a config, a map."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    from costmodels.tabulate import tabulate
    from costmodels.workload import Workload
    from graphs.importers.from_torch import program_from_module
    from planner.problem.problem import Goal
    from simulator.placement import Placement
    from tests.attacks.network import small
    from tests.attacks.readers import reader
    from tests.planner.cli.given import pair_here
    from tests.planner.runtime.small import desk, make_plan

    for name, file in {"plan": "plan.json", "problem": "problem.json", "language config": "config.json"}.items():
        (folder / file).write_bytes(reader(name).good)
    (folder / "map.json").write_text(json.dumps({"": 0}), encoding="utf-8")
    halves = Placement((0, 0, 1))
    save_plan(make_plan(program_from_module(*small()), halves, desk(2)), folder / "two.json")
    program = program_from_module(*small(), training=True)
    workload = Workload(mode="training", batch=2, micro_batches=2)
    plan = make_plan(program, halves, desk(2))
    table = tabulate(program.graph, plan.cluster, workload, {})
    save_plan(replace(plan, workload=workload, table=table, goal=Goal.TRAINING), folder / "training.json")
    for name in ("out", "cache", "tmp"):
        (folder / name).mkdir()
    (folder / "pair.toml").write_text(pair_here(), encoding="utf-8")
    for words in (
        ("calibrate", MODEL, "-o", "host.toml"),
        ("plan", LANGUAGE, *ON_PAIR, "-o", "generation.json"),
    ):
        with running([sys.executable, "-m", "planner", *words], start=Ready, **settings(folder)) as process:
            _, err = process.communicate()
        assert process.returncode == 0, err
    return folder


def settings(folder: Path) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "tmp")}
    environment["PLANNER_CACHE"] = str(folder / "cache")  # which the next command finds as this one leaves it
    return {"cwd": folder, "env": environment, "stdout": subprocess.DEVNULL, "start_new_session": True}
