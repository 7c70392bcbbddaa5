"""planner show: formats, files and measured runs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from planner.cli import main
from planner.plans.files import save_plan
from planner.plans.runs import MeasuredRun, save_run
from tests.planner.view.drawings import needs_font
from tests.planner.view.payloads import embedded
from tests.planner.view.samples import chain_plan, fork_plan

STARTS = {"html": b"<!DOCTYPE html>", "svg": b"<svg ", "png": b"\x89PNG", "dot": b"digraph"}
PNG = pytest.param("png", marks=needs_font)


@pytest.fixture(autouse=True)
def _planned() -> None:
    save_plan(replace(fork_plan(), bound_s=1e-3), Path("plan.json"))


@pytest.mark.parametrize("name", ["html", "svg", PNG, "dot"])
def test_every_format_is_written_under_its_own_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "plan.json", "--format", name, "--json"]) == 0
    drawn = Path(f"plan.{name}").read_bytes()
    assert drawn.startswith(STARTS[name])
    told = json.loads(capsys.readouterr().out)
    assert told == {"output": f"plan.{name}", "format": name, "n_bytes": len(drawn)}
    assert main(["show", "plan.json", "--format", name, "-o", "again", "--quiet"]) == 0
    assert Path("again").read_bytes() == drawn


@pytest.mark.parametrize(
    ("file", "name"),
    [("a.svg", "svg"), ("b.htm", "html"), ("c.gv", "dot"), pytest.param("d.png", "png", marks=needs_font)],
)
def test_the_name_of_the_output_tells_the_format(file: str, name: str) -> None:
    assert main(["show", "plan.json", "-o", file]) == 0
    assert Path(file).read_bytes().startswith(STARTS[name])


def test_the_page_is_what_comes_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "plan.json"]) == 0
    assert Path("plan.html").read_bytes().startswith(STARTS["html"])
    heads, row = (line.split() for line in capsys.readouterr().out.splitlines()[1:])
    assert (heads, row[:2]) == (["file", "operators", "size"], ["plan.html", "6"])


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["show", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_a_name_that_tells_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "plan.json", "-o", "plan.pdf") == (
        "planner: 'plan.pdf' does not tell the format; add --format html, svg, png, dot\n"
    )


def test_a_measured_run_is_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    plan = fork_plan()
    save_run(plan, MeasuredRun(plan.simulate(3)), Path("run.json"))
    assert main(["show", "plan.json", "--measured", "run.json"]) == 0
    assert embedded(Path("plan.html").read_text())["timelines"].keys() == {"predicted", "measured"}
    capsys.readouterr()
    assert told(capsys, "plan.json", "--measured", "run.json", "-o", "plan.svg") == (
        "planner: a measured run is drawn on the page only, not as svg; take html, or leave the run out\n"
    )


def test_a_run_of_another_plan_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    other = chain_plan(["", ""], 2)
    save_run(other, MeasuredRun(other.simulate()), Path("run.json"))
    assert "is not one of this plan" in told(capsys, "plan.json", "--measured", "run.json")
    assert not Path("plan.html").exists()
