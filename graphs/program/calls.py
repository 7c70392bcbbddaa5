"""What a program may call: operators of PyTorch on tensors and values, as their schemas have them, and nothing else.

A program may come from a file, and what it calls becomes Python that runs. So this is checked wherever one is made.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from graphs.errors import InputError
from graphs.ir import Op

VALUES = (type(None), bool, int, float, complex, str, torch.device, torch.dtype, torch.layout, torch.memory_format)
"""What an operator takes beside tensors, and lists and tuples of them."""

REACHING = frozenset(
    {"prim", "prims", "rngprims", "debugprims", "inductor", "inductor_prims", "static_runtime", "export", "profiler"}
    | {"c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem", "_native", "_test"}
)
"""Namespaces of torch's own for compilers, profilers and other processes; some read memory beside their tensors."""


def check_call(op: Op, node: fx.Node, tensor_of: Mapping[str, str]) -> None:
    """An operator is called as its schema has it, and reads what its graph says.

    Args:
        op: of the graph.
        node: with its target and arguments.
        tensor_of: the tensor that a node stands for, by the node's name.

    Raises:
        InputError: if not.
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
    """An argument is a tensor, which is added to what is read, or a value."""
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
        InputError: if torch has none of that name, or it does something else than to make tensors of tensors: it writes
            in place, returns something else, reads what a name stands for, as a file, or reaches beyond this process.
    """
    namespace, _, rest = op.kind.partition(".")
    name, _, overload = rest.rpartition(".")
    try:
        target = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    except (AttributeError, RuntimeError):
        target = None
    if not isinstance(target, OpOverload) or str(target) != op.kind:
        raise InputError(
            f"operator '{op.name}' is of the kind '{op.kind}', which torch {torch.__version__} does not know; "
            "import the library that defines it, or install the torch that the model was imported with"
        )
    if namespace in REACHING or not _is_function(target):
        raise InputError(
            f"operator '{op.name}' is of the kind '{op.kind}', which does more than make tensors of tensors; "
            "a program from a file may not call it"
        )
    return target


def _is_function(target: OpOverload) -> bool:
    schema = target._schema
    takes = {_element(argument.type) for argument in schema.arguments}
    gives = {_element(result.type) for result in schema.returns}
    by_name = "StringType" in takes and "TensorType" not in takes
    return gives == {"TensorType"} and not schema.is_mutable and not by_name


def _element(kind: Any) -> str:
    """The kind of a type, without the lists and options around it."""
    while kind.kind() in ("OptionalType", "ListType"):
        kind = kind.getElementType()
    name: str = kind.kind()
    return name
