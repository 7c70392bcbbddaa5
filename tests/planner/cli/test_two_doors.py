"""One door: what the command line answers, the function of the same name in `planner` answers, to the byte."""

from pathlib import Path

import pytest

import planner
from costmodels.prices import HourlyPrice
from examples.networks import cifar10
from planner.cli import main
from planner.plans.plan import Plan

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
    assert main(["plan", *words.split(), "--time-limit", "60", "-o", "line.json", "--force", "-q"]) == 0
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
def test_the_options_of_a_plan(options: str, asked: dict[str, object]) -> None:
    given = {"cluster": FOUR, "goal": "throughput", "search": AT_LENGTH} | asked
    assert saved(planner.plan(NET, **given)) == written(f"{NET} --cluster {FOUR} --goal throughput {options}")  # type: ignore[arg-type]


def test_the_fastest_way_to_train_keeps_the_prices_of_the_devices(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--cluster", "paper.toml", "--goal", "training", "--price", "2USD/h", "--time-limit", "60"]
    assert main(["plan", NET, *words]) == 0
    said = capsys.readouterr().out
    assert "8 micro-batches of 4 by 1f1b would be slower" in said
    assert "all devices together cost 4 USD/h" in said


@pytest.mark.slow
def test_cifar10_on_four_gpus() -> None:
    line = written(f"examples.networks:cifar10 --batch 64 --cluster {FOUR} --goal training")
    named = planner.plan(
        planner.NamedModel("examples.networks:cifar10", 64), cluster=FOUR, goal="training", search=AT_LENGTH
    )
    assert saved(named) == line
    module = planner.plan(*cifar10(batch=64), cluster=FOUR, goal="training", search=AT_LENGTH)
    assert module.samples_per_s == named.samples_per_s
    default = planner.Workload("training", batch=64, micro_batches=8)
    one_way = planner.plan(*cifar10(batch=64), cluster=FOUR, goal="training", workload=default, search=AT_LENGTH)
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
