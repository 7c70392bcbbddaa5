"""Python state: what the Python code of a module changes while it runs, which a traced graph does not show.

A count of calls is a plain number in the trace, as it was then. Whether that matters is seen by a second trace::

    self.calls += 1              first trace   calls 0 ──► 1     x + 1
    return self.layer(x) + ...   second        calls 1 ──► 2     x + 2     another network: refused
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from numbers import Number
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from graphs.common.errors import InputError
from graphs.program.strides import comparable

OWN = frozenset(vars(nn.Module())) | {"forward"}  # attributes of every module, and what a trace puts in place
DEPTH = 3  # of containers within containers that are looked into
MISSING = object()

State = Mapping[tuple[str, str], Any]
"""The present values of attributes, by the path of their owner and their name."""


def traced_alike(module: nn.Module, name: str, trace: Callable[[], ExportedProgram]) -> ExportedProgram:
    """Trace a module, and trace it again in its state after a call if the call has changed that state in Python.

    Raise InputError if the two traces differ, since each call then computes something else. The module is left as it
    was.
    """
    before, parts = _state(module), dict(module.named_modules())
    left: dict[tuple[str, str], Any] = {}  # what the call has changed; torch.export puts attributes back

    def note(*_: Any) -> None:
        changed = [key for key, value in _state(module).items() if before.get(key, MISSING) != value]
        left.update((key, copy(vars(parts[key[0]]).get(key[1])) if key[0] in parts else None) for key in changed)

    hook = module.register_forward_hook(note)
    try:
        first = trace()
    finally:
        hook.remove()
    if not left:
        return first
    own = {key: vars(parts[key[0]])[key[1]] for key in left if key[0] in parts and key[1] in vars(parts[key[0]])}
    try:
        for path, attribute in own:
            setattr(parts[path], attribute, left[path, attribute])
        same = _alike(trace(), first)
    finally:
        for (path, attribute), value in own.items():
            setattr(parts[path], attribute, value)
    if same:
        return first
    owner, attribute = next(iter(left))
    raise InputError(
        f"model '{name}' changes '{'.'.join(filter(None, (owner, attribute)))}' in Python while it runs, and computes "
        "something else in the next call; a graph cannot count its calls: pass the value in as an argument, or keep it "
        "out of forward()"
    )


def _state(module: nn.Module) -> State:
    """Return the plain values that modules hold, and the numbers of their classes and of the globals of their code."""
    found: dict[tuple[str, str], Any] = {}
    owners: dict[type, None] = {}
    for path, part in module.named_modules():
        found |= {(path, name): _plain(value, DEPTH) for name, value in vars(part).items() if name not in OWN}
        owners |= dict.fromkeys(type(part).__mro__)
    for owner in owners:
        if owner.__module__.partition(".")[0] not in ("torch", "builtins"):
            found |= {(owner.__qualname__, name): value for name, value in _numbers(vars(owner))}
            code = vars(owner).get("forward")
            found |= {(owner.__module__, name): value for name, value in _numbers(getattr(code, "__globals__", {}))}
    return found


def _numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in list(values.items()):
        if isinstance(value, Number):
            yield name, _plain(value, 0)


def _plain(value: Any, depth: int) -> Any:
    """Return a copy of a plain value that shows changes; what is neither a value nor a container never changes."""
    if value is None or isinstance(value, Number | str | bytes | torch.dtype | torch.device):
        return value if value == value else "nan"  # NaN is unlike itself
    if isinstance(value, itertools.count):
        return repr(value)
    if depth == 0:
        return None
    if isinstance(value, Mapping):
        return {repr(key): _plain(each, depth - 1) for key, each in list(value.items())}
    if isinstance(value, list | tuple | set | frozenset):
        return [len(value), *(_plain(each, depth - 1) for each in value)]
    return None


def _alike(one: ExportedProgram, other: ExportedProgram) -> bool:
    """Return whether two traces have the same operators and constants."""
    codes = [each.graph_module.print_readable(print_output=False) for each in (one, other)]
    if codes[0] != codes[1] or one.constants.keys() != other.constants.keys():
        return False
    return all(
        torch.equal(comparable(value), comparable(other.constants[name]))
        for name, value in one.constants.items()
        if isinstance(value, torch.Tensor) and not value.is_meta
    )
