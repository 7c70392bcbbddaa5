"""Constraints on the command line: where they are written, what they do, and what is said of those that cannot be."""

import json
from pathlib import Path

import pytest

from planner.cli import main
from tests.planner.cli.given import MNIST

pytestmark = pytest.mark.usefixtures("_paper")


def plan(*options: str) -> int:
    return main(["plan", MNIST, "--cluster", "paper.toml", "--goal", "throughput", "--force", *options])


def placed() -> dict[str, str]:
    found: dict[str, str] = json.loads(Path("plan.json").read_text())["placement"]
    return found


def test_pinned_and_forbidden_operators_are_where_they_should_be() -> None:
    assert plan("--pin", "*=b") == 0
    assert set(placed().values()) == {"b"}
    first, *others = placed()
    assert plan("--forbid", f"{first}=a", "--pin", f"{others[-1]}=a,b", "--contiguous") == 0
    assert placed()[first] == "b"
    kept = json.loads(Path("plan.json").read_text())["constraints"]
    assert [constraint["rule"] for constraint in kept] == ["pin", "forbid", "contiguous"]


def test_operators_are_kept_together() -> None:
    assert plan("--together", "*") == 0
    assert len(set(placed().values())) == 1


def test_a_collision_is_status_1_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--pin", "*=a", "--forbid", "*=a") == 1
    told = capsys.readouterr().err.splitlines()[-1]
    assert "'pin * to a' and 'forbid * on a' cannot be met at once: no device is left for operator '" in told
    assert told.endswith("; leave out one of them")
    assert not Path("plan.json").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--pin", "nothing=a"), "nothing in 'mnist' matches 'nothing'; there are "),
        (("--pin", "*=gpu7"), "'pin * to gpu7' names the device 'gpu7'; there are a, b"),
    ],
)
def test_a_constraint_on_what_is_not_there(
    options: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(*options) == 2
    assert told in capsys.readouterr().err.splitlines()[-1]


def test_a_constraint_without_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        plan("--pin", "stem")
    assert ended.value.code == 2
    assert "'stem' is not PATTERN=DEVICE, such as 'embed*=cpu0'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "text", "form"),
    [
        ("--pin", "stem=cpu0,", "PATTERN=DEVICE, such as 'embed*=cpu0'"),
        ("--together", "stem,", "PATTERN[,PATTERN], such as 'embed,head.*'"),
        ("--contiguous", ",", "PATTERN[,PATTERN], such as 'embed,head.*'"),
    ],
)
def test_a_constraint_with_a_name_that_is_empty(
    option: str, text: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        plan(option, text)
    assert ended.value.code == 2
    assert f"argument {option}: '{text}' is not {form}; see" in capsys.readouterr().err
