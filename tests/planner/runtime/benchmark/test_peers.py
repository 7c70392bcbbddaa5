"""Other programs as contenders, by packages that stand in for theirs."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from planner.runtime.benchmark.measure import Contender
from planner.runtime.benchmark.peers import check_peers, peers
from tests.planner.runtime.small import cpu

X = torch.arange(4.0).view(1, 4)
REFUSAL = """Exception from src/inference/src/cpp/core.cpp:132:
Check 'false' failed at src/frontends/report.cpp:151:
Summary:
-- Conversion is failed for: AveragePool-20

"""


class Session:
    """ONNX Runtime's."""

    def __init__(self, path: str, options: Any, providers: list[str]) -> None:
        assert Path(path).read_text() == "a network"
        assert (options.intra_op_num_threads, providers) == (1, ["CPUExecutionProvider"])

    def run(self, _: None, feeds: dict[str, Any]) -> list[Any]:
        return [2 * feeds["x"]]


class Core:
    """OpenVINO's, which takes nothing."""

    def compile_model(self, *_: Any) -> None:
        raise RuntimeError(REFUSAL)


@pytest.fixture
def program() -> Program:
    module = nn.Sequential(nn.Linear(4, 2), nn.Dropout())
    return program_from_module(module.train(), (X,), name="net")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Packages that stand in for those of the peers; returns the modes in which modules are written as ONNX."""
    modes: list[bool] = []

    def export(module: nn.Module, *_: Any, **__: Any) -> Any:
        modes.append(any(part.training for part in module.modules()))
        graph = SimpleNamespace(inputs=[SimpleNamespace(name="x")])

        def save(path: Path, external_data: bool) -> None:
            assert external_data  # networks may be larger than a protocol buffer
            path.write_text("a network")

        return SimpleNamespace(model=SimpleNamespace(graph=graph), save=save)

    runtime = SimpleNamespace(SessionOptions=SimpleNamespace, InferenceSession=Session)
    for name, package in (("onnxscript", None), ("onnxruntime", runtime), ("openvino", SimpleNamespace(Core=Core))):
        monkeypatch.setitem(sys.modules, name, package or SimpleNamespace())
    monkeypatch.setattr(torch.onnx, "export", export)
    return modes


@pytest.mark.usefixtures("installed")
def test_a_session_for_all_cores_is_a_contender(program: Program) -> None:
    with peers(program, [cpu("cpu0")], ["onnxruntime"]) as made:
        (one,) = made
        contender: Contender = one
        assert contender.name == "onnxruntime, 1 threads"
        (result,) = one.result()  # type: ignore[attr-defined]
        np.testing.assert_array_equal(result, 2 * X.numpy())
        assert contender.stream(3) > 0
        assert len(contender.single(2)) == 2


def test_a_network_is_written_in_the_mode_in_which_it_was_imported(program: Program, installed: list[bool]) -> None:
    with peers(program, [cpu("cpu0")], ["onnxruntime"]):
        assert installed == [False]
    assert all(part.training for part in program.module.modules())  # as its user has left it


@pytest.mark.usefixtures("installed")
def test_a_refusal_is_told_by_its_last_line(program: Program) -> None:
    with pytest.raises(InputError) as refused, peers(program, [cpu("cpu0")], ["openvino"]):
        pass
    told = "openvino cannot take 'net': Conversion is failed for: AveragePool-20; leave it out of --against"
    assert str(refused.value) == told


def test_who_is_not_known_or_not_here_is_named(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="'onnx-runtime'"):
        check_peers(["onnx-runtime"], [cpu("cpu0")])
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(InputError, match="onnxscript is not installed; run pip install"):
        check_peers(["openvino"], [cpu("cpu0")])
    with peers(program, [], []) as made:
        assert made == []


@pytest.mark.usefixtures("installed")
def test_a_plan_with_other_devices_has_no_peers() -> None:
    with pytest.raises(InputError, match="onnxruntime run on the cores of a plan's CPUs"):
        check_peers(["onnxruntime"], [replace(cpu("cpu0"), cores=())])
