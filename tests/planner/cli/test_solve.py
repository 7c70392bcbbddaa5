"""``planner solve``: what it writes, what it says and how it ends."""

import json
import sys
from pathlib import Path
from typing import Any, Never

import pytest

from planner.cli import main
from planner.cli.solve import placement as solve_placement
from planner.literature.hybrid_pipeline import hybrid_dp
from planner.literature.layerwise import solve as layerwise
from planner.problem.problem import Problem
from planner.problem.result import Interrupted, Result, Status
from planner.solvers.strategies import strategy_ilp
from simulator.placement import Placement
from tests.children import ran
from tests.planner.cli.given import ROOT
from tests.planner.literature.hybrid_pipeline.networks import network
from tests.planner.literature.layerwise.settings import small
from tests.planner.literature.strategies.programs import case as sharding_case
from tests.planner.literature.strategies.programs import two_products

BEGUN = "solving p.json for throughput …"


def chain(**fields: Any) -> dict[str, Any]:
    """Nodes 1, 2 and 3 one after the other; 1, 2 and 1 ms on each of two accelerators, no CPU, free transfers."""
    known = {
        "maxFPGAs": 2,
        "maxCPUs": 0,
        "maxSizePerFPGA": 10.0,
        "nodes": [
            {
                "id": number,
                "supportedOnFpga": 1,
                "cpuLatency": 9.0,
                "fpgaLatency": latency,
                "isBackwardNode": 0,
                "size": 3,
            }
            for number, latency in ((1, 1.0), (2, 2.0), (3, 1.0))
        ],
        "edges": [{"sourceId": 1, "destId": 2, "cost": 0}, {"sourceId": 2, "destId": 3, "cost": 0}],
    }
    return known | fields


def solved(*arguments: str, goal: str = "throughput", **fields: Any) -> int:
    Path("p.json").write_text(json.dumps(chain(**fields)))
    return main(["solve", "p.json", "--goal", goal, *arguments])


def answer() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(Path("answer.json").read_text())
    return document


class TestAnswer:
    def test_it_is_in_the_terms_of_the_file(self) -> None:
        assert solved() == 0
        found = answer()
        assert list(found) == ["status", "objective", "bound", "gap", "wall_s", "solver", "assignment"]
        assert found["status"] == "optimal"
        assert found["objective"] == found["bound"] == pytest.approx(2.0)  # 1 and 3 on one, 2 on the other, ms
        assert found["gap"] == 0
        assert list(found["assignment"]) == ["1", "2", "3"]
        assert found["assignment"]["1"] == found["assignment"]["3"] != found["assignment"]["2"]

    def test_contiguous_devices_follow_one_another(self) -> None:
        assert solved("--contiguous") == 0
        assert answer()["objective"] == pytest.approx(3.0)  # 2 beside 1 or 3

    def test_latency(self) -> None:
        assert solved(goal="latency") == 0
        assert answer()["objective"] == pytest.approx(4.0)

    def test_the_output_is_chosen(self) -> None:
        assert solved("-o", "other.json", "--solver", "exhaustive", "--seed", "3", "--time-limit", "5") == 0
        assert json.loads(Path("other.json").read_text())["solver"] in ("exhaustive", "one device")

    def test_nothing_but_the_time_differs_from_run_to_run(self) -> None:
        found = []
        for _ in range(2):
            solved()
            found.append({key: value for key, value in answer().items() if key != "wall_s"})
        assert found[0] == found[1]


class TestShown:
    def test_a_row_for_each_device_and_the_proof(self, capsys: pytest.CaptureFixture[str]) -> None:
        solved()
        shown = capsys.readouterr()
        assert "accelerator 1" in shown.out
        assert "optimal: 2 ms by exhaustive in" in shown.out
        assert " ms by " in shown.err  # progress

    def test_a_gap_that_is_left_is_said(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def half(problem: Problem, *_: object) -> Result:
            return Result(Status.FEASIBLE, Placement((0,) * problem.table.n_ops), 0.004, 0.003, 1.5, "some")

        monkeypatch.setattr(solve_placement, "solve", half)
        solved()
        expected = "feasible: 4 ms by some in 1.5 s; no assignment can be more than 25.00% better"
        assert expected in capsys.readouterr().out

    def test_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        solved("--json")
        shown = capsys.readouterr()
        assert json.loads(shown.out) == answer() | {"output": "answer.json"}
        assert shown.err == ""


class TestNoAnswer:
    def test_infeasible_is_a_status_with_advice(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert solved(maxSizePerFPGA=4.0) == 1
        found = answer()
        assert (found["status"], found["objective"], found["bound"]) == ("infeasible", None, None)
        assert found["assignment"] is None
        expected = "the operators need 9 bytes in all, the devices have 8 bytes; add memory or devices"
        assert found["advice"] == expected
        assert capsys.readouterr().err == f"{BEGUN}\nplanner: infeasible: {expected}\n"

    def test_infeasible_as_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert solved("--json", maxSizePerFPGA=4.0) == 1
        assert json.loads(capsys.readouterr().out)["status"] == "infeasible"

    def test_bad_input_is_one_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert solved(nodes=[]) == 2
        assert capsys.readouterr().err == "planner: p.json: there are no nodes; list at least one in nodes\n"
        assert not Path("answer.json").exists()

    def test_an_unknown_solver_is_bad_input(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert solved("--solver", "magic") == 2
        assert "there is no solver 'magic'; known: auto, " in capsys.readouterr().err


class TestInterrupted:
    def test_the_best_so_far_is_written(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(*_: object) -> Result:
            raise Interrupted(Result(Status.FEASIBLE, Placement((0, 0, 1)), 0.003, 0.0015, 2.5, "other"))

        monkeypatch.setattr(solve_placement, "solve", interrupted)
        assert solved() == 130
        found = answer()
        assert (found["status"], found["solver"], found["gap"]) == ("interrupted", "other", 0.5)
        assert found["assignment"] == {"1": 0, "2": 0, "3": 1}
        shown = capsys.readouterr()
        assert "interrupted: 3 ms by other in 2.5 s; no assignment can be more than 50.00% better" in shown.out
        said = "planner: interrupted: 'answer.json' is the best answer until then"
        assert shown.err.splitlines() == [BEGUN, said]

    def test_before_the_first_answer_nothing_is_written(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(*_: object) -> Result:
            raise KeyboardInterrupt

        monkeypatch.setattr(solve_placement, "solve", interrupted)
        assert solved() == 130
        assert capsys.readouterr().err == f"{BEGUN}\nplanner: interrupted\n"
        assert not Path("answer.json").exists()


class TestInterruptedElsewhere:
    """What other formats have found until Ctrl-C is written, too."""

    @staticmethod
    def stopped(*_: object) -> Never:
        raise KeyboardInterrupt

    def test_a_hybrid_pipeline(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hybrid_dp, "_bisected", self.stopped)
        assert TestHybridPipeline.solved("--devices", "2") == 130
        self.written(capsys)
        assert answer()["stages"]

    def test_a_layerwise_setting(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(layerwise, "minimise", self.stopped)
        assert TestLayerwiseSetting.solved() == 130
        self.written(capsys)
        assert answer()["layers"][0]["count"] == 2

    def test_a_strategy_problem(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        """The cheapest strategies need 15 of 11; the first search finds others."""
        monkeypatch.setattr(strategy_ilp, "minimise", self.stopped)
        usages = {"intervals": [[0, 2]] * 3, "costs": [[0, 4], [0, 5], [0, 6]], "usages": [[4, 1], [5, 1], [6, 1]]}
        problem = {"nodes": usages, "edges": {"nodes": [], "costs": []}, "usage_limit": 11}
        Path("p.json").write_text(json.dumps({"problem": problem}))
        assert main(["solve", "p.json"]) == 130
        self.written(capsys)
        chosen = json.loads(Path("answer.json").read_text())
        assert sum(own[strategy] for own, strategy in zip(usages["usages"], chosen, strict=True)) <= 11

    @staticmethod
    def written(capsys: pytest.CaptureFixture[str]) -> None:
        shown = capsys.readouterr()
        assert shown.out.splitlines()[-1].startswith("interrupted: ")
        assert shown.err.splitlines()[-1] == "planner: interrupted: 'answer.json' is the best answer until then"


def test_it_does_not_load_torch() -> None:
    Path("p.json").write_text(json.dumps(chain()))
    code = "import sys; from planner.cli import main; main(['solve', 'p.json', '--goal', 'latency']); "
    program = code + "sys.exit('torch' in sys.modules)"
    done = ran([sys.executable, "-c", program], env={"PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 0, done.stderr


class TestShardingProgram:
    @staticmethod
    def solved(*arguments: str, **fields: Any) -> int:
        Path("s.json").write_text(json.dumps(two_products(**fields)))
        return main(["solve", "s.json", *arguments])

    def test_the_specs_of_every_mesh(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.solved() == 0
        assert answer()["2x1"] == {"0": [0, None], "1": [None, None], "2": [0, None], "3": [None, None], "4": [0, None]}
        assert answer()["1x2"]["0"] == [1, None]
        shown = capsys.readouterr().out.splitlines()
        assert shown[0] == "sharding → answer.json"
        assert shown[2].split()[:4] == ["2x1", "69.1", "69.1", "optimal"]

    def test_one_mesh(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.solved("--mesh", "1x2", "--json") == 0
        assert answer()["0"] == [1, None]
        document = json.loads(capsys.readouterr().out)
        assert document["cases"][0]["assignment"] == answer()
        assert [case["mesh"] for case in document["cases"]] == ["1x2"]

    def test_a_mesh_that_is_not_there(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.solved("--mesh", "4x4") == 2
        assert capsys.readouterr().err == "planner: s.json: there is no mesh '4x4'; there are 2x1, 1x2\n"

    def test_options_of_other_formats(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.solved("--goal", "latency") == 2
        expected = "planner: s.json: --goal says nothing of a sharding program; leave it out\n"
        assert capsys.readouterr().err == expected

    def test_ties_that_no_specs_keep(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Rows of the product split 0, as must_split wants, and the replicated answer splits nothing."""
        wish = [{"op": 4, "axis": 0, "mesh_axis": 0}]
        assert self.solved(ties=[[4, 5]], cases=[sharding_case(2, 1, must_split=wish)]) == 1
        assert Path("answer.json").read_text() == "null\n"
        assert "no specs keep all ties and reshapes on mesh 2x1; leave some of them out" in capsys.readouterr().err


class TestLayerwiseSetting:
    @staticmethod
    def solved(*arguments: str, **fields: Any) -> int:
        Path("l.json").write_text(json.dumps(small(**fields)))
        return main(["solve", "l.json", *arguments])

    def test_a_number_that_stands_for_infinity(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.solved(p2p_MB_per_ms={"2": 1e-30}) == 0
        assert capsys.readouterr().out.splitlines()[-1].startswith("optimal: 27.77778 samples/s, ")

    def test_a_plan(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Both GPUs are replicas: 2 micro-batches of 12 + 2 · 30 ms; gradients take less than the head."""
        assert self.solved() == 0
        assert answer()["pp"] == 1
        assert answer()["layers"] == [{"count": 2, "tp": 1, "sp": 1, "zero": 2, "recompute": False}]
        shown = capsys.readouterr().out.splitlines()
        assert shown[0] == "layers → answer.json"
        assert shown[-1].startswith("optimal: 27.77778 samples/s, 0.144 s a step, 8,000 MB a GPU in ")

    def test_the_price_of_a_plan(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.solved() == 0
        Path("answer.json").rename("mine.json")
        capsys.readouterr()
        assert self.solved("--given", "mine.json", "--json") == 0
        document = json.loads(capsys.readouterr().out)
        assert (document["status"], document["step_ms"]) == ("given", pytest.approx(144.0))
        assert document["plan"] == json.loads(Path("mine.json").read_text()) == answer()

    def test_no_plan(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.solved(cluster=small()["cluster"] | {"memory_MB": 200}) == 1
        assert "infeasible: no plan was found within 160 MB a GPU; add memory or GPUs" in capsys.readouterr().err

    def test_a_given_plan_without_room(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.solved() == 0
        Path("answer.json").rename("mine.json")
        assert self.solved("--given", "mine.json", cluster=small()["cluster"] | {"memory_MB": 1000}) == 1
        assert " MB of 800 MB a GPU; share or recompute more" in capsys.readouterr().err


class TestHybridPipeline:
    @staticmethod
    def solved(*arguments: str) -> int:
        Path("h.json").write_text(json.dumps(network([0.03, 0.01], [(0, 1)], maxMemoryPerDevice=1e9)))
        return main(["solve", "h.json", *arguments])

    def test_stages(self, capsys: pytest.CaptureFixture[str]) -> None:
        """On one device: 0.04 s; two that share both nodes take 60 % of it, two copies have 15 ms of gradients."""
        assert self.solved("--devices", "1") == 0
        stage = {
            "nodes": [0, 1],
            "dataParallelDegree": 1,
            "tensorParallelDegree": 1,
            "TMPCids": {"0": "keep", "1": "keep"},
        }
        assert answer() == {"stages": [stage]}
        assert "optimal: 0.04 s a sample on 1 of 1 devices in " in capsys.readouterr().out
        assert self.solved("--devices", "2", "--memory", "1 GB", "--force") == 0
        assert "optimal: 0.024 s a sample on 2 of 2 devices in " in capsys.readouterr().out

    def test_the_setting_may_differ_from_the_file(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.solved("--micro-batches", "1", "--bandwidth", "1e30", "--memory", "10 MB", "--json") == 0
        document = json.loads(capsys.readouterr().out)
        assert document["status"] == "optimal"
        assert document["stages"] == answer()["stages"]

    def test_too_little_memory(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.solved("--memory", "1MB") == 1
        said = "planner: infeasible: no stages fit 3 devices of 977 KiB; add devices or memory"
        assert capsys.readouterr().err.splitlines()[-1] == said

    def test_memory_needs_a_unit_that_exists(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            self.solved("--memory", "8 GUB")
        assert "'GUB' is no unit for it; write for example '16 GiB'" in capsys.readouterr().err


def test_a_strategy_problem(capsys: pytest.CaptureFixture[str]) -> None:
    """Free of memory the second strategies cost 0 + 1 + 0; only one node may take its second strategy."""
    nodes = {"intervals": [[0, 2], [1, 3]], "costs": [[5, 0], [3, 1]], "usages": [[1, 4], [1, 4]]}
    problem = {"nodes": nodes, "edges": {"nodes": [[0, 1]], "costs": [[0, 9, 1, 0]]}, "usage_limit": 6}
    Path("p.json").write_text(json.dumps({"problem": problem}))
    assert main(["solve", "p.json"]) == 0
    assert json.loads(Path("answer.json").read_text()) == [1, 0]  # 0 + 3 + 1
    assert capsys.readouterr().out.splitlines()[1].startswith("optimal: 4 by ")
    Path("p.json").write_text(json.dumps({"problem": problem | {"usage_limit": 1}}))
    assert main(["solve", "p.json", "--force"]) == 1
    assert "infeasible: no strategies keep the usage limit of 1; raise it" in capsys.readouterr().err


def test_a_file_of_no_format(capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.json").write_text("{}")
    assert main(["solve", "p.json"]) == 2
    assert "the file has none of the fields that tell its format: 'maxFPGAs' (placement problem), 'ops' (" in (
        capsys.readouterr().err
    )


def test_a_placement_problem_needs_a_goal(capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.json").write_text(json.dumps(chain()))
    assert main(["solve", "p.json"]) == 2
    expected = "planner: p.json: a placement problem needs --goal, throughput or latency; add it\n"
    assert capsys.readouterr().err == expected


def test_layouts_and_layers_are_read_by_their_fields(capsys: pytest.CaptureFixture[str]) -> None:
    tensors = {"x": {"a": 4, "b": 2}}
    case = {"name": "x", "mesh": {"m": 2}, "bytes_each": 4, "tensors": tensors, "unsplittable": ["b"], "final": []}
    Path("p.json").write_text(json.dumps({"cases": [case | {"ops": [{"inputs": [], "outputs": ["x"]}]}]}))
    assert main(["solve", "p.json"]) == 0
    assert answer()["cases"] == [{"name": "x", "layout": {"a": "m"}, "peak_bytes": 16, "status": "optimal"}]
    layer = {"name": "fc", "parameters": 1000, "in": 10, "out": 10}
    problem = {"networks": {"net": [layer]}, "layers": [{"network": "net", "batch": 1, "gpus": 2}]}
    Path("p.json").write_text(json.dumps(problem))
    assert main(["solve", "p.json", "--force"]) == 0
    assert "net, 1 sample, 2 devices" in capsys.readouterr().out
    assert answer()["cases"][0]["modes"] == "m"  # 20 bytes of output instead of 4,000 of gradients
