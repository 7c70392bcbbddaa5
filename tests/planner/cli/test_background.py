"""A command that was started to ignore Ctrl-C, as a job in the background is, goes on and ends as it would."""

import json
import signal
import sys
from pathlib import Path

import pytest

from costmodels.cluster.writer import write_cluster
from graphs.files import write_graph
from tests.children import running
from tests.planner.cli.given import ROOT
from tests.planner.view.samples import cluster, random_plan

IGNORING = ["sh", "-c", """trap '' INT; exec "$@" """, "sh"]


@pytest.mark.slow
@pytest.mark.attack("process")
def test_a_search_in_the_background_ends_by_itself() -> None:
    write_graph(random_plan(0, n_ops=60, n_devices=2).graph, Path("graph.json"))
    write_cluster(cluster(4), "four.toml")
    words = ["plan", "graph.json", "--cluster", "four.toml", "--goal", "latency", "--gap", "0", "--time-limit", "2"]
    with running([*IGNORING, sys.executable, "-m", "planner", *words], env={"PYTHONPATH": str(ROOT)}) as process:
        assert process.stderr is not None
        assert any("planning" in line for line in iter(process.stderr.readline, ""))
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
    assert json.loads(Path("plan.json").read_text())["goal"] == "latency"
