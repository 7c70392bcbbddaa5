"""Checks the calls of a program: only PyTorch operators, with the tensors and values that their schemas allow.

A program may come from a file, and its calls become Python code that runs. So every program is checked when it is made.
"""

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

import torch
from torch import fx
from torch._library.custom_ops import OPDEFS
from torch._ops import OpOverload

from graphs.common.errors import InputError
from graphs.ir import Op, unfused
from graphs.program import experts as experts  # defines operators
from graphs.rewrites.experts import GROUPED_PRODUCTS

VALUES = (type(None), bool, int, float, complex, str, torch.device, torch.dtype, torch.layout, torch.memory_format)
"""The types of an operator's arguments, besides tensors, lists and tuples."""

REACHING = frozenset(
    {"prim", "prims", "rngprims", "debugprims", "inductor", "inductor_prims", "static_runtime", "export", "profiler"}
    | {"c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem", "_native", "_test"}
)
"""torch's namespaces for compilers, profilers and other processes; some operators there read foreign memory."""


def check_call(op: Op, node: fx.Node, tensor_of: Mapping[str, str]) -> None:
    """Check that a call follows the operator's schema and reads the tensors that the graph names.

    ``tensor_of`` is the tensor that a node stands for, by the node's name.

    Raises:
        InputError: if it does not.
    """
    if not isinstance(node.target, OpOverload):
        raise InputError(f"operator '{op.name}' calls {node.target!r}, which is no operator of PyTorch's")
    schema = node.target._schema
    positional = [argument.name for argument in schema.arguments if not argument.kwarg_only]
    if len(node.args) > len(positional):
        raise InputError(
            f"operator '{op.name}' has {len(node.args)} arguments by position; {schema.name} takes {len(positional)}"
        )
    free = {argument.name for argument in schema.arguments} - set(positional[: len(node.args)])
    for keyword in node.kwargs:
        if keyword not in free:
            raise InputError(f"operator '{op.name}' has the argument {keyword!r}, which {schema.name} does not take")
    read: list[str | None] = []
    _check_value(op, (node.args, *node.kwargs.values()), tensor_of, read)
    if tuple(read) != op.inputs:
        raise InputError(f"operator '{op.name}' is called with the tensors {read}, its graph has {list(op.inputs)}")


def _check_value(op: Op, value: Any, tensor_of: Mapping[str, str], read: list[str | None]) -> None:
    """Check the type of an argument, and append the tensors in it to ``read``."""
    if isinstance(value, fx.Node):
        read.append(tensor_of.get(value.name))
    elif isinstance(value, list | tuple):
        for item in value:
            _check_value(op, item, tensor_of, read)
    elif not isinstance(value, VALUES):
        raise InputError(f"operator '{op.name}' has an argument of the type {type(value).__name__}")


def known_operator(op: Op) -> OpOverload:
    """torch.ops.aten.conv2d.default for ``aten.conv2d.default``, if it is a function of tensors.

    Raises:
        InputError: if torch has no such operator, or the operator writes in place, returns no tensor, reads something
            by its name, such as a file, or reaches beyond this process.
    """
    try:
        target = attrgetter(op.kind)(torch.ops)
    except (AttributeError, RuntimeError):
        target = None
    if not isinstance(target, OpOverload) or str(target) != op.kind:
        raise InputError(
            f"operator '{op.name}' is of the kind '{op.kind}', which torch {torch.__version__} does not know; "
            "import the library that defines it, or install the torch that the model was imported with"
        )
    if target.namespace in REACHING or not _is_function(target):
        raise InputError(
            f"operator '{op.name}' is of the kind '{op.kind}', which does more than make tensors of tensors; "
            "a program from a file may not call it"
        )
    return target


def modules_of_operators(ops: Iterable[Op]) -> set[str]:
    """The modules that define operators in Python, which another process has to import before it can call them."""
    inner = {part: whole for whole, part in GROUPED_PRODUCTS.items()}
    kinds = {inner.get(op.kind, op.kind) for op in unfused(ops)}
    defined = (OPDEFS.get("::".join(kind.split(".")[:2])) for kind in kinds)
    return {one._init_fn.__module__ for one in defined if one is not None}


def _is_function(target: OpOverload) -> bool:
    schema = target._schema
    takes = {_element(argument.type) for argument in schema.arguments}
    gives = {_element(result.type) for result in schema.returns}
    by_name = "StringType" in takes and "TensorType" not in takes
    return gives == {"TensorType"} and not schema.is_mutable and not by_name


def _element(kind: Any) -> str:
    """The kind of a schema's type, without lists and options."""
    while kind.kind() in ("OptionalType", "ListType"):
        kind = kind.getElementType()
    name: str = kind.kind()
    return name
