"""Finds the line of a user's code that cannot be traced or placed, and says how to change it."""

import linecache
import re
import sys
import sysconfig
import traceback
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from graphs.common.causes import led_to
from graphs.common.errors import first_line
from graphs.importers.functionalize import AUTOCAST
from graphs.program.arguments import Arguments

OF_VALUES = (GuardOnDataDependentSymNode, DataDependentOutputException, DynamicOutputShapeException)
"""torch's exceptions for Python code that needs the value of a tensor during a trace."""

WITHOUT_VALUES = (
    "its data is not allocated yet",  # torch.tensor([x.sum()])
    ".numpy() is not supported",
    "Cannot access data pointer",  # x.data_ptr(), x.apply_(function)
    "but got FakeTensor",  # torch.zeros(x.sum())
)
"""Phrases of torch's messages where code that is not Python's needs such a value."""

FOREIGN = (str(Path(torch.__file__).parent), sysconfig.get_path("stdlib") + "/contextlib", "<")
"""Prefixes of files that are not the user's: torch's own, wrappers of functions, and generated code."""

INSTALLED = tuple(sysconfig.get_path(name) + "/" for name in ("purelib", "platlib"))
"""Prefixes of files of installed packages, which a message leaves out."""

OURS = str(Path(__file__).parents[1])
"""The folder of our code, which calls the user's."""

LONGEST = 80  # characters of a line of code in a message

RETURNED = re.compile(r"Found <class '([^']+)'> in output")
"""torch.export's message about a result that is no tensor."""

KEYWORDS: Any = pytree.SequenceKey(1)  # their position in a pair (positional, keyword) of arguments

PLAIN = (torch.Tensor, bool, int, float, str, Enum, type(None))
"""Types of the arguments of a traced model."""

PRODUCTS = frozenset(
    {"linear", "matmul", "mm", "bmm", "addmm", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d"}
)
"""Operators that multiply their first two arguments, which must have the same dtype."""


class UnansweredError(Exception):
    """Says that a trace had no answer to a question for a value, at a place in the form of `at_error`."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.place = place


def untraceable(error: BaseException, module: nn.Module, given: Arguments) -> str:
    """The place, the reason and the way out after "... cannot be traced by torch.export"."""
    place = at_error(error, module)
    if depends_on_values(error):
        return (
            f"{place}: what comes next depends on the values of tensors; compute with tensors there (torch.where for "
            "an if, a mask for a selection, every expert on all rows), or pass the number in as an argument"
        )
    if (returned := RETURNED.search(str(error))) is not None:
        return f": it returns a '{returned[1]}'; {_other_result(returned[1])}"
    return f"{place}: {_strange_input(error, given) or f'{first_line(error)}; {_way_out(error, module, given)}'}"


def _other_result(name: str) -> str:
    """The advice for a result of a class that torch does not know."""
    if name.endswith("Cache"):
        return "a key-value cache is state between calls: call the model with use_cache=False"
    return (
        "return tensors, tuples, lists or dictionaries, or have its module register the class "
        "(torch.export.register_dataclass)"
    )


def _strange_input(error: BaseException, given: Arguments) -> str:
    """The argument that torch.export refuses, and the advice; empty if the error has another reason."""
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
    held, given_on = (" and ".join(sorted({str(tensor.device) for tensor in some})) for some in (state, inputs))
    if "device" in str(error) and held and given_on and held != given_on:
        return f"the model is on {held}, its inputs on {given_on}: bring them to one device"
    return (
        "see that the model itself takes these inputs; make its forward free of control flow that depends on tensor "
        "values, or export it yourself to .pt2"
    )


def product_of_two_dtypes(code: fx.Graph) -> str | None:
    """The first operator that multiplies tensors of different dtypes, which torch.export accepts, and the way out.

    Such as `` in 'fc': linear multiplies float64 by float32; ...``, with a leading space; None if there is none.
    """
    for node in code.nodes:
        if isinstance(node.target, OpOverload) and node.target._opname in PRODUCTS and AUTOCAST not in node.meta:
            values = [arg.meta.get("val") for arg in node.args[:2] if isinstance(arg, fx.Node)]
            dtypes = [value.dtype for value in values if isinstance(value, torch.Tensor)]
            if len(set(dtypes)) > 1:
                product = " by ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
                how = f"model.to({dtypes[0]})" if dtypes[0].is_floating_point else f"x.to({dtypes[1]})"
                return (
                    f"{at_node(node)}: {node.target._opname} multiplies {product}; convert the model or "
                    f"its inputs, such as {how}"
                )
    return None


def depends_on_values(error: BaseException) -> bool:
    """Whether a trace failed because Python code needs the value of a tensor."""
    return any(
        isinstance(raised, OF_VALUES) or any(words in str(raised) for words in WITHOUT_VALUES)
        for raised in led_to(error)
    )


def at_error(error: BaseException, module: nn.Module) -> str:
    """The place in the code of a module where an error arose; empty if the module did not run.

    Such as `` in 'encoder.0' (net.py:12: if x.sum() > 0:)``, with a leading space: the innermost part of the module
    that was running and the innermost line that is not torch's own.
    """
    if isinstance(error, UnansweredError):
        return error.place
    names = {id(part): name for name, part in module.named_modules()}
    for raised in led_to(error):
        part, place = "", None
        for frame, number in traceback.walk_tb(raised.__traceback__):
            name = names.get(id(frame.f_locals.get("self")))  # of the part whose method runs
            if name is not None:
                part, place = name, place or ("", 0)
            path = frame.f_code.co_filename
            if place is not None and not path.startswith((*FOREIGN, OURS)):
                place = path, number
        if place is not None:
            return _place(part, *place)
    return ""


def at_caller() -> str:
    """Return the place in the user's code that is running, in the form of `at_error`; empty if there is none."""
    for frame, number in traceback.walk_stack(sys._getframe()):
        path = frame.f_code.co_filename
        if not path.startswith((*FOREIGN, OURS)):
            return _place("", path, number)
    return ""


def at_node(node: fx.Node) -> str:
    """The place in the user's code of an operator of a traced graph, in the form of `at_error`.

    The line is known if a stack was recorded, as in a .pt2 file; see `tracing_guards.without_stacks`.
    """
    lines = re.findall(r'File "([^"]+)", line (\d+)', str(node.meta.get("stack_trace") or ""))
    own = [(path, int(number)) for path, number in lines if not path.startswith(FOREIGN)]
    return _place(module_path(node), *(own[-1] if own else ("", 0)))


def module_path(node: fx.Node) -> str:
    """The path of an operator's module; empty for the model itself."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(stack.values()))[0] if stack else ""
    return re.sub(r"@\d+", "", path)  # export marks the second call of a module


def _place(part: str, path: str, number: int) -> str:
    code = linecache.getline(path, number).strip()
    code = code if len(code) <= LONGEST else code[: LONGEST - 3] + "..."
    for folder in INSTALLED:
        path = path.removeprefix(folder)
    line = f"{path}:{number}: {code}".removesuffix(": ") if path else ""
    return "".join([f" in '{part}'" if part else "", f" ({line})" if line else ""])
