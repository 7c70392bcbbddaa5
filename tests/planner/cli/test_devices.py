"""planner devices: the figures of every data sheet and their sources, whole in lines of any width."""

import json

import pytest

from costmodels.cluster.catalogue import catalogue
from planner.cli import main


@pytest.mark.parametrize("width", ["60", "100"])
def test_every_figure_of_a_data_sheet_is_shown(
    width: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    assert main(["devices"]) == 0
    text = "".join(capsys.readouterr().out.split())  # lines may break anywhere
    for name, entry in catalogue("device").items():
        sheet = "{family}, {units} units at {clock}, cache {cache}.".format(**entry.keys)
        assert "".join(f"{sheet} {entry.source}".split()) in text[text.index(name) :]


def test_a_name_chooses_and_the_document_has_all_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "t4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (found,) = document["devices"]
    assert found == {"name": "T4", **catalogue("device")["T4"].keys, "source": catalogue("device")["T4"].source}
    assert document["links"] == []
