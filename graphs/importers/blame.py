"""Which line of a user's code is to blame for what cannot be traced, or cannot be placed, and what to do about it."""

import linecache
import re
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from graphs.errors import first_line

OF_VALUES = (GuardOnDataDependentSymNode, DataDependentOutputException, DynamicOutputShapeException)
"""What torch raises where Python wants to know the value of a tensor that has none while it is traced."""

FOREIGN = (str(Path(torch.__file__).parent), sysconfig.get_path("stdlib") + "/contextlib", "<")
"""How files begin that no user has written: torch's own, what wraps functions, and code that was made up."""

LONGEST = 80  # characters of a line of code


def untraceable(error: BaseException, module: nn.Module) -> str:
    """Where torch.export stopped in a module, why, and the way out: the rest of "... cannot be traced"."""
    place = at_error(error, module)
    if depends_on_values(error):
        return (
            f"{place}: what comes next depends on the values of tensors; compute with tensors there (torch.where for "
            "an if, a mask for a selection), or pass the number in as an argument"
        )
    return (
        f"{place}: {first_line(error)}; make its forward free of control flow that depends on tensor values, or export "
        "it yourself to .pt2"
    )


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
