"""Reads and checks ONNX files."""

from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # protobuf ships no types
from onnx import ModelProto, checker, inliner

from graphs.errors import InputError, one_line
from graphs.importers.onnx.fold import nodes_of
from graphs.importers.onnx.operators import OPERATORS

OLDEST_OPSET = 7  # earlier opsets broadcast by attributes


def read(path: Path) -> ModelProto:
    """Read and check an ONNX file with its external data, and inline its functions.

    Raises:
        InputError: if the file is missing or not an ONNX file, external data is missing, or a version or an operator is
            not supported.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; give the path of an .onnx file")
    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError as error:
        raise InputError(f"{path} is not an ONNX file (it can't be decoded); export the model anew") from error
    if not model.graph.node or not model.graph.output:
        raise InputError(f"{path} is not an ONNX file, or one without nodes or outputs; export the model anew")
    try:
        onnx.load_external_data_for_model(model, str(path.parent))
    except (OSError, ValueError, checker.ValidationError) as error:
        raise InputError(
            f"{path} keeps weights in files beside it, and one can't be read: {one_line(error)}; "
            f"copy them along with the model"
        ) from error
    if model.functions:
        model = inliner.inline_local_functions(model)
    _check_operators(model, path)
    _check_rules(model, path)
    return model


def opset_of(model: ModelProto) -> int:
    """The version of the standard operator set."""
    return max([entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")], default=1)


def _check_operators(model: ModelProto, path: Path) -> None:
    """Refuse unsupported operators, all in one message."""
    opset = opset_of(model)
    if opset < OLDEST_OPSET:
        raise InputError(
            f"{path} is written for opset {opset}, and {OLDEST_OPSET} is the oldest supported; "
            f"lift it with onnx.version_converter, or export the model anew"
        )
    versions = {entry.domain: entry.version for entry in model.opset_import}
    unknown: dict[str, str] = {}
    for node in nodes_of(model.graph):
        standard = node.domain in ("", "ai.onnx")
        if standard and (node.op_type in OPERATORS or node.op_type == "If"):
            continue
        kind = node.op_type if standard else f"{node.domain}::{node.op_type}"
        version = opset if standard else versions.get(node.domain, 1)
        unknown.setdefault(kind, f"{kind} (opset {version}, node {node.name or node.output[0]!r})")
    if unknown:
        raise InputError(
            f"{path} uses operators that are not supported: {', '.join(unknown.values())}; export the PyTorch model "
            f"itself (.pt2 or package.module:factory), or add them to graphs/importers/onnx/operators"
        )


def _check_rules(model: ModelProto, path: Path) -> None:
    """Run ONNX's own checker, and shorten its message to one line."""
    if model.graph.sparse_initializer:
        raise InputError(f"{path} has sparse weights, which are not supported; export the model with dense ones")
    if model.ByteSize() >= onnx.checker.MAXIMUM_PROTOBUF:
        return  # the checker takes such a model only from a file
    try:
        checker.check_model(model)
    except checker.ValidationError as error:
        raise InputError(f"{path} is not a valid ONNX model: {one_line(error)}; export the model anew") from error
