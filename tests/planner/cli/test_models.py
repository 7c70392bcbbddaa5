"""MODEL: every command takes the same forms, and says the same about what it cannot take."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from planner.cli import main
from tests.planner.cli.given import Refused, pair_here

FACTORIES = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, input_ids, mask=None, parts=(), scale=1.0):
        x = self.second(self.first(input_ids).relu()) * scale
        x = x if mask is None else x * mask
        for part in parts:
            x = x + part
        return {"logits": x, "scale": scale}

def net():
    torch.manual_seed(0)
    return Net().eval()

X, MASK = torch.ones(3, 4), torch.ones(3, 1)

def plain():
    return net(), (X,)

def tensor():
    return net().train(), X

def listed():
    return [net(), [X, MASK]]

def named():
    return net(), {"input_ids": X, "scale": 0.5}

def both():
    return net(), ((X,), {"parts": [X, X], "mask": None})

def table_first(batch=3):
    class Looking(nn.Module):
        def forward(self, table, x):
            return x @ table
    return Looking(), (torch.ones(4, 2), torch.ones(batch, 4))

def required(batch):
    return net(), torch.ones(batch, 4)

def width(width, batch=1):
    return net(), torch.ones(batch, width)
"""


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    Path("factories_of_a_user.py").write_text(FACTORIES)
    Path("pair.toml").write_text(pair_here(), encoding="utf-8")
    yield
    for name in [name for name in sys.modules if name.endswith("_of_a_user")]:
        del sys.modules[name]


PLAN = ["--cluster", "pair.toml", "--goal", "throughput", "--pin", "linear=a", "--pin", "linear_1=b", "--force"]


@pytest.mark.attack("first-try")
@pytest.mark.parametrize("name", ["plain", "tensor", "listed", "named", "both", "table_first", "required"])
def test_every_command_takes_a_factory_alike(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = f"factories_of_a_user:{name}"
    pins = PLAN if name != "table_first" else [*PLAN[:4], "--force"]
    assert main(["import", model, "--force"]) == 0
    assert main(["plan", model, *pins]) == 0
    assert main(["verify", "plan.json", model]) == 0
    assert main(["shard", "plan.json", model, "-o", "shards"]) == 0
    assert main(["simulate", "plan.json", model, "--batch", "1" if name in ("required", "table_first") else "3"]) == 0
    if name == "both":  # measured, which takes its time
        assert main(["run", "plan.json", model, "--rounds", "1"]) == 0
    if name == "named":
        assert main(["choose", model, "--cluster", "pair.toml", "--global-batch", "6", "--time-limit", "20"]) == 0
        training = [*pins[:2], "--goal", "training", "--micro-batches", "2", "--force"]
        assert main(["plan", model, *training]) == 0
        assert main(["verify", "plan.json", model]) == 0
    capsys.readouterr()


@pytest.mark.attack("first-try")
def test_a_batch_that_cannot_be_had(refused: Refused) -> None:
    text = (
        "planner: 'factories_of_a_user:plain' takes no batch, and its example inputs are of 3, not 8; give it a "
        "parameter 'batch', or keep to its own"
    )
    assert main(["plan", "factories_of_a_user:plain", *PLAN]) == 0
    for command in (["import"], ["run", "plan.json"], ["verify", "plan.json"]):
        assert refused([*command, "factories_of_a_user:plain", "--batch", "8"]) == text
    assert refused(["choose", "factories_of_a_user:plain", "--cluster", "pair.toml", "--global-batch", "8"]).endswith(
        "give it a parameter 'batch', or keep to its own"
    )


@pytest.mark.attack("first-try")
def test_what_no_option_gives(refused: Refused) -> None:
    assert refused(["import", "factories_of_a_user:width"]) == (
        "planner: 'factories_of_a_user:width' needs 'width', which no option gives; give that parameter a default, or "
        "write a function that passes it: a factory takes batch=N or nothing and returns (module, example inputs)"
    )


def write_onnx(path: Path) -> None:
    """Two symbolic dimensions, and one without a name that is none of an input's."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "seq"]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], "act")], "net", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)


@pytest.mark.attack("first-try")
def test_a_symbolic_dimension_is_sized_once(refused: Refused, capsys: pytest.CaptureFixture[str]) -> None:
    write_onnx(Path("net.onnx"))
    plan = ["plan", "net.onnx", "--cluster", "pair.toml", "--goal", "latency"]
    assert refused(plan) == (
        "planner: dimension 1 of input 'x' is symbolic ('seq'); give its size, as --size seq=128 does, or export the "
        "model with a number there"
    )
    assert refused([*plan, "--size", "sequence=7"]) == (
        "planner: 'sequence' is no symbolic dimension of the inputs, which have 'batch', 'seq'; leave its size out"
    )
    assert refused([*plan, "--size", "batch=3", "--batch", "2"]) == (
        "planner: 'batch' is the batch, for which 2 and 3 are asked; leave one of them out"
    )
    assert refused(["import", "factories_of_a_user:plain", "--size", "seq=7"]) == (
        "planner: 'factories_of_a_user:plain' has no symbolic dimension 'seq' to be sized; only an .onnx file has some"
    )
    assert main([*plan, "--size", "seq=7", "--batch", "3"]) == 0
    assert main(["verify", "plan.json", "net.onnx"]) == 0  # the plan knows
    assert main(["simulate", "plan.json", "net.onnx", "--batch", "5"]) == 0
    with pytest.raises(SystemExit, match="2"):
        main([*plan, "--size", "7"])
    assert "'7' is not NAME=N, such as 'seq=128'" in capsys.readouterr().err


@pytest.mark.attack("first-try")
def test_files_and_folders_as_people_have_them(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path("my models")
    folder.mkdir()
    assert refused(["import", "my models", "--force"]).startswith(
        "planner: the folder 'my models' holds no config.json, .onnx or "
    )
    torch.export.save(torch.export.export(nn.ReLU(), (torch.ones(2, 4),)), folder / "net.pt2")
    (folder / "net.pt2").rename(folder / "net.PT2")
    monkeypatch.setenv("HOME", str(Path.cwd()))
    for model in ("my models/net.PT2", "my models", "~/my models/net.PT2", "~/my models/"):
        assert main(["import", model, "--force"]) == 0
    write_onnx(folder / "net.onnx")
    assert refused(["import", "my models", "--force"]).startswith(
        "planner: the folder 'my models' holds several models: net.PT2, net.onnx; MODEL is "
    )
    (folder / "config.json").write_text('{"model_type": "vit", "hidden_size": -1}', encoding="utf-16")
    assert refused(["import", "my models", "--force"]) == (
        "planner: my models/config.json: hidden_size is -1; it must be a whole number from 1"
    )
    capsys.readouterr()


@pytest.mark.attack("first-try")
def test_a_function_in_a_file(refused: Refused) -> None:
    Path("my-nets").mkdir()
    shutil.copy("factories_of_a_user.py", "my-nets/others_of_a_user.py")
    Path("json.py").write_text(FACTORIES)
    for model in ("factories_of_a_user.py:plain", "./factories_of_a_user:plain", "my-nets/others_of_a_user.py:plain"):
        assert main(["import", model, "--force"]) == 0
    assert refused(["import", "no/factories.py:plain", "--force"]) == (
        "planner: no file 'no/factories.py' for 'no/factories.py:plain'; check the path"
    )
    assert refused(["import", "json.py:plain", "--force"]) == (
        "planner: 'json.py' has the name of another module, 'json'; give the file another name"
    )
