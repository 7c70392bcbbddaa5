"""planner plan --split-cpu: what it prints for several divisions of a CPU, and what it refuses."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from costmodels.cluster.cluster import Cluster
from costmodels.cluster.writer import write_cluster
from graphs.common.errors import InputError
from graphs.files import write_graph
from graphs.importers.load import load_graph
from graphs.ir import Graph
from graphs.kernels.choice import Kernels
from graphs.program.program import Program
from planner.cli import main, plan_
from planner.planning import cpu_partitions as autotuning
from planner.planning import find_plan
from planner.planning.autotune import TimedTurn
from planner.planning.cpu_partitions import PartitionChoice, Split, widths
from planner.plans.files import load_plan
from planner.plans.plan import Plan
from planner.problem.reporter import Reporter
from planner.runtime.benchmark.load import Load
from tests.planner.cli.given import Refused
from tests.planner.planning.test_cpu_partitions import division

MODEL = "examples.networks:mnist"
CLUSTERS = {1: division(1, 1.1e9, 2), 2: division(2, 1e9, 2)}


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host of two cores on paper, of which two threads use a little more than one."""

    def divisions(split: Split, kernels: Kernels | None) -> tuple[Cluster, ...]:
        assert kernels in (None, "exact")
        return tuple(CLUSTERS[2 // width] for width in widths(split, {1: 2, 2: 1}))

    monkeypatch.setattr(plan_, "divisions", divisions)


def plan(*options: str) -> int:
    return main(["plan", MODEL, *options])


def auto(*options: str) -> int:
    """Divisions by themselves: with operators in parts, two slow cores would do as well as a device of both."""
    return plan("--split-cpu", "auto", "--rewrites", "none", *options)


def divisions_shown(text: str) -> tuple[list[str], list[str]]:
    """The lines from the table of divisions on: head and rows, and what is below."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("divisions of the CPU"))
    return lines[start : start + 3], lines[start + 3 :]


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts made-up turns in the place of real ones: a factor on what is predicted, for one device and for two."""

    def make(one: float, two: float, foreign_cores: float = 0.0) -> None:
        factor = {1: one, 2: two}
        monkeypatch.setattr(autotuning, "check_here", lambda *_: None)

        def run_turn(plan: Plan, _: Program) -> TimedTurn:
            return TimedTurn(factor[len(plan.cluster.devices)] * plan.predicted_s, None)

        monkeypatch.setattr(autotuning, "run_turn", run_turn)
        monkeypatch.setattr(Load, "foreign_cores", lambda _: foreign_cores)

    return make


@pytest.mark.parametrize(("goal", "n_devices"), [("throughput", 2), ("latency", 1)])
def test_the_best_division_is_written_and_all_are_shown(
    goal: str, n_devices: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert auto("--goal", goal, "--no-autotune") == 0
    assert len(load_plan("plan.json").cluster.devices) == n_devices
    (head, one, two), below = divisions_shown(capsys.readouterr().out)
    assert head.split() == ["divisions", "of", "the", "CPU", "predicted"]
    assert one.startswith("1 device of 2 cores")
    assert two.startswith("2 devices of 1 core")
    chosen, other = (one, two) if n_devices == 1 else (two, one)
    assert chosen.endswith("chosen: predicted to be the fastest")
    assert "chosen" not in other
    assert below == []


class TestTrial:
    def test_it_decides_against_the_prediction(
        self, tried: Callable[..., None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        tried(1.05, 0.5)
        assert auto("--goal", "latency", "--batch", "3") == 0
        assert len(load_plan("plan.json").cluster.devices) == 2
        (head, one, two), below = divisions_shown(capsys.readouterr().out)
        assert head.split()[4:] == ["predicted", "measured"]
        assert (len(one.split()), len(two.split("chosen: ")[0].split())) == (9, 9)  # 5 of the name, 2 times with units
        assert two.endswith("chosen: the fastest in 15 rounds")
        assert below == [
            "off from what was predicted: 2 devices of 1 core by -50.0%",
            f"`planner calibrate {MODEL} --batch 3 --rewrites none --split-cpu auto --again` measures anew what that "
            "rests on",
        ]

    @pytest.mark.parametrize(
        ("options", "again"),
        [
            (["--goal", "throughput", "--kernels", "exact"], "--rewrites none --kernels exact"),
            (["--goal", "training"], "--training --rewrites none"),
        ],
    )
    def test_what_to_measure_again(
        self, options: list[str], again: str, tried: Callable[..., None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        tried(1.2, 0.8)
        assert auto(*options) == 0
        _, (off, how) = divisions_shown(capsys.readouterr().out)
        assert off == "off from what was predicted: 1 device of 2 cores by +20.0%, 2 devices of 1 core by -20.0%"
        assert how == f"`planner calibrate {MODEL} {again} --split-cpu auto --again` measures anew what that rests on"

    def test_quick_kernels_are_measured_again_as_such(
        self, monkeypatch: pytest.MonkeyPatch, tried: Callable[..., None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        quick = tuple(
            replace(one, devices=tuple(replace(device, kernels="quick") for device in one.devices))
            for one in CLUSTERS.values()
        )
        monkeypatch.setattr(plan_, "divisions", lambda *_, **__: quick)
        tried(1.2, 1.0)
        assert auto("--goal", "latency", "--kernels", "quick") == 0
        _, (_, how) = divisions_shown(capsys.readouterr().out)
        assert f"`planner calibrate {MODEL} --rewrites none --kernels quick --split-cpu auto --again`" in how

    def test_nothing_more_is_said_where_predictions_were_right(
        self, tried: Callable[..., None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        tried(1.05, 0.95)
        assert auto("--goal", "latency") == 0
        assert divisions_shown(capsys.readouterr().out)[1] == []

    def test_a_disturbed_machine_is_told_and_not_called_wrong(
        self, tried: Callable[..., None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        tried(1.5, 1.5, 0.25)
        assert auto("--goal", "latency") == 0
        assert divisions_shown(capsys.readouterr().out)[1] == [
            "other processes used 0.25 cores meanwhile: the choice is disturbed; plan again when they have ended"
        ]

    def test_the_model_is_imported_once(
        self, monkeypatch: pytest.MonkeyPatch, tried: Callable[..., None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        tried(1.0, 1.0)
        seen = []

        def heard(choice: PartitionChoice, model: Program | Graph, reporter: Reporter) -> PartitionChoice:
            seen.append(model)
            return autotuning.tried(choice, model, reporter)

        monkeypatch.setattr(find_plan, "tried", heard)
        assert auto("--goal", "latency") == 0
        (program,) = seen
        assert isinstance(program, Program)
        assert program.graph == load_plan("plan.json").graph
        assert capsys.readouterr().err.splitlines() == [
            f"importing {MODEL} …",
            "planning mnist for latency on 1 device …",
            "planning mnist for latency on 2 devices …",
            "trying 2 plans in turns …",
        ]

    def test_an_interrupt_leaves_the_plan_that_was_predicted_best(
        self, monkeypatch: pytest.MonkeyPatch, tried: Callable[..., None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        tried(1.0, 1.0)

        def interrupted(*_: object) -> float:
            raise KeyboardInterrupt

        monkeypatch.setattr(autotuning, "run_turn", interrupted)
        assert auto("--goal", "latency") == 130
        told = "planner: interrupted: 'plan.json' is the best plan until then"
        assert capsys.readouterr().err.splitlines()[-1] == told
        assert load_plan("plan.json").evaluation.feasible

    def test_a_graph_is_not_tried(self, tried: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
        tried(1.0, 0.1)
        write_graph(load_graph(MODEL), Path("graph.json"))
        assert main(["plan", "graph.json", "--split-cpu", "auto", "--goal", "latency", "--rewrites", "none"]) == 0
        (head, one, _), below = divisions_shown(capsys.readouterr().out)
        assert "measured" not in head
        assert one.endswith("chosen: predicted to be the fastest")
        assert below == ["not tried: 'mnist' is a graph, which cannot run; give the model it came from"]

    def test_one_division_is_not_tried(self, monkeypatch: pytest.MonkeyPatch, tried: Callable[..., None]) -> None:
        tried(1.0, 1.0)
        monkeypatch.setattr(autotuning, "run_turn", None)
        assert plan("--split-cpu", "2", "--goal", "latency") == 0
        assert auto("--goal", "latency", "--pin", "fc2=cpu1", "--force") == 0  # one device has no cpu1


class TestJson:
    def test_without_a_trial(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert auto("--goal", "latency", "--json", "--no-autotune") == 0
        told = json.loads(capsys.readouterr().out)
        one, two = told["divisions"]
        assert (one["cores"], two["cores"]) == ([[0, 1]], [[0], [1]])
        assert (one["chosen"], two["chosen"]) == (True, False)
        assert one["predicted_s"] == told["predicted"]["latency_s"] < two["predicted_s"]
        assert one["measured_s"] is two["measured_s"] is None
        assert told["why"] == "predicted to be the fastest"
        assert told["autotuning"] is told["untried"] is None

    def test_with_one(self, tried: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
        tried(1.5, 0.75, 0.25)
        assert auto("--goal", "latency", "--json") == 0
        told = json.loads(capsys.readouterr().out)
        assert [one["measured_s"] for one in told["divisions"]] == [
            pytest.approx(factor * one["predicted_s"])
            for factor, one in zip((1.5, 0.75), told["divisions"], strict=True)
        ]
        assert [one["chosen"] for one in told["divisions"]] == [False, True]
        assert told["autotuning"] == {"rounds": 15, "foreign_cores": 0.25}
        assert told["untried"] is None

    def test_with_a_reason_for_none(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert auto("--goal", "cost", "--json") == 0
        told = json.loads(capsys.readouterr().out)
        assert told["autotuning"] is None
        assert told["untried"] == "the goal 'cost' adds up what all devices do, which no clock shows"


def test_the_same_bytes_without_a_trial() -> None:
    written = []
    for _ in range(2):
        assert auto("--goal", "throughput", "--no-autotune", "--force") == 0
        written.append(Path("plan.json").read_bytes())
    assert written[0] == written[1]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            ["--split-cpu", "2", "--goal", "latency", "--no-autotune"],
            "planner: --no-autotune goes with --split-cpu auto; there is nothing to try here, leave it out",
        ),
        (
            ["--cluster", "c.toml", "--goal", "latency", "--no-autotune"],
            "planner: --no-autotune goes with --split-cpu auto; there is nothing to try here, leave it out",
        ),
        (
            ["--split-cpu", "auto", "--goal", "training", "--replicas", "2"],
            "planner: --replicas goes with --cluster; the divisions of one CPU have no replicas, leave it out",
        ),
    ],
)
def test_what_does_not_go_together(options: list[str], line: str, refused: Refused) -> None:
    assert refused(["plan", MODEL, *options]) == line


@pytest.mark.parametrize("count", [1, 2])
def test_a_number_of_devices_is_taken_at_its_word(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--split-cpu", str(count), "--goal", "latency", "--json") == 0
    assert len(load_plan("plan.json").cluster.devices) == count
    assert "divisions" not in json.loads(capsys.readouterr().out)


def test_a_pin_to_a_second_device_needs_two() -> None:
    assert auto("--goal", "latency", "--pin", "fc2=cpu1") == 0
    found = load_plan("plan.json")
    assert len(found.cluster.devices) == 2
    assert found.device_of("linear_1") == "cpu1"


def test_no_division_has_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--split-cpu", "auto", "--goal", "latency", "--pin", "fc2=cpu1", "--forbid", "fc2=cpu1") == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("planner: no plan (infeasible): ")
    assert not Path("plan.json").exists()


def test_bad_input_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plan("--split-cpu", "3", "--goal", "latency") == 2
    assert capsys.readouterr().err == (
        "planner: the CPU cannot be divided into 3 equal devices; it can be into 1, 2, or say auto\n"
    )
    assert plan("--cluster", "c.toml", "--kernels", "quick", "--goal", "latency") == 2
    assert capsys.readouterr().err == (
        "planner: --kernels goes with --split-cpu; with --cluster, give it to `planner calibrate`\n"
    )
    assert plan("--split-cpu", "2", "--devices", "1", "--goal", "latency") == 2
    assert capsys.readouterr().err == (
        "planner: --devices and --split-cpu both say how many devices there are; leave out one of them\n"
    )

    def divisions(_: Split, kernels: Kernels | None) -> tuple[Cluster, ...]:
        raise InputError(f"this host was not measured with {kernels} kernels")

    monkeypatch.setattr(plan_, "divisions", divisions)
    assert plan("--split-cpu", "auto", "--kernels", "quick", "--goal", "latency") == 2
    assert capsys.readouterr().err == "planner: this host was not measured with quick kernels\n"


@pytest.mark.parametrize("options", [[], ["--cluster", "c.toml", "--split-cpu", "auto"]])
def test_devices_come_from_one_place(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    write_cluster(CLUSTERS[2], Path("c.toml"))
    with pytest.raises(SystemExit) as stopped:
        plan("--goal", "latency", *options)
    assert stopped.value.code == 2
    assert "--split-cpu" in capsys.readouterr().err
