"""planner choose --row, and planner run of that row."""

import json
from pathlib import Path

import pytest

from planner.cli import main
from planner.parallelism.closed_form.config import ParallelConfig, ParallelShape, StageLayers
from planner.parallelism.closed_form.config_file import config_to_dict, load_config
from tests.planner.cli.given import MNIST, Refused

ROW = ParallelConfig(ParallelShape(2, 1, 1, 2, 2, 1), (StageLayers(0, 0, 4),))


def saved(config: ParallelConfig) -> str:
    Path("row.json").write_text(json.dumps(config_to_dict(config)))
    return "row.json"


@pytest.mark.usefixtures("_in_folder")
def test_a_row_runs_beside_the_model_itself(capfd: pytest.CaptureFixture[str]) -> None:
    assert load_config(Path(saved(ROW))) == ROW
    assert main(["run", "row.json", MNIST, "--rounds", "2", "--json"]) == 0
    answer = json.loads(capfd.readouterr().out)
    assert answer["equal"]
    assert answer["losses"] == pytest.approx(answer["reference_losses"], rel=1e-5)
    assert len(answer["losses"]) == 2


@pytest.mark.usefixtures("_in_folder")
def test_a_row_for_other_layers_is_refused_by_the_ranks(capfd: pytest.CaptureFixture[str]) -> None:
    row = saved(ParallelConfig(ParallelShape(1, 1, 2, 2, 2), (StageLayers(40, 0, 0),) * 2))
    assert main(["run", row, MNIST]) == 2
    assert "stages of 40, 40 layers do not fit " in capfd.readouterr().err


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": 9}, "'row.json' has the version 9, this planner reads 1; choose again"),
        ({"stages": []}, "pipeline = 1 needs as many stages, each with layers for 1 parts"),
        ({"parallel": {"data": 0}}, "parallel of 'row.json' has data = 0; it must be a whole number of 1 or more"),
        (
            {"parallel": config_to_dict(ROW)["parallel"] | {"data": 65}},
            "'row.json' is for 65 devices, and this host trains in 64 processes at most",
        ),
    ],
)
@pytest.mark.usefixtures("_in_folder")
def test_a_damaged_row_is_refused(change: dict[str, object], told: str, refused: Refused) -> None:
    Path("row.json").write_text(json.dumps(config_to_dict(ROW) | change))
    assert told in refused(["run", "row.json", MNIST])
