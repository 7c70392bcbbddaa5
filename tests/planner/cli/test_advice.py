"""The second half of what ``planner explain`` prints, to the letter."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from planner.cli import main
from planner.plans.files import save_plan
from planner.plans.plan import Plan
from planner.problem.constraints import Constraint, contiguous, pin
from planner.problem.problem import Goal
from tests.planner.explanations.small import diamond, make_graph, make_plan


def said(capsys: pytest.CaptureFixture[str], plan: Plan, *words: str) -> str:
    save_plan(plan, Path("plan.json"))
    assert main(["explain", "plan.json", *words]) == 0
    return capsys.readouterr().out


def under(plan: Plan, *constraints: Constraint) -> Plan:
    return replace(plan, constraints=constraints)


def test_constraints_have_a_price(capsys: pytest.CaptureFixture[str]) -> None:
    # c with a on cpu0 makes 6 and 4, without either pin 5 and 5
    shown = said(capsys, under(diamond(placed="0101"), pin("a", "cpu0"), pin("c", "cpu0"), contiguous("a")))
    assert "No device alone could run and hold all of it" not in shown
    assert (
        "\nWhat each constraint costs\n"
        "                 with it  without\n"
        "  pin a to cpu0      6 s      5 s  −16.7%\n"
        "  pin c to cpu0      6 s      5 s  −16.7%\n"
        "  contiguous a       6 s      6 s    same\n"
        "\nWhat would help\n"
    ) in shown


def test_without_constraints_there_is_no_word_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert "constraint" not in said(capsys, diamond())


def test_constraints_may_keep_everything_from_being_on_one_device(capsys: pytest.CaptureFixture[str]) -> None:
    shown = said(capsys, under(diamond(), pin("a", "cpu0"), pin("c", "cpu1")))
    assert "\n  No device alone could run and hold all of it under these constraints.\n" in shown


def test_a_move_that_a_constraint_forbids_is_no_matter_of_memory(capsys: pytest.CaptureFixture[str]) -> None:
    # a ──► b ──► c    a alone on cpu1 would send to b on cpu0, which sends back to c: faster, but to and fro
    #  └─────────┘
    graph = make_graph(dict.fromkeys("abc", "m"), {"b": "a", "c": "a b"})
    plan = make_plan(graph, (5, 5, 1), "001")
    row = r"  a +cpu0 → cpu1 +1 B +1 s  hidden"
    assert re.search(rf"{row} +−4 s", said(capsys, plan))
    shown = said(capsys, under(plan, contiguous()))
    assert re.search(rf"{row} +not allowed", shown)
    assert "more memory" not in shown


def test_a_plan_that_the_search_missed_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    shown = said(capsys, diamond())
    note = "  Searched again, a plan of 5 s was found, not 6 s. What is planned again starts from it.\n"
    assert f"What would help\n{note}" in shown
    assert "Searched again" not in said(capsys, diamond(placed="0011"), "--seed", "3")


def test_json_has_prices_and_no_infinity(capsys: pytest.CaptureFixture[str]) -> None:
    save_plan(under(diamond(Goal.LATENCY, "0011"), contiguous()), Path("plan.json"))
    assert main(["explain", "plan.json", "--json", "--time-limit", "2"]) == 0
    document = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    (price,) = document["replanned"]["prices"]
    assert price == {"constraint": "contiguous", "with_s": 8.0, "without_s": 8.0}
    assert [found["how"] for found in document["replanned"]["helps"]] == ["planned again"] * 2
