"""Which line of a user's code is to blame for what cannot be traced, or cannot be placed, and what to do about it."""

import linecache
import re
import sysconfig
import traceback
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import fx, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from graphs.errors import first_line
from graphs.importers.functionalize import AUTOCAST
from graphs.program.arguments import Arguments

OF_VALUES = (GuardOnDataDependentSymNode, DataDependentOutputException, DynamicOutputShapeException)
"""What torch raises where Python wants to know the value of a tensor that has none while it is traced."""

FOREIGN = (str(Path(torch.__file__).parent), sysconfig.get_path("stdlib") + "/contextlib", "<")
"""How files begin that no user has written: torch's own, what wraps functions, and code that was made up."""

LONGEST = 80  # characters of a line of code

RETURNED = re.compile(r"Found <class '([^']+)'> in output")
"""What torch.export says of a result that holds something else than tensors."""

KEYWORDS: Any = pytree.SequenceKey(1)  # where they stand in a pair (positional, keyword) of arguments

PLAIN = (torch.Tensor, bool, int, float, str, Enum, type(None))
"""What the arguments of a traced model may be."""

PRODUCTS = frozenset(
    {"linear", "matmul", "mm", "bmm", "addmm", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d"}
)
"""Operators that multiply their first two arguments, which PyTorch wants in one dtype."""


def untraceable(error: BaseException, module: nn.Module, given: Arguments) -> str:
    """Where torch.export stopped in a module, why, and the way out: the rest of "... cannot be traced"."""
    place = at_error(error, module)
    if depends_on_values(error):
        return (
            f"{place}: what comes next depends on the values of tensors; compute with tensors there (torch.where for "
            "an if, a mask for a selection), or pass the number in as an argument"
        )
    if (returned := RETURNED.search(str(error))) is not None:
        return f": it returns a '{returned[1]}'; {_other_result(returned[1])}"
    return f"{place}: {_strange_input(error, given) or f'{first_line(error)}; {_way_out(error, module, given)}'}"


def _other_result(name: str) -> str:
    """What to return instead of an object of a class that torch does not know."""
    if name.endswith("Cache"):
        return "a key-value cache is state between calls: call the model with use_cache=False"
    return (
        "return tensors, tuples, lists or dictionaries, or have its module register the class "
        "(torch.export.register_dataclass)"
    )


def _strange_input(error: BaseException, given: Arguments) -> str:
    """Which argument torch.export does not take, and what to give instead; empty if that is not the reason."""
    if "Unsupported input type" not in str(error):
        return ""
    for path, leaf in pytree.tree_leaves_with_path(tuple(given)):
        if not isinstance(leaf, PLAIN):
            where = f"{pytree.keystr(path[1:])} of the {'keyword ' if path[0] == KEYWORDS else ''}arguments"
            return (
                f"{where} is a '{type(leaf).__module__}.{type(leaf).__name__}'; give tensors (torch.as_tensor), "
                "numbers, texts or None, or tuples, lists and dictionaries of these"
            )
    return ""


def _way_out(error: BaseException, module: nn.Module, given: Arguments) -> str:
    state = [*module.parameters(), *module.buffers()]
    inputs = [leaf for leaf in pytree.tree_leaves(tuple(given)) if isinstance(leaf, torch.Tensor)]
    held, brought = (" and ".join(sorted({str(tensor.device) for tensor in some})) for some in (state, inputs))
    if "device" in str(error) and held and brought and held != brought:
        return f"the model is on {held}, its inputs on {brought}: bring them to one device"
    return (
        "see that the model itself takes these inputs; make its forward free of control flow that depends on tensor "
        "values, or export it yourself to .pt2"
    )


def product_of_two_dtypes(code: fx.Graph) -> str | None:
    """The first operator that multiplies tensors of different dtypes, which torch.export lets pass, and the way out.

    Returns:
        `` in 'fc': linear multiplies float64 by float32; ...``, with a space in front; None if there is none.
    """
    for node in code.nodes:
        if isinstance(node.target, OpOverload) and node.target._opname in PRODUCTS and AUTOCAST not in node.meta:
            values = [arg.meta.get("val") for arg in node.args[:2] if isinstance(arg, fx.Node)]
            found = [str(value.dtype).removeprefix("torch.") for value in values if isinstance(value, torch.Tensor)]
            if len(set(found)) > 1:
                return (
                    f"{at_node(node)}: {node.target._opname} multiplies {' by '.join(found)}; convert the model or its "
                    f"inputs, such as model.to(torch.{found[0]})"
                )
    return None


def depends_on_values(error: BaseException) -> bool:
    """Whether Python wanted to know the value of a tensor."""
    return any(isinstance(raised, OF_VALUES) for raised in _chain(error))


def at_error(error: BaseException, module: nn.Module) -> str:
    """Where in the code of a module an error came up.

    Returns:
        `` in 'encoder.0' (net.py:12: if x.sum() > 0:)``, with a space in front; the innermost part of the module that
        was running and the innermost line that is not torch's own. Empty if the module did not run.
    """
    names = {id(part): name for name, part in module.named_modules()}
    for raised in _chain(error):
        part, place = "", None
        for frame, number in traceback.walk_tb(raised.__traceback__):
            name = names.get(id(_owner(frame)))
            if name is not None:
                part, place = name, place or ("", 0)
            path = frame.f_code.co_filename
            if place is not None and not path.startswith(FOREIGN):
                place = path, number
        if place is not None:
            return _place(part, *place)
    return ""


def at_node(node: fx.Node) -> str:
    """Where in a user's code an operator of a traced graph comes from, in the same words.

    The line is known where somebody else has traced it, as for a .pt2 file; see `alone.without_stacks`.
    """
    lines = re.findall(r'File "([^"]+)", line (\d+)', str(node.meta.get("stack_trace") or ""))
    own = [(path, int(number)) for path, number in lines if not path.startswith(FOREIGN)]
    return _place(module_path(node), *(own[-1] if own else ("", 0)))


def module_path(node: fx.Node) -> str:
    """The path of the module whose operator it is; empty for the model's own."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(stack.values()))[0] if stack else ""
    return re.sub(r"@\d+", "", path)  # export marks the second call of a module


def _owner(frame: FrameType) -> object:
    """What a method belongs to."""
    return frame.f_locals.get("self")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error, and what it came from."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def _place(part: str, path: str, number: int) -> str:
    code = linecache.getline(path, number).strip()
    code = code if len(code) <= LONGEST else code[: LONGEST - 3] + "..."
    line = f"{path}:{number}: {code}".removesuffix(": ") if path else ""
    return "".join([f" in '{part}'" if part else "", f" ({line})" if line else ""])
