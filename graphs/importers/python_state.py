"""Python state: what the Python code of a module changes while it runs, which a traced graph does not show.

A count of calls is a plain number in the trace, as it was then. Whether that matters is seen by a second trace::

    self.calls += 1              first trace   calls 0 ──► 1     x + 1
    return self.layer(x) + ...   second        calls 1 ──► 2     x + 2     another network: refused

Of a tensor that a call leaves there, the second trace sees whether it is read, and a third one from what it follows::

    y = x + self.last            second trace reads what a call has left, which follows from an input: refused
    self.mask = ones(n).tril()   what follows from constants and weights is the same in each call
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from numbers import Number
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec
from torch.utils import _pytree as pytree

from graphs.common.errors import InputError
from graphs.common.replaced import replaced
from graphs.importers.drawn_numbers import HIGHEST, generators, restored, seeds
from graphs.program.strides import comparable

OWN = frozenset(vars(nn.Module())) | {"forward"}  # attributes of every module, and what a trace puts in place
DEPTH = 3  # of containers within containers that are looked into
MISSING = object()
CONTAINERS = (list, tuple, set, frozenset, deque)

State = Mapping[tuple[str, str], Any]
"""The present values of attributes, by the path of their owner and their name."""

Trace = Callable[[], ExportedProgram]


def traced_alike(module: nn.Module, name: str, trace: Trace) -> ExportedProgram:
    """Trace a module, and trace it again in its state after a call if the call has changed that state in Python.

    Raise InputError if the two traces differ, since each call then computes something else. The module is left as it
    was.
    """
    some = generators(module)
    with restored(some) as drawn, _objects_restored(module), _left(module) as left:
        with seeds() as seeded:
            first = trace()
        if seeded:
            raise InputError(
                f"model '{name}' seeds PyTorch's random numbers while it runs (torch.manual_seed({seeded[0]})), which "
                "no operator of a graph does; seed before the call, or pass what is drawn in as an argument"
            )
        changed = dict(left)
        if moved := drawn():
            for word in (0, HIGHEST):
                for each in moved:
                    each.begin_with(word)
                if not _same_again(trace, first):
                    raise InputError(
                        f"model '{name}' draws random numbers in Python ('{moved[0].name}') while it runs, and a graph "
                        "repeats those of its trace; draw with PyTorch there (torch.rand), or pass them in as an "
                        "argument"
                    )
    if changed and not _same_after_a_call(module, trace, first, changed):
        owner, attribute = next(iter(changed))
        raise InputError(
            f"model '{name}' changes '{'.'.join(filter(None, (owner, attribute)))}' in Python while it runs, and "
            "computes something else in the next call; a graph keeps nothing between calls: pass the value in as an "
            "argument, or keep it out of forward()"
        )
    return first


@contextmanager
def _left(module: nn.Module) -> Iterator[dict[tuple[str, str], Any]]:
    """Collect what the last call has changed, with the values then; torch.export puts attributes back."""
    parts, started = dict(module.named_modules()), dict[tuple[str, str], Any]()
    left: dict[tuple[str, str], Any] = {}

    def begin(*_: Any) -> None:
        left.clear()
        started.clear()
        started.update(_state(module))

    def note(*_: Any) -> None:
        changed = [key for key, value in _state(module).items() if started.get(key, MISSING) != value]
        left.update((key, copy(vars(parts[key[0]]).get(key[1])) if key[0] in parts else None) for key in changed)

    with module.register_forward_pre_hook(begin, prepend=True), module.register_forward_hook(note):
        yield left


def _same_again(trace: Trace, first: ExportedProgram) -> bool:
    """Return whether another trace is like the first one."""
    try:
        return _alike(trace(), first)
    except InputError:
        return False


def _same_after_a_call(
    module: nn.Module, trace: Trace, first: ExportedProgram, left: Mapping[tuple[str, str], Any]
) -> bool:
    """Return whether a module computes the same in the state that its first call has left."""
    parts, made = dict(module.named_modules()), list[Tensor]()
    there = [each for path, name in left if path in parts for each in _tensors(vars(parts[path]).get(name))]
    own = {key: _with_stand_ins(value, there, made) for key, value in left.items() if key[0] in parts}
    try:
        with _objects_restored(module), _holding(parts, own):
            second = trace()
        inputs = list(zip(second.graph.find_nodes(op="placeholder"), second.graph_signature.input_specs, strict=True))
        given = [(node, spec) for node, spec in inputs if _is_constant(second, spec, made)]
        if not any(node.users for node, _ in given):
            for node, spec in given:
                second.graph.erase_node(node)
                second.constants.pop(str(spec.target), None)
            return _alike(second, first)
        with _objects_restored(module):
            return not _carried(module, trace, list(own)) and _within(second, first)
    except InputError:
        return False


def _carried(module: nn.Module, trace: Trace, keys: Sequence[tuple[str, str]]) -> bool:
    """Return whether tensors that a call leaves in attributes follow from its inputs, or from what was left there."""
    parts, forward, counts = dict(module.named_modules()), module.forward, [0]

    def held() -> list[Tensor]:
        return [each for path, name in keys for each in _tensors(vars(parts[path]).get(name))]

    def with_left(*args: Any, **kwargs: Any) -> Any:
        result = forward(*args, **kwargs)
        tensors = held()
        counts[0] = len(tensors)
        return result, tensors

    before = held()
    with replaced(module, "forward", with_left):
        exported = trace()
    specs = dict(zip(exported.graph.find_nodes(op="placeholder"), exported.graph_signature.input_specs, strict=True))
    (results,) = exported.graph.output_node().args
    assert isinstance(results, tuple | list)
    reached = [each for each in results[len(results) - counts[0] :] if isinstance(each, fx.Node)]
    seen = set(reached)
    while reached:
        node = reached.pop()
        spec = specs.get(node)
        if spec is not None and (spec.kind is InputKind.USER_INPUT or _is_constant(exported, spec, before)):
            return True
        reached += [each for each in node.all_input_nodes if each not in seen]
        seen.update(node.all_input_nodes)
    return False


def _is_constant(exported: ExportedProgram, spec: InputSpec, some: Sequence[Tensor]) -> bool:
    """Return whether an input of a traced graph is one of some tensors."""
    value = exported.constants.get(str(spec.target)) if spec.kind is InputKind.CONSTANT_TENSOR else None
    return any(value is each for each in some)


def _within(one: ExportedProgram, other: ExportedProgram) -> bool:
    """Return whether another trace has the same operators in the same order, and may be some between them."""
    steps = iter(_steps(other))
    return all(step in steps for step in _steps(one))


def _steps(exported: ExportedProgram) -> list[str]:
    return [
        repr((node.target, fx.map_arg((node.args, node.kwargs), lambda _: None)))
        for node in exported.graph.nodes
        if node.op == "call_function"
    ]


@contextmanager
def _holding(parts: Mapping[str, nn.Module], values: Mapping[tuple[str, str], Any]) -> Iterator[None]:
    """Set attributes of modules for a while."""
    before = {(path, name): vars(parts[path]).get(name, MISSING) for path, name in values}
    try:
        for (path, name), value in values.items():
            setattr(parts[path], name, value)
        yield
    finally:
        for (path, name), value in before.items():
            if value is MISSING:
                delattr(parts[path], name)
            else:
                setattr(parts[path], name, value)


@contextmanager
def _objects_restored(module: nn.Module) -> Iterator[None]:
    """Put the attributes of a module's own objects back afterwards, which torch.export leaves as they are."""
    held = [each for part in module.modules() for name, each in vars(part).items() if name not in OWN and _is_own(each)]
    before = [(each, dict(vars(each))) for each in held]
    try:
        yield
    finally:
        for each, values in before:
            vars(each).clear()
            vars(each).update(values)


def _is_own(value: Any) -> bool:
    """Return whether a value is an object of a user's class that may hold tensors."""
    library = type(value).__module__.partition(".")[0] in ("torch", "builtins", "transformers", "numpy")
    return not library and not callable(value) and hasattr(value, "__dict__")


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors in a value."""
    leaves = pytree.tree_leaves(value)
    inner = [pytree.tree_leaves(vars(leaf)) for leaf in leaves if _is_own(leaf)]
    return [leaf for leaf in (*leaves, *itertools.chain(*inner)) if isinstance(leaf, Tensor)]


def _with_stand_ins(value: Any, there: Sequence[Tensor], made: list[Tensor], within: bool = True) -> Any:
    """Return a copy of a value with zeros, which are appended to ``made``, for tensors that were not there before."""

    def stand_in(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and not any(leaf is each for each in there):
            shape = [size if isinstance(size, int) else 1 for size in leaf.shape]
            made.append(torch.zeros(shape, dtype=leaf.dtype, device=leaf.device))
            return made[-1]
        if within and _is_own(leaf):
            leaf = copy(leaf)
            vars(leaf).update({name: _with_stand_ins(each, there, made, False) for name, each in vars(leaf).items()})
        return leaf

    return pytree.tree_map(stand_in, value)


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


class _Itself:
    """A tensor, which is equal to itself only."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.tensor is self.tensor

    __hash__ = object.__hash__


def _plain(value: Any, depth: int) -> Any:
    """Return a copy of a value that shows changes; what is no plain value, tensor or container never changes."""
    if value is None or isinstance(value, Number | str | bytes | torch.dtype | torch.device):
        return value if value == value else "nan"  # NaN is unlike itself
    if isinstance(value, itertools.count):
        return repr(value)
    if isinstance(value, nn.Parameter):
        return "a weight"  # as recurrent layers list them anew in each trace
    if isinstance(value, Tensor):
        return _Itself(value)
    if depth == 0:
        return None
    if isinstance(value, Mapping):
        return {repr(key): _plain(each, depth - 1) for key, each in list(value.items())}
    if isinstance(value, CONTAINERS):
        return [len(value), *(_plain(each, depth - 1) for each in value)]
    return {name: _plain(each, depth - 1) for name, each in vars(value).items()} if _is_own(value) else None


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
