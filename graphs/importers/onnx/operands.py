"""Which operands a node must have, under the names that its standard gives them."""

import inspect
from collections.abc import Sequence
from typing import get_args

from onnx import defs

from graphs.common.errors import InputError
from graphs.importers.onnx.operators import OPERATORS
from graphs.importers.onnx.operators.registry import Node


def check_operands(node: Node, names: Sequence[str]) -> None:
    """Refuse a node that lacks an operand, or has more than its operator takes.

    ``names`` are those of the values that it reads, empty where one is left out. What the standard asks for may be left
    out where the function can do without it, since exporters do so. Raise InputError.
    """
    operator = OPERATORS[node.kind]
    parameters = [] if operator.prepare else [*inspect.signature(operator.compute).parameters.values()][1:]
    several = operator.prepare is not None or any(each.kind is each.VAR_POSITIONAL for each in parameters)
    spared = {
        i
        for i, each in enumerate(parameters)
        if each.default is not each.empty or type(None) in get_args(each.annotation)
    }
    if "::" in node.kind:
        single = [i for i, each in enumerate(parameters) if each.kind is not each.VAR_POSITIONAL]
        wanted = {i: f"{i}, counted from 0" for i in single}
        most = float("inf") if several else len(parameters)
    else:
        wanted, most = _of_the_standard(node)
    about, check = f"node {node.name!r} ({node.kind}, opset {node.opset})", "check the model with onnx.checker"
    for i in sorted(wanted.keys() - spared):
        if not (names[i] if i < len(names) else ""):
            raise InputError(f"{about} lacks its operand {wanted[i]}; {check}")
    if len(names) > most:
        raise InputError(f"{about} has {len(names)} operands and takes at most {most}; {check}")


def _of_the_standard(node: Node) -> tuple[dict[int, str], float]:
    """The operands that must be there, named, by position, and the largest number of operands."""
    known = defs.has(node.kind, node.opset)  # some files have operators that their version of the standard does not
    schema = defs.get_schema(node.kind, node.opset) if known else defs.get_schema(node.kind)
    single = defs.OpSchema.FormalParameterOption.Single
    named = {i: f"'{each.name}'" for i, each in enumerate(schema.inputs) if each.option == single}
    others = {i: f"{i}, counted from 0" for i in range(len(named), schema.min_input)}  # of a list of any length
    return {**named, **others}, schema.max_input
