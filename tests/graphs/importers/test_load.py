"""MODEL as users write it: every form, and every way to get it wrong."""

import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
import torch
import transformers
from onnx import TensorProto, helper
from torch import nn

from graphs.common.errors import InputError
from graphs.files import write_graph
from graphs.importers.load import load, load_graph, load_program
from graphs.ir import Graph
from tests.graphs.importers.modules import X, assert_same

FORMS = "MODEL is a .onnx, a .pt2, package.module:factory, or a transformers config.json or its folder"
RETURNS = "a factory takes batch=N or nothing and returns (module, example inputs)"

FACTORIES = """
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        return x.relu()

def net(batch=1):
    return Net(), (torch.ones(batch, 4),)

def fixed():
    return Net(), (torch.ones(2, 4),)

def fails(batch=1):
    raise KeyError("weights.bin")

def leaves():
    raise SystemExit("no weights here")

def leaves_quietly():
    raise SystemExit

def alone():
    return Net()

def odd():
    return Net(), [torch.ones(2, 4)], 3

def written(batch=1):
    return nn.ReLU(inplace=True), (torch.ones(batch, 4),)

class Dropping(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.5, self.training)

def dropping(batch=1):
    return Dropping().eval(), (torch.ones(batch, 4),)

number = 3
instance = Net()
small = lambda batch=1: (Net(), torch.ones(batch, 4))

class Nets:
    @staticmethod
    def small(batch):
        return Net().train(), {"x": torch.ones(batch, 4)}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current directory with modules to import, of which nothing stays."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = set(sys.modules)
    (tmp_path / "factories_of_a_user.py").write_text(FACTORIES)
    (tmp_path / "broken_of_a_user.py").write_text("import torch\ntorch.no_such_thing\n")
    (tmp_path / "unfinished_of_a_user.py").write_text("def net(:\n")
    (tmp_path / "needs_of_a_user.py").write_text("import no_such_dependency.part\n")
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.endswith("_of_a_user"):
            del sys.modules[name]


def write_onnx(path: Path) -> None:
    value_x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    value_y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], "act")], "net", [value_x], [value_y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)


def write_pt2(path: Path) -> None:
    torch.export.save(
        torch.export.export(nn.ReLU(), (torch.ones(2, 4),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)), path
    )


def write_config(path: Path) -> None:
    transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1]).save_pretrained(path.parent)
    (path.parent / "config.json").rename(path)


@pytest.mark.usefixtures("here")
class TestForms:
    @pytest.mark.parametrize("batch", [None, 3])
    def test_onnx(self, here: Path, batch: int | None) -> None:
        write_onnx(here / "net.ONNX")
        program = load_program("net.ONNX", batch)
        assert program.graph.name == "net"
        assert program.example_inputs[0].shape == (batch or 1, 4)
        assert_same(program.run(X[: batch or 1]), program.module(X[: batch or 1]))

    @pytest.mark.parametrize("batch", [None, 3])
    def test_pt2(self, here: Path, batch: int | None) -> None:
        write_pt2(here / "net.pt2")
        program = load_program(str(here / "net.pt2"), batch)
        assert program.graph.name == "net"
        assert program.example_inputs[0].shape == (batch or 2, 4)
        assert_same(program.run(X[: batch or 2]), X[: batch or 2].relu())

    @pytest.mark.parametrize("batch", [None, 3])
    def test_config(self, here: Path, batch: int | None) -> None:
        write_config(here / "small.json")
        for graph in (load_program("small.json", batch).graph, load_graph("small.json", batch)):
            assert graph.name == "ResNetModel"
            assert graph.tensor["pixel_values"].shape == (batch or 1, 3, 224, 224)

    @pytest.mark.parametrize("batch", [None, 3])
    def test_factory(self, batch: int | None) -> None:
        program = load_program("factories_of_a_user:net", batch)
        assert program.graph.name == "net"
        assert program.example_inputs[0].shape == (batch or 1, 4)
        assert_same(program.run(-X[: batch or 1]), (-X[: batch or 1]).relu())
        assert load_graph("factories_of_a_user:net", batch) == program.graph

    def test_factory_without_a_batch(self) -> None:
        for batch in (None, 2):
            assert load_program("factories_of_a_user:fixed", batch).example_inputs[0].shape == (2, 4)

    @pytest.mark.parametrize("name", ["small", "Nets.small"])
    def test_a_lambda_and_a_function_of_a_class(self, name: str) -> None:
        for batch in (None, 3):
            assert load_program(f"factories_of_a_user:{name}", batch).example_inputs[0].shape == (batch or 1, 4)

    def test_factory_of_a_package(self) -> None:
        assert load_graph("examples.networks:mnist", 2).tensor["input"].shape == (2, 1, 28, 28)

    @pytest.mark.parametrize("training", [False, True])
    def test_as_it_is_trained(self, here: Path, training: bool) -> None:
        transformers.BertConfig(
            hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=9
        ).save_pretrained(here)
        for model in ("factories_of_a_user:dropping", "config.json"):
            program = load_program(model, 2, training)
            assert program.training is training
            assert load_graph(model, 2, training) == program.graph
            drops = [op.attrs["train"] for op in program.graph.ops if op.kind == "aten.dropout.default"]
            assert drops
            assert set(drops) == {training}

    @pytest.mark.parametrize("training", [False, True])
    def test_what_a_file_holds_is_in_the_mode_in_which_it_was_written(self, here: Path, training: bool) -> None:
        write_onnx(here / "net.onnx")
        write_pt2(here / "net.pt2")
        for model in ("net.onnx", "net.pt2"):
            assert load_program(model, 2, training).training is training
            assert load_graph(model, 2, training) == load_graph(model, 2)

    @pytest.mark.parametrize("name", ["graph.json", "graph.JSON"])
    def test_graph(self, here: Path, name: str) -> None:
        graph = load_graph("factories_of_a_user:net", 3)
        write_graph(graph, here / name)
        assert load_graph(name) == graph
        assert load_graph(name, 3) == graph


def refusal(model: str, batch: int | None = None) -> str:
    texts = set()
    for way in (load_program, load_graph):
        with pytest.raises(InputError) as error:
            way(model, batch)
        texts.add(str(error.value))
    (text,) = texts  # both say the same
    return text


@pytest.mark.usefixtures("here")
class TestRefused:
    @pytest.mark.parametrize("model", ["net.onnx", "net.pt2", "config.json", "no/such/net.onnx"])
    def test_no_file(self, model: str) -> None:
        assert refusal(model) == f"no file '{model}'; {FORMS}"

    @pytest.mark.parametrize("batch", [0, -1])
    @pytest.mark.parametrize("model", ["factories_of_a_user:net", "small.json"])
    def test_no_batch(self, here: Path, model: str, batch: int) -> None:
        write_config(here / "small.json")
        assert refusal(model, batch) == f"a batch of {batch} is asked for; it must be 1 or more"

    def test_a_folder(self, here: Path) -> None:
        (here / "bert.json").mkdir()
        assert refusal("bert.json") == f"the folder 'bert.json' holds no config.json, .onnx or .pt2; {FORMS}"

    @pytest.mark.parametrize("model", ["net.pth", "net", ""])
    def test_no_such_form(self, model: str) -> None:
        assert refusal(model) == f"'{model}' is no model; {FORMS}"

    @pytest.mark.parametrize(
        ("model", "way_out"),
        [
            ("nets.py", "'nets.py' is no model; for a function in a Python file, write nets.py:FUNCTION"),
            ("nets.py:", "'nets.py:' is no model; for a function in a Python file, write nets.py:FUNCTION"),
            ("./nets:net", "no file 'nets.py' for './nets:net'; check the path"),
            ("my/nets.py:net", "no file 'my/nets.py' for 'my/nets.py:net'; check the path"),
        ],
    )
    def test_a_python_file(self, model: str, way_out: str) -> None:
        assert refusal(model) == way_out

    def test_a_file_of_weights(self, here: Path) -> None:
        (here / "net.pth").touch()
        assert refusal("net.pth") == (
            "'net.pth' is no model; such a file holds weights: give a function that builds the network and loads them, "
            "module:function"
        )

    @pytest.mark.parametrize(
        ("model", "text"),
        [
            ("no_such_module:net", f"no Python module 'no_such_module' for 'no_such_module:net'; {FORMS}"),
            ("needs_of_a_user:net", f"no Python module 'no_such_dependency' for 'needs_of_a_user:net'; {FORMS}"),
            (
                "factories_of_a_user:nett",
                f"module 'factories_of_a_user' has no function 'nett'; did you mean 'net'? {FORMS}",
            ),
            ("factories_of_a_user:", f"'factories_of_a_user:' is no model; {FORMS}"),
            ("factories_of_a_user:number", f"module 'factories_of_a_user' has no function 'number'; {FORMS}"),
            (
                "factories_of_a_user:Nets.smal",
                f"module 'factories_of_a_user' has no function 'Nets.smal'; did you mean 'small'? {FORMS}",
            ),
            (
                "factories_of_a_user:instance",
                f"'factories_of_a_user:instance' is a module without example inputs; write a function: {RETURNS}",
            ),
            ("factories_of_a_user:Net", f"'factories_of_a_user:Net' returned a module alone; {RETURNS}"),
            (":net", f"':net' is no model; {FORMS}"),
            (
                "broken_of_a_user:net",
                "'broken_of_a_user:net' cannot be imported: AttributeError: "
                "module 'torch' has no attribute 'no_such_thing'",
            ),
            (
                "unfinished_of_a_user:net",
                "'unfinished_of_a_user:net' cannot be imported: SyntaxError: "
                "invalid syntax (unfinished_of_a_user.py, line 1)",
            ),
            (
                "factories_of_a_user:fails",
                f"'factories_of_a_user:fails' failed: KeyError: 'weights.bin'; {RETURNS}",
            ),
            (
                "factories_of_a_user:leaves",
                f"'factories_of_a_user:leaves' failed: SystemExit: no weights here; {RETURNS}",
            ),
            (
                "factories_of_a_user:leaves_quietly",
                f"'factories_of_a_user:leaves_quietly' failed: SystemExit: SystemExit; {RETURNS}",
            ),
            (
                "factories_of_a_user:alone",
                f"'factories_of_a_user:alone' returned a module alone; {RETURNS}",
            ),
            (
                "factories_of_a_user:odd",
                f"'factories_of_a_user:odd' returned a 'tuple'; {RETURNS}",
            ),
        ],
    )  # fmt: skip
    def test_factory(self, model: str, text: str) -> None:
        assert refusal(model) == text

    def test_factory_without_a_batch(self) -> None:
        assert refusal("factories_of_a_user:fixed", 3) == (
            "'factories_of_a_user:fixed' takes no batch, and its example inputs are of 2, not 3; give it a parameter "
            "'batch', or keep to its own"
        )

    def test_what_the_factory_returns_cannot_be_imported(self) -> None:
        assert refusal("factories_of_a_user:written").startswith("model 'written' writes to 'input' while it runs; ")

    def test_a_graph_cannot_be_run(self, here: Path) -> None:
        write_graph(load_graph("factories_of_a_user:net"), here / "graph.json")
        with pytest.raises(InputError) as error:
            load_program("graph.json")
        assert str(error.value) == (
            "'graph.json' is a graph, which can be planned for but not run; give the model it came from"
        )

    def test_as_much_as_there_is(self, here: Path) -> None:
        program = load("factories_of_a_user:net")
        assert not isinstance(program, Graph)
        write_graph(program.graph, here / "graph.json")
        assert load("graph.json") == program.graph

    def test_a_graph_of_another_batch(self, here: Path) -> None:
        write_graph(load_graph("factories_of_a_user:net", 3), here / "graph.json")
        with pytest.raises(InputError) as error:
            load_graph("graph.json", 4)
        assert str(error.value) == "'graph.json' was imported for the batch 3, not 4; import the model again with that"

    def test_a_damaged_graph(self, here: Path) -> None:
        (here / "graph.json").write_text('{"ops": [], "version": 1}')
        with pytest.raises(InputError) as error:
            load_graph("graph.json")
        assert str(error.value) == "graph.json: the graph is damaged: KeyError('name'); import the model again"

    @pytest.mark.parametrize(
        ("content", "text"),
        [
            ("{}", "'some.json' has no 'model_type'; it is neither a transformers config nor a graph.json"),
            ("3", "the model 'some.json' holds a int, not an object; write it again"),
            ('{"placement": {}}', f"'some.json' is a plan, no model; {FORMS}"),
        ],
    )
    def test_another_json(self, here: Path, content: str, text: str) -> None:
        (here / "some.json").write_text(content)
        assert refusal("some.json") == text

    def test_no_onnx(self, here: Path) -> None:
        (here / "net.onnx").write_bytes(b"no")
        assert refusal("net.onnx").startswith("net.onnx ")
