"""Examples print and draw what stands beside them."""

from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from examples import (
    alexnet_three_devices,
    alexnet_three_nodes,
    cpu_divided,
    one_weird_trick,
    scaling_llama70b,
)


@pytest.mark.parametrize(
    "example",
    [
        alexnet_three_devices,
        alexnet_three_nodes,
        cpu_divided,
        one_weird_trick,
        pytest.param(scaling_llama70b, marks=pytest.mark.slow),
    ],
    ids=lambda one: one.__name__,
)
def test_it_prints_and_draws_what_stands_beside_it(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert example.main() == 0
    beside = Path(str(example.__file__))
    assert capsys.readouterr().out.split() == beside.with_suffix(".out").read_text(encoding="utf-8").split()
    for picture in Path().glob("*.svg"):
        drawn = picture.read_text(encoding="utf-8")
        assert drawn == beside.with_name(picture.name).read_text(encoding="utf-8")
        assert ElementTree.fromstring(drawn).tag.endswith("svg")
