"""``planner schema``: prints what stands in planner/schemas."""

import json

import pytest

from planner.cli import main
from planner.plans.schemas import NAMES, schema


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_it_prints_the_schema(name: str, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", name, *options]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == schema(name)
    assert printed.err == ""


def test_another_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["schema", "costs"])
    assert end.value.code == 2
    assert "'costs' is none of plan, cluster, graph" in capsys.readouterr().err
