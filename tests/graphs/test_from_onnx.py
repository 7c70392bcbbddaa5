"""ONNX files: the nine real networks that come with the onnx package, those that PyTorch writes, and broken ones."""

import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from graphs.common.errors import InputError
from graphs.importers.from_onnx import onnx_module
from tests.graphs.onnx_models import ints, model_of, reals, saved, tied_model, value_info

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

# Nodes that are left once the weights are computed. AlexNet: 5 Conv + 7 Relu + 2 LRN + 3 MaxPool + 1 Reshape +
# 3 Gemm + 2 Dropout + 1 Softmax = 24. DenseNet: 910 without the 2·121 Unsqueeze of its scales = 668.
N_NODES = {
    "bvlc_alexnet": 24,
    "densenet121": 668,
    "inception_v1": 143,
    "inception_v2": 371,
    "resnet50": 176,
    "shufflenet": 203,
    "squeezenet": 66,
    "vgg19": 46,
    "zfnet512": 22,
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Others may want the cores too."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


def n_nodes(module: nn.Module) -> int:
    """ONNX nodes among the submodules."""
    return sum(type(part).__name__ == "OnnxNode" for part in module.modules())


def same_when_exported(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> bool:
    """Whether torch.export's program gives the very same bits."""
    exported = torch.export.export(module, inputs, strict=False).module()
    pairs = zip(torch.utils._pytree.tree_leaves(exported(*inputs)), tree_of(module(*inputs)), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def tree_of(value: Any) -> list[torch.Tensor]:
    """One tensor or several, as a list."""
    return torch.utils._pytree.tree_leaves(value)


@pytest.mark.slow
@pytest.mark.parametrize("name", N_NODES)
def test_a_real_network_gives_the_outputs_that_come_with_it(name: str) -> None:
    module, (example,) = onnx_module(LIGHT / f"light_{name}.onnx")
    # ONNX's test runner feeds 0/n, 1/n, 2/n, ...
    x = (torch.arange(example.numel()) / example.numel()).to(torch.float32).reshape(example.shape)
    expected = numpy_helper.to_array(onnx.load_tensor(LIGHT / f"light_{name}_output_0.pb"))
    torch.testing.assert_close(module(x), torch.from_numpy(expected.copy()), rtol=1e-3, atol=1e-7)
    assert n_nodes(module) == N_NODES[name]
    assert same_when_exported(module, (example,))


def test_a_file_for_one_sample_takes_a_batch_if_its_reshapes_let_it() -> None:
    path = LIGHT / "light_shufflenet.onnx"
    one, _ = onnx_module(path)
    three, (batch,) = onnx_module(path, batch=3)
    assert batch.shape == (3, 3, 224, 224)
    assert not torch.equal(batch[0], batch[1])
    torch.testing.assert_close(three(batch), torch.cat([one(sample[None]) for sample in batch]))


def test_examples_are_deterministic_and_pick_rows_that_exist(tmp_path: Path) -> None:
    path = saved(tied_model(), tmp_path)
    (tokens,), (again,) = onnx_module(path, batch=20)[1], onnx_module(path, batch=20)[1]
    assert tokens.shape == (20, 5)
    assert tokens.dtype == torch.int64
    assert set(tokens.flatten().tolist()) == {0, 1, 2, 3, 4, 5, 6}
    assert torch.equal(tokens, again)


def test_integers_that_pick_nothing_are_ones_and_floats_lie_between_0_and_1(tmp_path: Path) -> None:
    inputs = [value_info("mask", [2], TensorProto.INT64), value_info("x", [2], TensorProto.FLOAT16)]
    nodes = [
        helper.make_node("Cast", ["mask"], ["m"], to=TensorProto.FLOAT16),
        helper.make_node("Mul", ["m", "x"], ["y"]),
    ]
    module, (mask, x) = onnx_module(saved(model_of(nodes, inputs, ["y"]), tmp_path))
    assert mask.tolist() == [1, 1]
    assert x.dtype == torch.float16
    assert 0 <= x.min() < x.max() < 1
    assert torch.equal(module(mask, x), x)


def test_shapes_and_what_follows_from_them_are_computed_at_import(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Concat", ["n", "rest"], ["target"], axis=0),
        helper.make_node("ConstantOfShape", ["two"], ["w"], value=numpy_helper.from_array(reals(3))),
        helper.make_node("Reshape", ["x", "target"], ["flat"], name="flat"),
        helper.make_node("Mul", ["flat", "w"], ["y"], name="mul"),
    ]
    weights = {"zero": ints(0), "rest": ints(-1), "two": ints(2)}
    model = model_of(nodes, [value_info("x", ["n", 2, 1])], ["y"], weights)
    module, (x,) = onnx_module(saved(model, tmp_path), batch=4)
    assert n_nodes(module) == 2
    assert {name: value.tolist() for name, value in module.named_parameters()} == {"mul.w": [3, 3]}
    assert torch.equal(module(x), x.reshape(4, 2) * 3)


def test_the_branch_of_a_known_condition_takes_the_place_of_an_if(tmp_path: Path) -> None:
    def branch(kind: str) -> onnx.GraphProto:
        return helper.make_graph([helper.make_node(kind, ["x"], ["inner"])], kind, [], [value_info("inner", None)])

    nodes = [
        helper.make_node("Size", ["x"], ["n"]),
        helper.make_node("Equal", ["n", "six"], ["is_six"]),
        helper.make_node("If", ["is_six"], ["a"], then_branch=branch("Neg"), else_branch=branch("Abs")),
        helper.make_node("Not", ["is_six"], ["is_not"]),
        helper.make_node("If", ["is_not"], ["b"], then_branch=branch("Neg"), else_branch=branch("Exp")),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    model = model_of(nodes, [value_info("x", [2, 3])], ["y"], {"six": ints(6)})
    module, (x,) = onnx_module(saved(model, tmp_path))
    assert torch.equal(module(x), -x + x.exp())
    assert same_when_exported(module, (x,))


def test_functions_are_put_in_place_of_their_calls(tmp_path: Path) -> None:
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]
    double = helper.make_function(
        "mine", "Double", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], opsets[:1]
    )
    node = helper.make_node("Double", ["x"], ["y"], domain="mine")
    graph = helper.make_graph([node], "g", [value_info("x", [2])], [value_info("y", [2])])
    path = saved(helper.make_model(graph, opset_imports=opsets, functions=[double], ir_version=8), tmp_path)
    module, (x,) = onnx_module(path)
    assert torch.equal(module(x), x + x)


def test_outputs_may_be_several_an_input_or_a_constant(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["n"]), helper.make_node("Neg", ["w"], ["c"])]
    model = model_of(nodes, [value_info("x", [1])], ["n", "x", "c"], {"w": reals(2)})
    module, (x,) = onnx_module(saved(model, tmp_path))
    assert [value.tolist() for value in module(x)] == [(-x).tolist(), x.tolist(), [-2]]


def test_weights_may_lie_beside_the_file(tmp_path: Path) -> None:
    model = model_of([helper.make_node("Mul", ["x", "w"], ["y"])], [value_info("x", [2])], ["y"], {"w": reals(1.5, -2)})
    path = saved(model, tmp_path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    module, _ = onnx_module(path)
    assert module(torch.ones(2)).tolist() == [1.5, -2]
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(
        InputError, match=r"^.*model.onnx keeps weights in separate files.*; copy them along with"
    ) as error:
        onnx_module(path)
    assert "\n" not in str(error.value)


def test_weights_may_be_of_a_type_that_numpy_does_not_have(tmp_path: Path) -> None:
    model = model_of([helper.make_node("Mul", ["x", "w"], ["y"])], [value_info("x", [2], TensorProto.BFLOAT16)], ["y"])
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.BFLOAT16, [2], [1.5, -2.0]))
    module, _ = onnx_module(saved(model, tmp_path))
    assert module(torch.ones(2, dtype=torch.bfloat16)).tolist() == [1.5, -2]


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(10, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.lstm(self.embed(tokens))[0])
        return scores


def cnn() -> nn.Module:
    layers = [nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.SiLU(), nn.MaxPool2d(3, 2, 1, ceil_mode=True)]
    layers += [nn.Conv2d(8, 8, 3, groups=4), nn.GroupNorm(2, 8), nn.GELU(), nn.Upsample(scale_factor=2)]
    layers += [nn.ConvTranspose2d(8, 4, 3, 2, 1, 1), nn.Hardswish(), nn.ReflectionPad2d(1), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4, 3), nn.LogSoftmax(1))


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor, tuple[int, ...]]] = {
    "cnn": (cnn, torch.rand(2, 3, 16, 16), (11, 18)),
    "lstm": (Lstm, torch.randint(11, (2, 4)), (9, 18)),
    "transformer": (transformer, torch.rand(2, 5, 8), (14, 18, 20)),
}


@pytest.mark.parametrize(("name", "opset"), [(name, opset) for name, entry in NETWORKS.items() for opset in entry[2]])
def test_what_pytorch_writes_comes_back(name: str, opset: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, x, _ = NETWORKS[name]
    network = make().eval()
    path = tmp_path / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about this exporter's age; the newer one needs a package more
        torch.onnx.export(
            network, (x,), path, dynamo=False, opset_version=opset, input_names=["x"], dynamic_axes={"x": {0: "n"}}
        )
    module, inputs = onnx_module(path, batch=2)
    assert inputs[0].shape == x.shape
    assert inputs[0].dtype == x.dtype
    torch.testing.assert_close(module(x), network(x), rtol=1e-4, atol=1e-5)
    assert same_when_exported(module, inputs)


def relu(shape: list[int | str | None], **options: Any) -> onnx.ModelProto:
    """A model of one node."""
    return model_of([helper.make_node("Relu", ["x"], ["y"], name="act")], [value_info("x", shape)], ["y"], **options)


def test_a_file_that_is_missing_or_no_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^.*none\.onnx: no such file; give the path of an \.onnx file$"):
        onnx_module(tmp_path / "none.onnx")
    for name in ("garbage.json", "garbage.onnx"):
        garbage = tmp_path / name
        garbage.write_bytes(bytes(range(256)))
        with pytest.raises(InputError, match=rf"^.*{name} is not an ONNX file \(it can't be decoded\); export the "):
            onnx_module(garbage)
    garbage.write_bytes(b"")
    with pytest.raises(InputError, match=r"^.*garbage\.onnx is not an ONNX file, or one without nodes or outputs; "):
        onnx_module(garbage)


def test_all_unknown_operators_are_named_at_once(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["h"]),
        helper.make_node("Fused", ["h"], ["i"], name="f", domain="com.mine"),
        helper.make_node("DFT", ["i"], ["j"], name="d"),
        helper.make_node("DFT", ["j"], ["y"], name="e"),
    ]
    model = model_of(nodes, [value_info("x", [2, 2])], ["y"])
    model.opset_import.append(helper.make_opsetid("com.mine", 3))
    expected = (
        "uses operators that are not supported: com.mine::Fused (opset 3, node 'f'), DFT (opset 21, node 'd'); "
        "export the PyTorch model itself (.pt2 or package.module:factory), "
        "or add them to graphs/importers/onnx/operators"
    )
    with pytest.raises(InputError, match=f"^.*model.onnx {re.escape(expected)}$"):
        onnx_module(saved(model, tmp_path))


def test_symbolic_dimensions_need_a_size(tmp_path: Path) -> None:
    path = saved(relu(["batch", "steps", 4]), tmp_path)
    expected = (
        "dimension 1 of input 'x' is symbolic ('steps'); give its size, as --size steps=128 does, "
        "or export the model with a number there"
    )
    with pytest.raises(InputError, match=f"^{re.escape(expected)}$"):
        onnx_module(path)
    assert onnx_module(path, sizes={"steps": 3})[1][0].shape == (1, 3, 4)
    assert onnx_module(path, batch=2, sizes={"steps": 3})[1][0].shape == (2, 3, 4)
    with pytest.raises(InputError, match=r"^dimension 1 of input 'x' is symbolic \(without a name\); export the model"):
        onnx_module(saved(relu([None, None]), tmp_path))


def test_a_batch_that_the_file_cannot_take(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^a batch of 0 is asked for; it must be 1 or more$"):
        onnx_module(saved(relu([1]), tmp_path), batch=0)
    two = [value_info("a", [2, 3]), value_info("b", [3, 3])]
    product = model_of([helper.make_node("MatMul", ["a", "b"], ["y"])], two, ["y"])
    with pytest.raises(InputError, match=r"^a batch of 4 .* the inputs share no first dimension: 'a' \[2, 3\], 'b' "):
        onnx_module(saved(product, tmp_path), batch=4)
    node = helper.make_node("Reshape", ["x", "shape"], ["y"], name="to_rows")
    rows = model_of([node], [value_info("x", [2, 6])], ["y"], {"shape": ints(4, 3)})
    with pytest.raises(InputError, match=r"^node 'to_rows' \(Reshape, .*; export the model for this batch$"):
        onnx_module(saved(rows, tmp_path), batch=3)
    rows = model_of([node], [value_info("x", [2, 6])], ["y"], {"shape": ints(-1, 2)})
    rows.graph.output[0].CopyFrom(value_info("y", [2, 2]))
    with pytest.raises(
        InputError, match=r"^a batch of 3 .*, but output 'y' comes out as \[9, 2\]: the file fixes the "
    ):
        onnx_module(saved(rows, tmp_path), batch=3)


def test_a_shape_that_depends_on_values(tmp_path: Path) -> None:
    inputs = [value_info("x", [2]), value_info("shape", [1], TensorProto.INT64)]
    model = model_of([helper.make_node("Reshape", ["x", "shape"], ["y"], name="r")], inputs, ["y"])
    expected = (
        "node 'r' (Reshape): operand 1 ('shape') decides the result's shape, and it is computed from the values of "
        "the inputs; export the model so that shapes are static"
    )
    with pytest.raises(InputError, match=f"^{re.escape(expected)}$"):
        onnx_module(saved(model, tmp_path))


def test_files_that_break_the_rules(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^.* is written for opset 6, and 7 is the oldest supported; lift it with "):
        onnx_module(saved(relu([1], opset=6), tmp_path))
    unsorted = model_of([helper.make_node("Relu", ["z"], ["y"])], [value_info("x", [1])], ["y"])
    with pytest.raises(
        InputError, match=r"^.*model\.onnx is not a valid ONNX model: .*; export the model anew$"
    ) as error:
        onnx_module(saved(unsorted, tmp_path))
    assert "\n" not in str(error.value)
    words = relu([1])
    words.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
    with pytest.raises(InputError, match=r"^input 'x' has the element type string, which the importer can't compute"):
        onnx_module(saved(words, tmp_path))
