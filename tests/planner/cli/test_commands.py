"""The whole loop through the command line, on a small network, and what it says to bad input."""

import json
import sys
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from planner.cli import main
from tests.children import ran
from tests.planner.cli.given import MNIST, PAPER, ROOT, Refused

pytestmark = pytest.mark.usefixtures("_paper")


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
        assert "of the largest element of the reference model's" in shown  # rounding of quick kernels
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

    @pytest.mark.parametrize("model", ["net.onnx", "net.pt2", "net.json"])
    def test_no_such_file(self, model: str, refused: Refused) -> None:
        assert refused(["import", model]).startswith(f"planner: no file '{model}'; MODEL is a .onnx")

    def test_no_such_module(self, refused: Refused) -> None:
        assert "no Python module 'nowhere'" in refused(["import", "nowhere:net"])

    def test_unsupported_onnx_operator(self, refused: Refused) -> None:
        onnx_with("Twist")
        assert "Twist" in refused(["import", "odd.onnx"])

    def test_damaged_files(self, refused: Refused) -> None:
        for name in ("a.onnx", "a.pt2", "a.json", "plan.json"):
            Path(name).write_bytes(b"\x00not a model")
        assert "a.onnx" in refused(["import", "a.onnx"])
        assert "a.pt2" in refused(["import", "a.pt2"])
        assert "a.json" in refused(["import", "a.json"])
        assert "plan.json" in refused(["simulate", "plan.json"])

    def test_cluster_with_a_typo(self, refused: Refused) -> None:
        Path("typo.toml").write_text(PAPER.replace("memory_bandwidth", "memory_bandwith", 1))
        told = refused(["plan", MNIST, "--cluster", "typo.toml", "--goal", "latency"])
        assert "memory_bandwith" in told
        assert "memory_bandwidth" in told

    def test_more_devices_than_there_are(self, refused: Refused) -> None:
        command = ["plan", MNIST, "--cluster", "paper.toml", "--goal", "latency", "--devices", "3"]
        assert "3 devices asked for" in refused(command)

    def test_plan_for_another_model(self, refused: Refused) -> None:
        planned()
        assert "the plan is for 'mnist'" in refused(["run", "plan.json", "examples.networks:cifar10"])

    def test_plan_on_paper_cannot_run(self, refused: Refused) -> None:
        planned()
        assert "neither cores nor cuda" in refused(["run", "plan.json", MNIST])

    def test_a_failed_command_leaves_what_is_there(self, refused: Refused) -> None:
        planned()
        refused(["plan", "nowhere:net", "--cluster", "paper.toml", "--goal", "latency"])

    def test_a_folder_that_does_not_exist(self, refused: Refused) -> None:
        assert "missing/graph.json" in refused(["import", MNIST, "-o", "missing/graph.json"])


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
    shown = ran([sys.executable, "-c", code], cwd=ROOT)
    assert "planner" in shown.stdout


def test_wrong_words_are_status_2() -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["plan", MNIST])
    assert stopped.value.code == 2
