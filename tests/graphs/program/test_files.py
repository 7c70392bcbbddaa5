"""A program without its weights, out and in: the same operators with the same arguments, to the bit."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.importers.load import load_program
from graphs.ir import Graph, Op, Role
from graphs.ir import Tensor as Described
from graphs.program.files import program_from_dict, program_to_dict
from graphs.program.program import Program
from planner.runtime.stages.random_generators import randomized
from tests.graphs.importers.modules import Function, X, assert_same
from tests.planner.runtime.small import NETWORKS, program_of


def again(program: Program) -> Program:
    """Written, read, and with its weights, the same program."""
    document = json.loads(json.dumps(program_to_dict(program), allow_nan=False))
    hollow = program_from_dict(document, program.graph, program.example_inputs)
    for name, tensor in program.state.items():
        assert hollow.state[name].is_meta
        assert (hollow.state[name].shape, hollow.state[name].dtype) == (tensor.shape, tensor.dtype)
        assert type(hollow.state[name]) is type(tensor)
        assert hollow.state[name].requires_grad == tensor.requires_grad
    assert hollow.state.keys() == program.state.keys()
    return replace(hollow, state=program.state)


def assert_runs_the_same(program: Program) -> Program:
    args, kwargs = program.example_arguments
    read = again(program)
    assert read.example_arguments == (args, kwargs)
    assert_same(read.run(*args, **kwargs), program.run(*args, **kwargs))
    return read


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "options"])
def test_every_network(name: str) -> None:
    assert_runs_the_same(program_of(name))


def test_what_is_read_is_written_the_same() -> None:
    document = program_to_dict(program_of("attention"))
    assert program_to_dict(again(program_of("attention"))) == document
    text = json.dumps(document)
    assert json.dumps(program_to_dict(program_of("attention"))) == text


def test_arguments_of_every_type() -> None:
    module = Function(
        lambda x: torch.cat([
            torch.full_like(x, float("-inf")),
            torch.arange(4, device=x.device).expand(4, 4).to(torch.float32).clamp(min=-1.5),
            torch.full((4, 4), 2 + 3j, device=x.device).imag,
            torch.zeros(4, 4, dtype=torch.float64, layout=torch.strided, device="cpu").to(torch.float32),
            torch.clone(x, memory_format=torch.contiguous_format).roll((1, 1), (0, 1)),
        ])
    )  # fmt: skip
    program = program_from_module(module, (X,))
    text = json.dumps(program_to_dict(program))
    for written in (
        '{"float": "-inf"}', '{"dtype": "float32"}', '{"complex": "(2+3j)"}', '{"layout": "strided"}',
        '{"device": "cpu"}', '{"memory_format": "contiguous_format"}',
    ):  # fmt: skip
        assert written in text
    assert_runs_the_same(program)


def test_values_keep_their_types() -> None:
    """1 and 1.0 and True are three arguments; a tuple stays one."""
    call = program_from_module(Function(lambda x: x * 1.0 + 1), (X,))
    read = again(call)
    types = [type(value) for op in read.graph.ops for value in read.calls[op.name].node.args]
    assert types == [type(value) for op in call.graph.ops for value in call.calls[op.name].node.args]
    assert float in types
    assert int in types


def test_a_tensor_in_two_places_and_a_list() -> None:
    assert_runs_the_same(program_from_module(Function(lambda x: torch.cat([x, x.t(), x]) @ (x + x)), (X,)))


class Odd(nn.Module):
    """Weights that lie otherwise than one element after the other, or are not trained."""

    scale: Tensor
    window: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.turned = nn.Parameter(torch.arange(12.0).reshape(3, 4).t())
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("scale", torch.ones(1).expand(3))
        self.register_buffer("window", torch.arange(20.0)[2:17:5])

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x @ self.turned * self.frozen * self.scale + self.window
        return y


def test_how_weights_lie() -> None:
    program = program_from_module(Odd(), (X,))
    hollow = program_from_dict(program_to_dict(program), program.graph, (X,))
    assert {name: tensor.stride() for name, tensor in hollow.state.items()} == {
        "turned": (1, 4),
        "frozen": (1,),
        "scale": (1,),  # three times the same element becomes three
        "window": (1,),  # without the elements in between
    }
    assert not hollow.state["frozen"].requires_grad
    assert_runs_the_same(program)


def test_a_network_as_it_is_trained() -> None:
    program = program_from_module(nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5)), (X,), training=True)
    read = again(program)
    assert read.training
    assert read.statistics == {"0.running_mean", "0.running_var"}
    assert {name: update.increment for name, update in read.updates.items()} == {"0.num_batches_tracked": 1}
    assert read.updates["0.num_batches_tracked"].tensor.is_meta
    assert read.updates["0.num_batches_tracked"].tensor.dtype == torch.int64
    assert randomized(read) == randomized(program) == {"dropout"}


def test_where_the_model_itself_has_switched_autocast_off() -> None:
    program = program_of("tied")
    meta = program.calls["gelu"].node.meta
    try:
        meta["autocast"] = False
        read = again(program)
    finally:
        del meta["autocast"]
    assert [op.name for op in read.graph.ops if "autocast" in read.calls[op.name].node.meta] == ["gelu"]
    assert read.calls["gelu"].node.meta["autocast"] is False


class TestEveryKindOfModel:
    """Names and fingerprint are those of the first import, whatever it came from."""

    def test_pt2(self, tmp_path: Path) -> None:
        torch.export.save(torch.export.export(nn.Linear(4, 4), (X,)), tmp_path / "net.pt2")
        assert_runs_the_same(load_program(str(tmp_path / "net.pt2")))

    def test_onnx(self, tmp_path: Path) -> None:
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
        weight = helper.make_tensor("w", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
        nodes = [helper.make_node("Mul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
        graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
        model.ir_version = 10
        onnx.save(model, tmp_path / "net.onnx")
        assert_runs_the_same(load_program(str(tmp_path / "net.onnx")))

    def test_factory(self) -> None:
        assert_runs_the_same(load_program("examples.networks:mnist"))

    def test_config(self, tmp_path: Path) -> None:
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        document = sizes | {"model_type": "bert", "vocab_size": 50, "max_position_embeddings": 8}
        (tmp_path / "config.json").write_text(json.dumps(document), encoding="utf-8")
        program = load_program(str(tmp_path / "config.json"))
        read = program_from_dict(json.loads(json.dumps(program_to_dict(program))), program.graph, ())
        assert read.out_spec == program.out_spec
        assert read.graph.fingerprint == program.graph.fingerprint
        assert all(tensor.is_meta for tensor in read.state.values())


def refused(document: dict[str, Any], graph: Graph) -> str:
    with pytest.raises(InputError) as error:
        program_from_dict(document, graph, ())
    return str(error.value)


class TestRefused:
    def document(self) -> tuple[dict[str, Any], Graph]:
        program = program_of("tied")
        return program_to_dict(program), program.graph

    @pytest.mark.parametrize("version", [2, None, True, "1"])
    def test_another_version(self, version: object) -> None:
        document, graph = self.document()
        assert refused(document | {"version": version}, graph) == (
            f"the program has the version {version!r}, this planner reads 1; update the planner or write it anew"
        )

    def test_another_graph(self) -> None:
        document, graph = self.document()
        other = program_of("branches").graph
        assert refused(document, other) == (
            f"the program is that of the graph '{graph.fingerprint}', the plan's is {other.fingerprint}; "
            "write both anew"
        )

    @pytest.mark.parametrize("key", ["calls", "state", "in_spec", "in_leaves", "out_spec", "out_leaves"])
    def test_a_part_is_missing(self, key: str) -> None:
        document, graph = self.document()
        del document[key]
        assert refused(document, graph) == f"the program is damaged: KeyError('{key}'); write it anew"

    @pytest.mark.parametrize("args", [[{"tensor": "nowhere"}], [{"what": 1}], [{"tensor": "ids", "float": "1"}], 3])
    def test_damaged_arguments(self, args: Any) -> None:
        document, graph = self.document()
        document["calls"]["gelu"]["args"] = args
        assert refused(document, graph).startswith("the program is damaged: ")

    def test_a_damaged_form(self) -> None:
        document, graph = self.document()
        assert refused(document | {"out_spec": "x"}, graph).startswith("the program is damaged: JSONDecodeError")

    def test_an_operator_that_is_not_known_here(self) -> None:
        graph = Graph(
            "twist",
            (Op("twist", "mylib.twist.default", ("x",), ("y",)),),
            (Described("x", (1,), "float32", Role.INPUT), Described("y", (1,), "float32", Role.ACTIVATION)),
            ("x",),
            ("y",),
        )
        document, _ = self.document()
        document |= {"fingerprint": graph.fingerprint, "calls": {"twist": {"args": [{"tensor": "x"}]}}, "state": {}}
        assert refused(document, graph) == (
            f"operator 'twist' is of the kind 'mylib.twist.default', which torch {torch.__version__} does not know; "
            "import the library that defines it, or install the torch that the model was imported with"
        )

    def test_a_form_without_a_name(self) -> None:
        with pytest.raises(InputError) as error:
            program_to_dict(program_of("options"))
        text = str(error.value)
        assert text.startswith("the form of what the model takes or returns cannot be written to a file (No registered")
        assert text.endswith(
            "use tuples, lists and dictionaries, or register its class with serialized_type_name='its.module.Class'"
        )

    @pytest.mark.parametrize(("name", "module"), [("no.such.Class", "no.such"), ("Class", "Class"), ("json.C", "json")])
    def test_a_form_that_is_not_known_here(self, name: str, module: str) -> None:
        document, graph = self.document()
        spec = json.dumps([1, {"type": name, "context": "null", "children_spec": []}])
        assert refused(document | {"out_spec": spec}, graph) == (
            f"the model takes or returns a '{name}', which is not known here; import its module first "
            f"(import {module}, or --import {module} for planner rank)"
        )

    def test_an_argument_that_is_no_json(self) -> None:
        program = program_of("tied")
        node = program.calls["gelu"].node
        kwargs = node.kwargs
        try:
            node.kwargs = {"approximate": slice(1)}
            with pytest.raises(InputError) as error:
                program_to_dict(program)
        finally:
            node.kwargs = kwargs
        assert str(error.value) == (
            "operator 'gelu' of 'Tied' has an argument of the type slice, which cannot be written to a file"
        )

    def test_there_is_no_module(self) -> None:
        read = again(program_of("tied"))
        with pytest.raises(InputError, match=r"^this program was read from a file, without its module; give the model"):
            read.module(*read.example_inputs)
