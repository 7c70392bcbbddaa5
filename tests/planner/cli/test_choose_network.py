"""planner choose of networks that are no stack of transformer layers: step time against memory."""

import json
from pathlib import Path

import pytest

from planner.cli import main
from planner.cli.choose_network import proved_gap
from planner.parallelism.closed_form.config_file import load_config
from planner.plans.files import load_plan
from planner.plans.speed import model_flops_utilisation
from tests.planner.cli.given import MNIST, PAPER, Refused

pytestmark = pytest.mark.usefixtures("_paper")


def test_it_shows_what_is_worth_choosing_between(capsys: pytest.CaptureFixture[str]) -> None:
    at_length = ["--time-limit", "100000"]  # counted work ends the searches, not the clock
    command = ["choose", MNIST, "--cluster", "paper.toml", "--global-batch", "4", *at_length]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert f"{MNIST}: steps of 4 samples" in shown
    assert "slower with no less memory: --all shows them" in shown
    assert main([*command, "--all", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    choices = said["choices"]
    assert choices[0]["reason"].startswith("the fastest; computing")
    assert all("slower than row 1" in choice["reason"] for choice in choices[1:])
    for choice in choices:
        parts = (choice[part] for part in ("computing_s", "communicating_s", "bubble_s", "sync_s"))
        assert sum(parts) == pytest.approx(choice["step_s"])
    assert 0 < said["bound_s"] <= choices[0]["step_s"] * (1 + 1e-9)
    assert f"of the ways that were searched, {proved_gap(said['bound_s'], choices[0]['step_s'])}" in shown
    assert any(choice["best"] for choice in choices)
    assert not all(choice["best"] for choice in choices)
    assert {choice["micro_batches"] * choice["samples"] * choice["replicas"] for choice in choices} == {4}
    assert {choice["replicas"] for choice in choices} == {1, 2}
    assert {choice["recompute"] for choice in choices} == {"none", "selective", "full"}
    assert all(0 < choice["mfu"] < 1 for choice in choices)
    assert {choice["tensor"] for choice in choices} == {1, 2}
    assert {choice["zero"] for choice in choices if choice["replicas"] == 2} == {0, 1, 2, 3}
    plain = [choice for choice in choices if (choice["tensor"], choice["zero"]) == (1, 0)]
    assert main([*command, "--tensor", "1", "--zero", "0", "--row", "1", "-o", "plan.json"]) == 0
    plan = load_plan(Path("plan.json"))
    assert plan.latency_s <= plain[0]["step_s"] * (1 + 1e-9)
    flop_s = plain[0]["mfu"] * plain[0]["step_s"]  # what the step would take at the peaks
    assert model_flops_utilisation(plan) * plan.latency_s == pytest.approx(flop_s)
    capsys.readouterr()
    words = ["plan", MNIST, "--cluster", "paper.toml", "--goal", "training", "--batch", "1", "--optimizer", "adam"]
    assert main([*words, "--time-limit", "60", "-o", "other.json", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)["predicted"]["samples_per_s"]
    row = load_config(Path("other-row.json"))
    assert main([*command[:5], "8", *command[6:], "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["choices"][0]
    assert first["samples_per_s"] > planned  # a row, which the plan has named and written
    assert row.shape[:3] == (first["replicas"], first["tensor"], len(first["devices"]))
    assert (row.shape.zero, row.shape.micro_batches) == (first["zero"], first["micro_batches"])
    assert main([*command[:5], "8", *command[6:], "--tensor", "1", "--zero", "0", "--json"]) == 0
    assert planned >= json.loads(capsys.readouterr().out)["choices"][0]["samples_per_s"] * (1 - 1e-9)
    assert all(choice["peak_bytes"] == max(choice["memory_bytes"].values()) for choice in choices)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--sequence", "2"], f"--sequence is for a transformer's config.json or its numbers; '{MNIST}' is priced"),
        (
            ["--tensor", "3"],
            "tensor = 3 does not fit the global batch of 4 on",
        ),
        (
            ["--data", "3"],
            "data = 3 does not fit the global batch of 4 on",
        ),
        (["--micro-batch", "3"], "micro-batch = 3 does not fit the global batch of 4 on"),
        (["--pipeline", "5"], f"no row has pipeline = 5: {MNIST} cannot be cut so"),
        (["--gradients", "bfloat16"], "--gradients bfloat16 is for --precision bfloat16; add it, or leave --gradients"),
        (["--data", "2", "--zero", "1", "--micro-batch", "4"], "micro-batch = 4 does not fit the global batch of 4 on"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_nearest_that_does(words: list[str], told: str, refused: Refused) -> None:
    assert told in refused(["choose", MNIST, "--cluster", "paper.toml", "--global-batch", "4", *words])


def test_nothing_that_fits_is_exit_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["choose", MNIST, "--cluster", "paper.toml", "--global-batch", "2", "--time-limit", "60"]
    assert main([*words, "--memory", "1 KiB"]) == 1
    told = capsys.readouterr().err
    assert "planner: nothing fits into memory; take more or larger devices, or a smaller batch" in told


def test_devices_that_do_not_reach_each_other_are_named(refused: Refused) -> None:
    Path("paper.toml").write_text(PAPER.partition("[[link]]")[0])
    assert refused(["choose", MNIST, "--cluster", "paper.toml", "--global-batch", "4"]).endswith(
        "add a [[link]], or keep a single device"
    )


def test_rows_in_bfloat16_say_so() -> None:
    command = ["choose", MNIST, "--cluster", "paper.toml", "--global-batch", "4", "--data", "2", "--micro-batch", "2"]
    words = ["--precision", "bfloat16", "--gradients", "bfloat16", "--tensor", "1", "--zero", "0", "--pipeline", "1"]
    assert main([*command, *words, "--row", "1", "-o", "row.json"]) == 0
    row = load_config(Path("row.json"))
    assert (row.precision, row.gradients, row.shape[:3]) == ("bfloat16", "bfloat16", (2, 1, 1))
