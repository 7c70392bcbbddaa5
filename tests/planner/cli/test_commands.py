"""The whole loop through the command line, on a small network, and what it says to bad input."""

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from planner.cli import main

MNIST = "examples.networks:mnist"
PAPER = """
version = 1
[[device]]
name = "a"
kind = "fast"
memory = "1 GiB"
flops = { float32 = "100 GFLOP/s" }
memory_bandwidth = "10 GB/s"
[[device]]
name = "b"
kind = "slow"
memory = "1 GiB"
flops = { float32 = "50 GFLOP/s" }
memory_bandwidth = "5 GB/s"
[[link]]
between = ["a", "b"]
bandwidth = "1 GB/s"
latency = "10 us"
"""


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLANNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3]))
    Path("paper.toml").write_text(PAPER)


def planned(*options: str) -> None:
    assert main(["plan", MNIST, "--cluster", "paper.toml", "--goal", "throughput", *options]) == 0


class TestLoop:
    def test_import_writes_a_graph_that_can_be_planned_for(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["import", MNIST, "-o", "graph.json"]) == 0
        shown = capsys.readouterr().out
        assert "1,663,370" in shown  # 832 + 51,264 + 1,606,144 + 5,130 parameters
        assert main(["plan", "graph.json", "--cluster", "paper.toml", "--goal", "latency"]) == 0
        assert Path("plan.json").exists()

    def test_plan_prints_devices_prediction_gap_and_what_was_guessed(self, capsys: pytest.CaptureFixture[str]) -> None:
        planned()
        shown = capsys.readouterr().out
        assert "no plan can be more than" in shown
        assert "100.0% of the operators' time was estimated" in shown
        assert [line.split()[0] for line in shown.splitlines()[2:4]] == ["a", "b"]

    def test_the_same_input_gives_the_same_bytes(self) -> None:
        planned()
        first = Path("plan.json").read_bytes()
        planned("--force")
        assert Path("plan.json").read_bytes() == first

    def test_simulate_and_show_need_only_the_plan(self, capsys: pytest.CaptureFixture[str]) -> None:
        planned()
        assert main(["simulate", "plan.json", "--micro-batches", "4"]) == 0
        assert "4 micro-batches of mnist" in capsys.readouterr().out
        assert main(["show", "plan.json", "-o", "plan.html"]) == 0
        assert "<html" in Path("plan.html").read_text()

    def test_calibrate_plan_run_on_this_host(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["calibrate", MNIST, "-o", "cluster.toml"]) == 0
        assert main(["plan", MNIST, "--cluster", "cluster.toml", "--goal", "throughput", "--devices", "1"]) == 0
        assert "estimated" not in capsys.readouterr().out  # every operator was measured
        assert main(["run", "plan.json", MNIST, "--rounds", "1"]) == 0
        shown = capsys.readouterr().out
        assert "the answers are bit-equal to the unsplit model's" in shown
        assert "predicted against measured" in shown

    def test_json_is_the_only_thing_on_stdout(self, capsys: pytest.CaptureFixture[str]) -> None:
        for command in (
            ["import", MNIST, "--json"],
            ["plan", MNIST, "--cluster", "paper.toml", "--goal", "throughput", "--json"],
            ["simulate", "plan.json", "--json"],
            ["show", "plan.json", "--json"],
        ):
            assert main(command) == 0
            assert isinstance(json.loads(capsys.readouterr().out), dict)

    def test_batch_reaches_the_shapes_and_the_throughput(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["import", MNIST, "--batch", "3"]) == 0
        assert "[3, 1, 28, 28]" in capsys.readouterr().out
        assert main(["plan", MNIST, "--batch", "3", "--cluster", "paper.toml", "--goal", "throughput"]) == 0
        assert json.loads(Path("plan.json").read_text())["workload"]["batch"] == 3

    def test_a_pt2_file_is_a_model(self) -> None:
        torch.export.save(torch.export.export(torch.nn.Linear(4, 4), (torch.ones(2, 4),)), "linear.pt2")
        assert main(["import", "linear.pt2"]) == 0

    def test_no_placement_is_status_1_with_advice(self, capsys: pytest.CaptureFixture[str]) -> None:
        Path("small.toml").write_text(PAPER.replace('"1 GiB"', '"1 MiB"'))
        assert main(["plan", MNIST, "--cluster", "small.toml", "--goal", "throughput"]) == 1
        assert not Path("plan.json").exists()
        told = capsys.readouterr().err.splitlines()[-1]
        assert told.startswith("planner: no plan (infeasible): ")
        assert "memory" in told


def onnx_with(kind: str) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node(kind, ["x"], ["y"], domain="acme")], "g", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("acme", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets), "odd.onnx")


class TestBadInput:
    """One line on stderr that names the thing, exit status 2, nothing written."""

    def told(self, command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
        before = {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}
        assert main(command) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert {path: path.read_bytes() for path in Path().iterdir() if path.is_file()} == before
        lines = [line for line in captured.err.splitlines() if not line.endswith("…")]
        assert len(lines) == 1
        return lines[0]

    @pytest.mark.parametrize("model", ["net.onnx", "net.pt2", "net.json"])
    def test_no_such_file(self, model: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.told(["import", model], capsys).startswith(f"planner: no file '{model}'; MODEL is a .onnx")

    def test_no_such_module(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "no Python module 'nowhere'" in self.told(["import", "nowhere:net"], capsys)

    def test_unsupported_onnx_operator(self, capsys: pytest.CaptureFixture[str]) -> None:
        onnx_with("Twist")
        assert "Twist" in self.told(["import", "odd.onnx"], capsys)

    def test_damaged_files(self, capsys: pytest.CaptureFixture[str]) -> None:
        for name in ("a.onnx", "a.pt2", "a.json", "plan.json"):
            Path(name).write_bytes(b"\x00not a model")
        assert "a.onnx" in self.told(["import", "a.onnx"], capsys)
        assert "a.pt2" in self.told(["import", "a.pt2"], capsys)
        assert "a.json" in self.told(["import", "a.json"], capsys)
        assert "plan.json" in self.told(["simulate", "plan.json"], capsys)

    def test_cluster_with_a_typo(self, capsys: pytest.CaptureFixture[str]) -> None:
        Path("typo.toml").write_text(PAPER.replace("memory_bandwidth", "memory_bandwith", 1))
        told = self.told(["plan", MNIST, "--cluster", "typo.toml", "--goal", "latency"], capsys)
        assert "memory_bandwith" in told
        assert "memory_bandwidth" in told

    def test_more_devices_than_there_are(self, capsys: pytest.CaptureFixture[str]) -> None:
        command = ["plan", MNIST, "--cluster", "paper.toml", "--goal", "latency", "--devices", "3"]
        assert "3 devices asked for" in self.told(command, capsys)

    def test_plan_for_another_model(self, capsys: pytest.CaptureFixture[str]) -> None:
        planned()
        capsys.readouterr()
        assert "the plan is for 'mnist'" in self.told(["run", "plan.json", "examples.networks:cifar10"], capsys)

    def test_plan_on_paper_cannot_run(self, capsys: pytest.CaptureFixture[str]) -> None:
        planned()
        capsys.readouterr()
        assert "neither cores nor cuda" in self.told(["run", "plan.json", MNIST], capsys)

    def test_a_failed_command_leaves_what_is_there(self, capsys: pytest.CaptureFixture[str]) -> None:
        planned()
        capsys.readouterr()
        self.told(["plan", "nowhere:net", "--cluster", "paper.toml", "--goal", "latency"], capsys)

    def test_a_folder_that_does_not_exist(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "missing/graph.json" in self.told(["import", MNIST, "-o", "missing/graph.json"], capsys)


@pytest.mark.parametrize("words", [["--help"], ["plan", "--help"]])
def test_help_has_no_need_of_torch(words: list[str]) -> None:
    code = f"""
import sys
from planner.cli import main
try:
    main({words})
except SystemExit:
    assert "torch" not in sys.modules
"""
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]
    )
    assert "planner" in shown.stdout


def test_wrong_words_are_status_2() -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["plan", MNIST])
    assert stopped.value.code == 2
