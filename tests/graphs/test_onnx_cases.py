"""ONNX's own test cases: every operator that we have, as its authors meant it."""

import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import ModelProto, TensorProto, numpy_helper, version_converter
from onnx.backend.test.loader import load_model_tests

from graphs.common.errors import InputError
from graphs.importers.onnx.control_flow import KINDS, nodes_of
from graphs.importers.onnx.operators import OPERATORS
from graphs.importers.onnx.operators.registry import DTYPES, FLOAT8, tensor_of
from graphs.importers.onnx.reading import OLDEST_OPSET, opset_of, without_functions
from tests.graphs.onnx_models import run, with_weights

pytestmark = pytest.mark.slow

Example = tuple[str, ModelProto, list[tuple[list[Any], list[Any]]], float]  # name, model, inputs and outputs, rtol

DIFFERENT = {
    # Slopes per channel without the dimensions behind it, as files before opset 7 have them.
    "test_PReLU_1d_multiparam": "opset 6",
    "test_PReLU_2d_multiparam": "opset 6",
    "test_PReLU_3d_multiparam": "opset 6",
}


def supported(model: ModelProto) -> bool:
    """Whether every operator is in our table."""
    return all(node.domain == "" and (node.op_type in {*OPERATORS, *KINDS}) for node in nodes_of(model.graph))


def expanded(model: ModelProto) -> ModelProto:
    """The model without the functions of the standard that our table lacks, where onnx can expand them."""
    try:
        return without_functions(model)
    except RuntimeError:  # the inliner of onnx 1.23 needs the type of an operand that is left out
        return model


def from_files(kind: str) -> Iterator[Example]:
    """The cases that come as a folder with a model, inputs and outputs."""
    for case in load_model_tests(kind=kind):
        folder = Path(case.model_dir or "")
        model, data = onnx.load(folder / "model.onnx"), folder / "test_data_set_0"
        inputs, outputs = (
            [onnx.load_tensor(data / f"{part}_{i}.pb") for i in range(len(list(data.glob(f"{part}_*.pb"))))]
            if supported(model)
            else []
            for part in ("input", "output")
        )
        yield case.name, model, [(inputs, outputs)], case.rtol


@pytest.fixture(scope="module")
def examples() -> dict[str, list[Example]]:
    """All cases of operators that we have: by operator, or "several" where the model has more than one node."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ONNX makes the cases when they are loaded, dividing by 0 here and there
        cases: list[Any] = load_model_tests(kind="node")
    made: list[Example] = [(case.name, expanded(case.model), case.data_sets, case.rtol) for case in cases]
    for kind in ("simple", "pytorch-converted", "pytorch-operator"):
        made += list(from_files(kind))
    found = defaultdict(list)
    for example in made:
        model = example[1]
        if supported(model):
            found[
                "several"
                if len(model.graph.node) > 1 or model.graph.node[0].op_type in KINDS
                else model.graph.node[0].op_type
            ].append(example)
    return found


def arrays_of(values: list[Any]) -> list[np.ndarray]:
    """Arrays, also where a case has them as protocol buffers."""
    return [numpy_helper.to_array(value) if isinstance(value, TensorProto) else value for value in values]


def computed(model: ModelProto, feeds: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """Our results; whole numbers become weights of the file where a shape follows from them within a function."""
    try:
        return run(model, feeds)
    except InputError as error:
        if "values of the inputs" not in str(error):
            raise
    known = {name: value for name, value in feeds.items() if value.dtype.kind in "iu" or not value.shape}
    return run(with_weights(model, known), {name: value for name, value in feeds.items() if name not in known})


def agrees(example: Example) -> bool:
    """Whether we compute what the case says; False where we refuse to, with a reason."""
    _, model, data_sets, rtol = example
    if opset_of(model) < OLDEST_OPSET:
        model = version_converter.convert_version(model, OLDEST_OPSET)
    weights = {initializer.name for initializer in model.graph.initializer}
    names = [info.name for info in model.graph.input if info.name not in weights]
    for inputs, outputs in data_sets:
        feeds = dict(zip(names, arrays_of(inputs), strict=True))
        try:
            results = computed(model, feeds)
        except InputError as error:
            message = str(error)
            assert "is not supported" in message or "element type" in message or "values of the inputs" in message
            return False
        for result, wanted in zip(results, arrays_of(outputs), strict=True):
            truth = tensor_of(numpy_helper.from_array(wanted))
            assert result.dtype == truth.dtype
            assert result.shape == truth.shape
            half = truth.dtype in (torch.float16, torch.bfloat16)
            if truth.dtype in FLOAT8:
                result, truth = result.float(), truth.float()
            torch.testing.assert_close(result, truth, rtol=2**-6 if half else rtol, atol=1e-6, equal_nan=True)
    return True


def is_ours(example: Example) -> bool:
    """Whether a case is about tensors of types that we have."""
    return all(
        info.type.WhichOneof("value") == "tensor_type" and info.type.tensor_type.elem_type in DTYPES
        for info in [*example[1].graph.input, *example[1].graph.output]
    )


@pytest.mark.parametrize("kind", [*sorted(kind for kind in OPERATORS if "::" not in kind), "several"])
def test_the_cases_of_an_operator(kind: str, examples: dict[str, list[Example]]) -> None:
    cases = [example for example in examples[kind] if example[0] not in DIFFERENT and is_ours(example)]
    agreed = {example[0]: agrees(example) for example in cases}
    assert any(agreed.values())
