"""Reads an .onnx file, checks it, and replaces functions by what they consist of; weights in other files stay there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]  # protobuf ships no types
from onnx import ModelProto, NodeProto, checker, defs, inliner

from graphs.common.errors import InputError, one_line
from graphs.importers.onnx.control_flow import KINDS, node_name, nodes_of
from graphs.importers.onnx.data_files import held_outside, read_outside
from graphs.importers.onnx.operators import OPERATORS
from graphs.importers.onnx.operators.microsoft import DOMAIN
from graphs.importers.onnx.operators.registry import ORIGINS, STANDARD, node_kind

OLDEST_OPSET = 7  # earlier opsets broadcast by attributes
DEEPEST = 4  # functions of the standard that consist of functions
ANEW = "export the model anew"


def read_onnx(path: Path) -> ModelProto:
    """Read and check an ONNX file, and inline its functions and those of the standard that are not in our table.

    Raise InputError if the file is missing or not an ONNX file, external data is missing, or a version or an operator
    is not supported.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; give the path of an .onnx file")
    try:
        model = onnx.load(path, "protobuf", load_external_data=False)
    except DecodeError as error:
        raise InputError(f"{path} is not an ONNX file (it can't be decoded); {ANEW}") from error
    if not model.graph.node or not model.graph.output:
        raise InputError(f"{path} is not an ONNX file, or one without nodes or outputs; {ANEW}")
    for text in _broken_texts(model):
        raise InputError(f"{path} has names that are no text in UTF-8, such as {text!r}; {ANEW}")
    _adopt_strays(model)
    _check_opset(model, path)
    try:
        if model.functions:
            model = inliner.inline_local_functions(model)
        model = without_functions(model)
    except (RuntimeError, ValueError, checker.ValidationError) as error:
        raise InputError(f"{path} has functions that can't be inlined: {one_line(error)}; {ANEW}") from error
    _check_operators(model, path)
    _check_data(model, path)
    _check_rules(model, path)
    return model


def opset_of(model: ModelProto) -> int:
    """The version of the standard operator set; the newest for a file that uses none of its operators."""
    unsaid = defs.onnx_opset_version() if model.opset_import else 1  # as in files from before there were versions
    return max([entry.version for entry in model.opset_import if entry.domain in STANDARD], default=unsaid)


def _broken_texts(message: Message) -> Iterator[bytes]:
    """Names in a file that are not UTF-8, which protobuf hands over as bytes."""
    for field, value in message.ListFields():
        several = [value] if isinstance(value, str | bytes | int | float | Message) else value
        if field.message_type is not None:
            for inner in several:
                yield from _broken_texts(inner)
        elif field.type == FieldDescriptor.TYPE_STRING:
            yield from (text for text in several if isinstance(text, bytes))


def _adopt_strays(model: ModelProto) -> None:
    """Move onnxruntime's operators into its domain, where it has written them as if they were the standard's."""
    version, strays = opset_of(model), False
    for node in nodes_of(model.graph):
        of_the_standard = node.domain not in STANDARD or defs.has(node.op_type, version, "")
        if not of_the_standard and f"{DOMAIN}::{node.op_type}" in OPERATORS:
            node.domain, strays = DOMAIN, True
    if strays and DOMAIN not in {entry.domain for entry in model.opset_import}:
        model.opset_import.add(domain=DOMAIN, version=1)


def without_functions(model: ModelProto) -> ModelProto:
    """The model with the standard's own definitions in place of operators that our table lacks, if there are some."""
    for _ in range(DEEPEST):
        version = opset_of(model)
        lacking = [node for node in nodes_of(model.graph) if not _is_known(node) and node.domain in STANDARD]
        defined = [node for node in lacking if defs.has(node.op_type, version, "") and _is_function(node, version)]
        if not defined:
            break
        for node in defined:
            _write_defaults(node, version)
        kinds = [("", kind) for kind in sorted({node.op_type for node in defined})]
        model = inliner.inline_selected_functions(model, kinds, inline_schema_functions=True)
    return model


def _write_defaults(node: NodeProto, version: int) -> None:
    """Give a node the attributes that it leaves out, since the inliner forgets that they have defaults."""
    given = {each.name for each in node.attribute}
    for name, attribute in defs.get_schema(node.op_type, version).attributes.items():
        if name not in given and attribute.default_value.type != onnx.AttributeProto.UNDEFINED:
            node.attribute.append(attribute.default_value)


def _is_function(node: NodeProto, version: int) -> bool:
    schema: Any = defs.get_schema(node.op_type, version)  # onnx's stubs lack these two
    return bool(schema.has_function or schema.has_context_dependent_function)


def _is_known(node: NodeProto) -> bool:
    return node_kind(node) in OPERATORS or node_kind(node) in KINDS


def _check_opset(model: ModelProto, path: Path) -> None:
    """Refuse files that are too old, or newer than the onnx that is installed."""
    opset, newest = opset_of(model), defs.onnx_opset_version()
    if opset < OLDEST_OPSET:
        raise InputError(
            f"{path} is written for opset {opset}, and {OLDEST_OPSET} is the oldest supported; "
            f"lift it with onnx.version_converter, or export the model anew"
        )
    if opset > newest:
        raise InputError(f"{path} is written for opset {opset}, and the installed onnx knows {newest}; update onnx")


def _check_operators(model: ModelProto, path: Path) -> None:
    """Refuse unsupported operators, all in one message."""
    versions = {entry.domain: entry.version for entry in model.opset_import} | {"": opset_of(model)}
    unknown = {node_kind(node): node for node in reversed([*nodes_of(model.graph)]) if not _is_known(node)}
    if not unknown:
        return
    named = []
    for kind, node in reversed(unknown.items()):
        version = versions.get("" if node.domain in STANDARD else node.domain, 1)
        shown = kind if kind.isprintable() else repr(kind)
        named.append(f"{shown} (opset {version}, node {node_name(node)!r})")
    origins = [f"{text}; or " for domain, text in ORIGINS.items() if domain in {n.domain for n in unknown.values()}]
    raise InputError(
        f"{path} uses operators that are not supported: {', '.join(named)}; {''.join(origins)}export the PyTorch model "
        f"itself (.pt2 or package.module:factory), or add them to graphs/importers/onnx/operators"
    )


def _check_data(model: ModelProto, path: Path) -> None:
    """Check that the files with weights are there and long enough, without reading them."""
    try:
        for tensor in held_outside(model.graph):
            read_outside(tensor, path.parent)
    except (OSError, ValueError, checker.ValidationError) as error:
        raise InputError(
            f"{path} keeps weights in separate files, and one can't be read: {one_line(error)}; "
            f"copy them along with the model"
        ) from error


def _check_rules(model: ModelProto, path: Path) -> None:
    """Run ONNX's own checker, and shorten its message to one line.

    What it can't take is that outputs have no shape, which follows here from the nodes, and weights in other files,
    which are checked already: it looks for them in the current folder.
    """
    if model.graph.sparse_initializer:
        raise InputError(f"{path} has sparse weights, which are not supported; export the model with dense ones")
    for output in model.graph.output:
        if output.type.WhichOneof("value") in (None, "tensor_type"):
            output.type.tensor_type.shape.SetInParent()
            output.type.tensor_type.elem_type = output.type.tensor_type.elem_type or onnx.TensorProto.FLOAT
    checked = model
    if any(held_outside(model.graph)):
        checked = ModelProto()
        checked.CopyFrom(model)
        for tensor in held_outside(checked.graph):
            tensor.dims[:] = [0]
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
    try:
        checker.check_model(checked)
    except (checker.ValidationError, ValueError) as error:
        raise InputError(f"{path} is not a valid ONNX model: {one_line(error)}; {ANEW}") from error
