"""What exporters and optimizers write beside plain graphs: loops, large weights, fused and quantized operators."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from torch.nn import functional

from graphs.common.errors import InputError
from graphs.importers.from_onnx import onnx_module
from graphs.importers.load import load_program
from graphs.importers.onnx import control_flow
from tests.graphs.onnx_models import ints, model_of, reals, saved, value_info

RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    """Numbers around 0."""
    return RANDOM.normal(size=shape).astype(np.float32)


def results(model: onnx.ModelProto, folder: Path, *inputs: np.ndarray) -> list[torch.Tensor]:
    """The outputs of an imported file."""
    outputs = load_program(str(saved(model, folder))).run(*map(torch.from_numpy, inputs))
    return [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)


def fused(kind: str, operands: Sequence[Any], folder: Path, **attributes: Any) -> torch.Tensor:
    """The result of an operator of onnxruntime's; operands that are None are left out."""
    names = ["" if value is None else f"x{i}" for i, value in enumerate(operands)]
    given = {name: value for name, value in zip(names, operands, strict=True) if name}
    node = helper.make_node(kind, names, ["y"], name="node", domain="com.microsoft", **attributes)
    inputs = [
        value_info(name, value.shape, helper.np_dtype_to_tensor_dtype(value.dtype)) for name, value in given.items()
    ]
    model = model_of([node], inputs, ["y"], opset=17)
    model.opset_import.add(domain="com.microsoft", version=1)
    (result,) = results(model, folder, *given.values())
    return result


def near(result: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-5)


def test_activations_that_onnxruntime_fuses(tmp_path: Path) -> None:
    x, bias = floats(2, 3), floats(3)
    given, added = torch.from_numpy(x), torch.from_numpy(bias)
    near(fused("Gelu", [x], tmp_path), functional.gelu(given))
    near(fused("BiasGelu", [x, bias], tmp_path), functional.gelu(given + added))
    near(fused("FastGelu", [x, bias], tmp_path), functional.gelu(given + added, approximate="tanh"))
    near(fused("QuickGelu", [x], tmp_path, alpha=1.5), given * torch.sigmoid(1.5 * given))


def test_norms_that_onnxruntime_fuses(tmp_path: Path) -> None:
    x, skip, scale, bias = floats(2, 3, 4), floats(2, 3, 4), floats(4), floats(4)
    total, gamma, beta = torch.from_numpy(x + skip), torch.from_numpy(scale), torch.from_numpy(bias)
    near(fused("SkipLayerNormalization", [x, skip, scale, bias], tmp_path, epsilon=1e-5),
         functional.layer_norm(total, [4], gamma, beta))  # fmt: skip
    near(fused("SkipSimplifiedLayerNormalization", [x, skip, scale], tmp_path, epsilon=1e-6),
         functional.rms_norm(total, [4], gamma, 1e-6))  # fmt: skip


@pytest.mark.parametrize("kind", ["LayerNormalization", "SimplifiedLayerNormalization"])
def test_norms_that_onnxruntime_writes_as_if_they_were_the_standards(kind: str, tmp_path: Path) -> None:
    x, scale = floats(2, 4), floats(4)
    node = helper.make_node(kind, ["x", "scale"], ["y"], epsilon=1e-5)
    model = model_of([node], [value_info("x", [2, 4])], ["y"], {"scale": scale}, opset=13)
    norm = functional.layer_norm if kind == "LayerNormalization" else functional.rms_norm
    (result,) = results(model, tmp_path, x)
    near(result, norm(torch.from_numpy(x), [4], torch.from_numpy(scale), eps=1e-5))


def test_products_that_onnxruntime_fuses(tmp_path: Path) -> None:
    a, b, image, kernel = floats(2, 3, 4), floats(2, 5, 4), floats(1, 2, 5, 5), floats(3, 2, 3, 3)
    near(fused("FusedMatMul", [a, b], tmp_path, transB=1, alpha=0.5), torch.from_numpy(0.5 * a @ b.transpose(0, 2, 1)))
    near(fused("FusedGemm", [a[0], b[0]], tmp_path, transB=1, activation="LeakyRelu", activation_alpha=0.2),
         functional.leaky_relu(torch.from_numpy(a[0] @ b[0].T), 0.2))  # fmt: skip
    plain = functional.conv2d(torch.from_numpy(image), torch.from_numpy(kernel), padding=1)
    added = floats(1, 3, 5, 5)
    near(fused("FusedConv", [image, kernel, None, added], tmp_path, pads=[1] * 4, activation="Relu"),
         torch.relu(plain + torch.from_numpy(added)))  # fmt: skip


def by_hand(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, n_heads: int, hidden: torch.Tensor | None
) -> torch.Tensor:
    """Attention head by head, of [batch, steps, width]; ``hidden`` says which scores count for nothing."""
    parts = []
    for q, k, v in zip(*(x.chunk(n_heads, -1) for x in (query, key, value)), strict=True):
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        scores = scores if hidden is None else scores.masked_fill(hidden, -1e4)
        parts.append(scores.softmax(-1) @ v)
    return torch.cat(parts, -1)


def test_attention_that_onnxruntime_fuses(tmp_path: Path) -> None:
    x, weight, bias = floats(2, 3, 4), floats(4, 12), floats(12)
    mask = np.array([[1, 1, 1], [1, 1, 0]], np.int32)
    query, key, value = torch.from_numpy(x @ weight + bias).chunk(3, -1)
    hidden = torch.from_numpy(mask == 0)[:, None]
    wanted = by_hand(query, key, value, 2, hidden)
    near(fused("Attention", [x, weight, bias, mask], tmp_path, num_heads=2), wanted)
    later = torch.ones(3, 3, dtype=torch.bool).triu(1)
    causal = by_hand(query, key, value, 2, later)
    near(fused("Attention", [x, weight, bias], tmp_path, num_heads=2, unidirectional=1), causal)
    three = [part.contiguous().numpy() for part in (query, key, value)]
    near(fused("MultiHeadAttention", [*three, None, mask], tmp_path, num_heads=2), wanted)


def test_what_is_left_of_onnxruntimes_operators_is_refused_with_a_way_back(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"com\.microsoft::NhwcMaxPool .*graph_optimization_level = ORT_DISABLE_ALL"):
        fused("NhwcMaxPool", [np.ones((1, 2, 2, 1), np.int8)], tmp_path, kernel_shape=[1, 1])


def test_quantized_networks_compute_what_the_reference_does(tmp_path: Path) -> None:
    image, kernel = RANDOM.integers(0, 255, (1, 2, 4, 4)).astype(np.uint8), RANDOM.integers(-9, 9, (3, 2, 3, 3))
    weights: dict[str, Any] = {
        "s": reals(0.1).reshape(()),
        "z": np.uint8(7),
        "w": kernel.astype(np.int8),
        "ws": reals(0.1, 0.2, 0.3),
    }
    weights |= {"wz": np.zeros(3, np.int8), "b": np.array([5, -5, 900], np.int32), "ys": reals(3.0).reshape(())}
    nodes = [
        helper.make_node("QLinearConv", ["x", "s", "z", "w", "ws", "wz", "ys", "z", "b"], ["c"], pads=[1] * 4),
        helper.make_node("DequantizeLinear", ["c", "ys", "z"], ["d"]),
        helper.make_node("DynamicQuantizeLinear", ["d"], ["q", "qs", "qz"]),
        helper.make_node("QLinearMatMul", ["q", "qs", "qz", "q", "qs", "qz", "ys", "z"], ["y"]),
    ]
    model = model_of(nodes, [value_info("x", [1, 2, 4, 4], TensorProto.UINT8)], ["d", "y"], weights, opset=21)
    truth = ReferenceEvaluator(model).run(None, {"x": image})
    for result, wanted in zip(results(model, tmp_path, image), truth, strict=True):
        off = (result.double() - torch.from_numpy(np.asarray(wanted)).double()).abs().max()
        assert off <= (0 if result.is_floating_point() else 1)  # a product that lies between two integers


def loop(condition: str = "going", trip: str = "n") -> onnx.ModelProto:
    """x doubled in each of n rounds, which are stacked as well."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["h", "h"], ["next"]),
            helper.make_node("Cast", ["i"], ["number"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["next", "number"], ["row"]),
            helper.make_node("Identity", ["go"], ["still"]),
        ],
        "body",
        [value_info("i", [], TensorProto.INT64), value_info("go", [], TensorProto.BOOL), value_info("h", [2])],
        [value_info("still", [], TensorProto.BOOL), value_info("next", [2]), value_info("row", [2])],
    )
    nodes = [helper.make_node("Loop", [trip, condition, "x"], ["last", "rows"], name="rounds", body=body)]
    weights = {"n": ints(3).reshape(()), "going": np.array(True)}
    return model_of(nodes, [value_info("x", [2])], ["last", "rows"], weights)


def test_a_loop_of_a_known_number_of_rounds_becomes_a_row_of_them(tmp_path: Path) -> None:
    last, rows = results(loop(), tmp_path, reals(1, 2))
    assert last.tolist() == [8, 16]
    assert rows.tolist() == [[2, 4], [5, 9], [10, 18]]  # doubled, plus the number of the round


def test_a_loop_that_the_inputs_end_is_refused(tmp_path: Path) -> None:
    model = loop()
    model.graph.input.append(value_info("m", [], TensorProto.INT64))
    model.graph.node[0].input[0] = "m"
    with pytest.raises(InputError, match=r"node 'rounds' \(Loop\): the values of the inputs decide the number of its"):
        results(model, tmp_path, reals(1, 2), ints(3).reshape(()))


def test_a_loop_without_an_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"node 'rounds' \(Loop\) has more than 2000 rounds"):
        results(loop(trip=""), tmp_path, reals(1, 2))


def test_a_scan_becomes_a_row_of_rounds_also_backward(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["h", "step"], ["sum"]), helper.make_node("Identity", ["sum"], ["out"])],
        "body",
        [value_info("h", [2]), value_info("step", [2])],
        [value_info("sum", [2]), value_info("out", [2])],
    )
    keys: dict[str, Any] = {"num_scan_inputs": 1, "scan_input_axes": [1], "scan_output_axes": [1]}
    keys |= {"scan_input_directions": [1], "scan_output_directions": [1]}
    node = helper.make_node("Scan", ["zero", "x"], ["last", "sums"], body=body, **keys)
    model = model_of([node], [value_info("x", [2, 3])], ["last", "sums"], {"zero": reals(0, 0)})
    x = reals([1, 2, 3], [10, 20, 30])
    last, sums = results(model, tmp_path, x)
    assert last.tolist() == [6, 60]
    assert sums.tolist() == [[6, 5, 3], [60, 50, 30]]


def test_outputs_need_no_shape_and_no_type(tmp_path: Path) -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], [value_info("x", [2])], ["y"])
    for part in ("type", "shape"):
        if part == "type":
            model.graph.output[0].ClearField("type")
        else:
            model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
        (result,) = results(model, tmp_path, reals(-1, 2))
        assert result.tolist() == [0, 2]


def test_text_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    node = helper.make_node("AveragePool", ["pixels"], ["y"], "pool", kernel_shape=[2, 2], auto_pad="SAME_UPPER")
    data = model_of([node], [value_info("pixels", [1, 1, 4, 4])], ["y"]).SerializeToString()
    for old, new, message in (
        (b"SAME_UPPER", b"SAME_\xb0PPER", r"node 'pool' \(AveragePool\): the attribute auto_pad is no text in UTF-8"),
        (b"pixels", b"pix\xb0ls", r"names that are no text in UTF-8, such as b'pix\\xb0ls'"),
        (b"AveragePool", b"Average\xffool", "names that are no text in UTF-8"),
    ):
        (tmp_path / "model.onnx").write_bytes(data.replace(old, new))
        with pytest.raises(InputError, match=message):
            load_program(str(tmp_path / "model.onnx"))


def test_a_changed_byte_anywhere_gives_a_network_or_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_flow, "MOST_ROUNDS", 20)
    data = loop().SerializeToString()
    path = tmp_path / "model.onnx"
    for seed in range(200):
        rng = np.random.default_rng(seed)
        changed = bytearray(data)
        changed[rng.integers(len(changed))] = rng.integers(256)
        path.write_bytes(bytes(changed))
        with contextlib.suppress(InputError):
            onnx_module(path)


def test_inputs_keep_their_names_and_can_be_given_by_them(tmp_path: Path) -> None:
    names = ["input_ids", "input.1", "x:0", "lambda", "x_0"]
    nodes = [helper.make_node("Concat", names, ["y"], axis=0)]
    program = load_program(str(saved(model_of(nodes, [value_info(name, [1]) for name in names], ["y"]), tmp_path)))
    assert program.graph.inputs == ("input_ids", "input_1", "x_0", "lambda_", "x_0_1")
    one, two, three, four, five = (torch.tensor([float(i)]) for i in range(5))
    result = program.run(one, two, x_0_1=five, lambda_=four, x_0=three)
    assert result.tolist() == [0, 1, 2, 3, 4]


def test_outputs_keep_their_names(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["h/last.1"]),
        helper.make_node("Neg", ["h/last.1"], ["logits"]),
        helper.make_node("Split", ["x"], ["left", "right"], num_outputs=2),
    ]
    model = model_of(nodes, [value_info("x", [2])], ["logits", "h/last.1", "left", "x"])
    program = load_program(str(saved(model, tmp_path)))
    assert program.graph.outputs == ("logits", "h_last_1", "split_with_sizes.0", "x")
    assert [result.tolist() for result in program.run(torch.tensor([-1.0, 2.0]))] == [[0, -2], [0, 2], [-1], [-1, 2]]


def large(folder: Path, rows: int) -> Path:
    """A table of [rows, 1024] floats in a file of zeros that takes no space on the disk."""
    n_bytes = rows * 1024 * 4
    with (folder / "weights.bin").open("wb") as data:
        data.truncate(n_bytes)
    table = TensorProto(
        name="table", data_type=TensorProto.FLOAT, dims=[rows, 1024], data_location=TensorProto.EXTERNAL
    )
    for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", str(n_bytes))):
        table.external_data.add(key=key, value=value)
    model = model_of(
        [helper.make_node("Gather", ["table", "i"], ["y"])], [value_info("i", [2], TensorProto.INT64)], ["y"]
    )
    model.graph.initializer.append(table)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder / "model.onnx"


def test_weights_above_two_gigabytes_stay_in_their_file(tmp_path: Path) -> None:
    program = load_program(str(large(tmp_path, 600_000)))  # 2.46 GB
    assert max(tensor.n_bytes for tensor in program.graph.tensors) > onnx.checker.MAXIMUM_PROTOBUF
    assert program.run(torch.tensor([-1, 0])).shape == (2, 1024)


def test_a_file_of_weights_that_is_too_short_is_named(tmp_path: Path) -> None:
    path = large(tmp_path, 4)
    with (tmp_path / "weights.bin").open("r+b") as data:
        data.truncate(100)
    with pytest.raises(InputError, match=r"^.*model.onnx keeps weights in separate files, and one can't be read"):
        load_program(str(path))
