"""One door: what the command line answers, the function of the same name in `planner` answers, to the byte."""

import json
import warnings
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn

import planner
from costmodels.cluster.prices import HourlyPrice
from examples.networks import cifar10
from planner.cli import main
from planner.cli.console import finite
from planner.planning.choose import TransformerChoices
from planner.plans.plan import Plan
from tests.planner.cli.given import pair_here

FOUR = "4xV100-SXM2-16GB:NVLink2"
NETWORK = """
import torch
from torch import nn

def net(batch=4):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)), (torch.ones(batch, 256),)
"""
NET = "a_small_network:net"
AT_LENGTH = planner.Search(time_limit_s=60.0)  # of which the searches here need a second: they end by themselves

pytestmark = pytest.mark.usefixtures("_paper")


@pytest.fixture(autouse=True)
def _network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("a_small_network.py").write_text(NETWORK, encoding="utf-8")


def written(words: str) -> bytes:
    """The plan.json of a ``planner plan``."""
    assert main(["plan", "--time-limit", "60", *words.split(), "-o", "line.json", "--force", "-q"]) == 0
    return Path("line.json").read_bytes()


def saved(plan: Plan) -> bytes:
    planner.save_plan(plan, "door.json")
    return Path("door.json").read_bytes()


@pytest.mark.parametrize("goal", ["throughput", "latency", "cost", "training"])
def test_a_plan_for_each_goal(goal: str) -> None:
    line = written(f"{NET} --cluster paper.toml --goal {goal}")
    assert saved(planner.plan(NET, cluster="paper.toml", goal=goal, search=AT_LENGTH)) == line


@pytest.mark.parametrize(
    ("options", "workload"),
    [
        ("", planner.OpenWorkload()),
        ("--optimizer adam", planner.OpenWorkload(optimizer="adam")),
        ("--replicas 2", planner.OpenWorkload(replicas=2)),
        ("--replicas 1", planner.OpenWorkload(replicas=1)),
        ("--schedule gpipe --micro-batches 4", planner.OpenWorkload(schedule="gpipe", micro_batches=4)),
        ("--recompute full", planner.OpenWorkload(recompute="full")),
        ("--micro-batches 8", planner.OpenWorkload(micro_batches=8)),
    ],
)
def test_schedules_and_replicas_of_a_training_step(options: str, workload: planner.OpenWorkload) -> None:
    line = written(f"{NET} --batch 8 --cluster paper.toml --goal training {options}")
    model = planner.NamedModel(NET, batch=8)
    plan = planner.plan(model, cluster="paper.toml", goal="training", workload=workload, search=AT_LENGTH)
    assert saved(plan) == line


def test_what_is_left_open_is_searched() -> None:
    """Of 1F1B with eight micro-batches and of everything else, the latter is the better of more."""
    closed = planner.plan(NET, cluster="paper.toml", goal="training", workload=planner.OpenWorkload(schedule="1f1b"))
    found = planner.plan(NET, cluster="paper.toml", goal="training", search=AT_LENGTH)
    assert (closed.workload.micro_batches, closed.workload.batch) == (8, 4)
    assert found.workload.micro_batches * found.workload.batch * found.replicas == 32
    assert found.samples_per_s > closed.samples_per_s


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ("--devices 1", {"cluster": planner.read_cluster(FOUR).first(1)}),
        ("--in-flight 3", {"workload": planner.OpenWorkload(in_flight=3)}),
        ("--pin 0=gpu1 --contiguous", {"constraints": [planner.pin("0", "gpu1"), planner.contiguous()]}),
        ("--rewrites none --solver ilp", {"search": planner.Search("ilp", time_limit_s=60.0, rewrites="none")}),
        ("--price 2.5USD/h", {"cluster": planner.read_cluster(FOUR).priced(HourlyPrice(2.5, "USD"))}),
    ],
)
def test_the_options_of_a_plan(options: str, asked: dict[str, Any]) -> None:
    given: dict[str, Any] = {"cluster": FOUR, "goal": "throughput", "search": AT_LENGTH} | asked
    assert saved(planner.plan(NET, **given)) == written(f"{NET} --cluster {FOUR} --goal throughput {options}")


def test_the_fastest_way_to_train_keeps_the_prices_of_the_devices(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--cluster", "paper.toml", "--goal", "training", "--price", "2USD/h", "--time-limit", "60"]
    assert main(["plan", NET, *words]) == 0
    said = capsys.readouterr().out
    assert "8 micro-batches of 4 by 1f1b would be slower" in said
    assert "all devices together cost 4 USD/h" in said


def test_a_module_trains_in_the_micro_batches_that_were_found() -> None:
    """Its example inputs are of another size than those of the plan, which is faster with fewer micro-batches."""
    Path("here.toml").write_text(pair_here(), encoding="utf-8")
    torch.manual_seed(0)
    module, inputs = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)), torch.ones(4, 256)
    plan = planner.plan(module, inputs, cluster="here.toml", goal="training", search=AT_LENGTH)
    work = plan.workload
    assert work.batch > 4
    assert work.batch * work.micro_batches == 32
    x, y = torch.rand(32, 256), torch.rand(32, 8)
    expected = nn.functional.mse_loss(module(x), y).item()
    with planner.train(
        plan, module, inputs, loss=nn.functional.mse_loss, optimizer=partial(torch.optim.SGD, lr=0.1)
    ) as trainer:
        assert trainer.step(x, y) == pytest.approx(expected)
        assert trainer.step(x, y) < expected


@pytest.mark.slow
def test_cifar10_on_four_gpus() -> None:
    written(f"examples.networks:cifar10 --batch 64 --cluster {FOUR} --goal training --time-limit 8")
    line, search = planner.load_plan("line.json"), planner.Search(time_limit_s=8.0)
    module = planner.plan(*cifar10(batch=64), cluster=FOUR, goal="training", search=search)
    assert (module.samples_per_s, module.workload, module.replicas) == (line.samples_per_s, line.workload, 4)
    default, quick = planner.Workload("training", batch=64, micro_batches=8), planner.Search(time_limit_s=2.0)
    one_way = planner.plan(*cifar10(batch=64), cluster=FOUR, goal="training", workload=default, search=quick)
    assert module.samples_per_s > 1.5 * one_way.samples_per_s


def test_a_batch_that_no_plan_trains_but_ranks_do(capsys: pytest.CaptureFixture[str]) -> None:
    """Adam's states fit into no device, and into two that share them."""
    tight = Path("paper.toml").read_text(encoding="utf-8").replace('memory = "1 GiB"', 'memory = "1 MB"')
    Path("tight.toml").write_text(tight, encoding="utf-8")
    words = ["plan", NET, "--cluster", "tight.toml", "--goal", "training", "--optimizer", "adam", "--time-limit", "60"]
    assert main(words) == 1
    said = capsys.readouterr()
    print(said)
    with pytest.raises(planner.NoPlanError) as raised:
        planner.plan(
            NET,
            cluster="tight.toml",
            goal="training",
            workload=planner.OpenWorkload(optimizer="adam"),
            search=AT_LENGTH,
        )
    assert f"planner: {raised.value}\n" in said.err
    assert planner.load_config("plan-row.json") == raised.value.row.config  # type: ignore[attr-defined]


def line_says(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """What a command prints with --json."""
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def as_json(record: Any) -> Any:
    """A record as --json shows one: with null for what is infinite, and lists for tuples."""
    return json.loads(json.dumps(finite(asdict(record))))


@pytest.fixture
def _planned() -> None:
    """Two plans for this host, a stream on two devices and one for latency."""
    Path("here.toml").write_text(pair_here(), encoding="utf-8")
    search = planner.Search(time_limit_s=60.0, rewrites="none")
    for name, goal in (("plan.json", "throughput"), ("other.json", "latency")):
        pinned = [planner.pin("0", "a"), planner.pin("2", "b")] if goal == "throughput" else []
        planner.save_plan(planner.plan(NET, cluster="here.toml", goal=goal, constraints=pinned, search=search), name)


@pytest.mark.usefixtures("_planned")
class TestWhatReadsPlans:
    def test_explain(self, capsys: pytest.CaptureFixture[str]) -> None:
        line = line_says(capsys, "explain", "plan.json", "--cuts", "1", "--time-limit", "60", "--seed", "3")
        search = planner.Search(time_limit_s=60.0, gap=0.01, seed=3)  # the command's own gap
        assert as_json(planner.explain("plan.json", cuts=1, search=search)) == line
        assert as_json(planner.elsewhere("plan.json", "linear")) == line_says(
            capsys, "explain", "plan.json", "--op", "linear"
        )

    def test_diff(self, capsys: pytest.CaptureFixture[str]) -> None:
        difference = planner.diff("plan.json", planner.load_plan("other.json"))
        line = line_says(capsys, "diff", "plan.json", "other.json")
        assert as_json(difference) == {key: line[key] for key in line if key not in ("same", "same_placement")}
        assert (difference.same, difference.same_placement) == (line["same"], line["same_placement"])

    @pytest.mark.parametrize("training", [False, True])
    def test_verify(self, training: bool, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["--training"] if training else []
        line = line_says(capsys, "verify", "plan.json", NET, "--tolerance", "0.5", *words)
        found = planner.verify("plan.json", NET, training=training or None, tolerance=0.5)
        counts = {name: getattr(found, name) for name in ("equal", "n_stages", "n_tensors", "n_gradients")}
        assert counts == {name: line[name] for name in counts}
        assert {str(dtype).removeprefix("torch."): share for dtype, share in found.tolerance.items()} == line[
            "tolerance"
        ]
        assert (found.n_gradients > 0) is training

    def test_shard(self) -> None:
        assert main(["shard", "plan.json", NET, "-o", "line", "-q"]) == 0
        files = planner.shard("plan.json", planner.NamedModel(NET), output="door")
        assert files == {name: Path("door") / f"{name}.safetensors" for name in ("a", "b")}
        assert contents("door") == contents("line")
        with pytest.raises(planner.InputError, match="door"):
            planner.shard("plan.json", NET, output="door")
        planner.shard("plan.json", NET, output="door", force=True)

    @pytest.mark.parametrize("format", ["html", "svg", "dot"])
    def test_show(self, format: Literal["html", "svg", "dot"]) -> None:
        assert main(["show", "plan.json", "-o", f"line.{format}", "-q"]) == 0
        picture = planner.show("plan.json", f"door.{format}")
        assert Path(f"line.{format}").read_bytes() == Path(f"door.{format}").read_bytes() == picture.content
        assert planner.show("plan.json", format=format).path == Path(f"plan.{format}")

    @pytest.mark.parametrize("target", ["networkx", "hf-device-map", "model-explorer-devices"])
    def test_export(self, target: str) -> None:
        assert main(["export", "plan.json", "--to", target, "-o", "line.out", "-q"]) == 0
        assert Path("line.out").read_bytes() == planner.export("plan.json", target).content

    def test_export_into_an_onnx(self) -> None:
        network = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's older exporter
            torch.onnx.export(network, (torch.ones(2, 4),), "net.onnx", dynamo=False)
        planner.save_plan(planner.plan("net.onnx", cluster="here.toml", goal="latency"), "net.json")
        words = ["--to", "onnx-devices", "--model", "net.onnx", "-o", "line.onnx", "-q"]
        assert main(["export", "net.json", *words]) == 0
        placed = planner.export("net.json", "onnx-devices", model="net.onnx")
        assert Path("line.onnx").read_bytes() == placed.content

    @pytest.mark.parametrize(
        ("words", "asked"),
        [
            ("--micro-batches 3", {"micro_batches": 3}),
            ("--sharing fair", {"sharing": "fair"}),
            ("--set b.memory_bandwidth=40GB/s", {"what_if": planner.WhatIf(("b.memory_bandwidth=40GB/s",))}),
            ("--add-device a=c --in-flight 9", {"what_if": planner.WhatIf((), ("a=c",), in_flight=9)}),
            (f"{NET} --batch 8", {"model": planner.NamedModel(NET, 8)}),
            ("--replan --time-limit 60", {"search": planner.Search(time_limit_s=60.0)}),
        ],
    )
    def test_simulate(self, words: str, asked: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
        line = line_says(capsys, "simulate", "plan.json", *words.split())
        found = planner.simulate("plan.json", **asked)
        if len(found.plans) == 1:
            assert line["makespan_s"] == found.prediction.timeline.makespan_s
            assert line["micro_batches"] == found.prediction.timeline.micro_batches
        else:
            assert {name: plan.period_s for name, plan in found.plans.items()} == {
                name: document["period_s"] for name, document in line.items()
            }


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("", planner.ChooseOptions()),
        ("--tensor 2 --zero 0", planner.ChooseOptions(tensor=2, zero=0)),
        ("--memory 4GiB --optimizer sgd", planner.ChooseOptions(memory_bytes=4 * 2**30, optimizer="sgd")),
    ],
)
def test_choose_for_a_transformer(words: str, asked: planner.ChooseOptions, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = {"layers": 4, "hidden": 512, "heads": 8, "sequence": 128}
    Path("model.json").write_text(json.dumps(numbers), encoding="utf-8")
    command = ["choose", "model.json", "--cluster", FOUR, "--global-batch", "16", *words.split()]
    line = line_says(capsys, *command)
    found = planner.choose("model.json", cluster=FOUR, global_batch=16, choose_options=asked)
    assert [row.price.step_s for row in found.rows()] == [row["step_s"] for row in line["rows"]]
    assert main([*command, "--row", "1", "-o", "line.json", "-q"]) == 0
    found.save("door.json")
    assert Path("line.json").read_bytes() == Path("door.json").read_bytes()
    assert main([*command, "--row", "1", "--to", "megatron-args", "-o", "line.txt", "-q", "--zero", "1"]) == 0
    options = replace(asked, zero=1)
    found = planner.choose("model.json", cluster=FOUR, global_batch=16, choose_options=options)
    assert isinstance(found, TransformerChoices)
    assert Path("line.txt").read_bytes() == planner.export_row(found, "megatron-args").content


@pytest.mark.parametrize(
    ("words", "asked"),
    [("", planner.ChooseOptions()), ("--pipeline 2 --data 1", planner.ChooseOptions(pipeline=2, data=1))],
)
def test_choose_for_another_network(
    words: str, asked: planner.ChooseOptions, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["choose", NET, "--cluster", "paper.toml", "--global-batch", "8", *words.split()]
    line = line_says(capsys, *command)
    found = planner.choose(NET, cluster="paper.toml", global_batch=8, choose_options=asked)
    assert [row.price.step_s for row in found.rows()] == [choice["step_s"] for choice in line["choices"]]
    assert main([*command, "--row", "1", "-o", "line.json", "-q"]) == 0
    found.save("door.json")
    assert Path("line.json").read_bytes() == Path("door.json").read_bytes()


def test_what_cannot_be_chosen_is_refused() -> None:
    Path("model.json").write_text('{"layers": 4, "hidden": 512, "heads": 8}', encoding="utf-8")
    for model, asked, told in (
        (
            "model.json",
            {"schedule": "gpipe"},
            "the schedules of a transformer in closed form are 1f1b, .*; gpipe is for",
        ),
        (NET, {"sequence": 8}, "sequence is for a transformer's config.json or its numbers; 'a_small_network:net' is"),
        (NET, {"gradients": "bfloat16"}, "gradients in bfloat16 are for the precision bfloat16"),
        (planner.NamedModel("model.json", sizes={"seq": 8}), {}, "'model.json' has no symbolic dimension 'seq'"),
    ):
        options = planner.ChooseOptions(**asked)
        with pytest.raises(planner.InputError, match=told):
            planner.choose(model, cluster=FOUR, global_batch=16, choose_options=options)
    tight = planner.choose(
        "model.json", cluster=FOUR, global_batch=16, choose_options=planner.ChooseOptions(memory_bytes=1e6)
    )
    assert tight.rows() == ()
    assert tight.advice.startswith("nothing fits: the way that needs the least takes ")
    with pytest.raises(planner.InputError, match="there is no row 1; there are 0"):
        tight.save("row.json")


def test_import_map(capsys: pytest.CaptureFixture[str]) -> None:
    Path("map.json").write_text('{"0": "a", "1": "a", "2": "b"}', encoding="utf-8")
    words = ["import-map", "map.json", NET, "--cluster", "paper.toml", "--time-limit", "60", "-o", "line.json"]
    line = line_says(capsys, *words)
    found = planner.import_map("map.json", NET, cluster="paper.toml", search=AT_LENGTH)
    assert saved(found.by_hand) == Path("line.json").read_bytes()
    assert line["planner"]["period_s"] == found.planned.period_s


def contents(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}
