"""Finds equal layers in a module, and makes a copy of the module with few of them, so that few are traced.

A layer is equal to another if it does the same to its inputs. A run of the module on fake tensors shows this, in a
tenth of the time of a trace. The module with few layers runs in the same way, and its record, expanded, must be the
record of all layers; otherwise nothing is left out.

::

    module        ──run──► record of all layers ──────────────┐
      │ copy, with FEW periods                                 equal?
    short module  ──run──► record ──expanded──► record ───────┘
"""

import copy
import operator
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from graphs.common.shortages import failures
from graphs.importers.constant_values import ConstantValues, constant_values
from graphs.importers.expansion import FEW, Repeat, Trace, UnlikeError, tensor_layout
from graphs.importers.source_location import module_path
from graphs.importers.tracing_guards import as_exported, tracing
from graphs.program.arguments import Arguments

LEAST = 4 * FEW
"""Layers that must be left out; the comparison takes as long as the trace of about that number."""

SMALL = 64
"""Elements of a constant tensor that is compared by its values."""


@dataclass(frozen=True)
class ShortModule:
    """A module, of which equal layers may be left out; it has the whole module's own parameters and buffers."""

    module: nn.Module
    whole_module: nn.Module
    repeats: tuple[Repeat, ...] = ()  # with the layers that are left out

    def whole(self, trace: Trace) -> Trace:
        """Return the trace of the whole module; raise UnlikeError if layers of the short one differ."""
        return trace.expanded(self.repeats, _tensors(self.whole_module)) if self.repeats else trace


def shortened(module: nn.Module, given: Arguments, training: bool) -> ShortModule | None:
    """Return the module with few layers, or None if it has no equal layers, or what they do cannot be compared."""
    lists = [(path, part) for path, part in module.named_modules() if _is_list(part)]
    if not lists:
        return None
    seed = random.getstate()
    try:
        with failures(), tracing(), as_exported(), torch.random.fork_rng(devices=()), torch.set_grad_enabled(training):
            whole = _record(_copied(module), given, [path for path, _ in lists])
            repeats = _repeats(whole, lists)
            if not repeats:
                return None
            record = _record(_short_copy(module, repeats), given, [path for path, _ in lists])
            if not _equal(record.expanded(repeats, {}), whole):
                return None
            return ShortModule(_short_copy(module, repeats), module, repeats)
    finally:
        random.setstate(seed)
    return None  # a user's module may raise anything there, and so do fake tensors; then all layers are traced


def _is_list(part: nn.Module) -> bool:
    """Return whether a module holds numbered layers, of which some might be left out."""
    names = list(part._modules.keys())  # a scripted module's mapping iterates over numbers
    return len(names) >= FEW + LEAST and names == [str(number) for number in range(len(names))]


def _short_copy(module: nn.Module, repeats: Sequence[Repeat]) -> nn.Module:
    """Return a copy with `FEW` periods of each repetition."""
    short = _copied(module)
    for repeat in reversed(repeats):  # in one list, those after it keep their numbers
        layers = short.get_submodule(repeat.path)._modules
        kept = list(layers.values())
        del kept[repeat.first + FEW * repeat.period : repeat.first + repeat.count * repeat.period]
        layers.clear()
        layers.update((str(number), layer) for number, layer in enumerate(kept))
    return short


def _copied(module: nn.Module) -> nn.Module:
    """Return a copy that shares all tensors; a run that changes its attributes leaves the module as it is."""
    return copy.deepcopy(module, {id(tensor): tensor for tensor in _tensors(module).values()})


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters, buffers and other tensors of a module by their paths."""
    found: dict[str, Tensor] = {}
    for name, part in module.named_modules(remove_duplicate=False):
        start = f"{name}." if name else ""
        for held in (part._parameters, part._buffers, vars(part)):
            for keys, value in pytree.tree_leaves_with_path(dict(held)):
                if isinstance(value, Tensor):
                    found[start + ".".join(str(getattr(key, "key", getattr(key, "idx", ""))) for key in keys)] = value
    return found


class _CallRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Records what operators a module calls, as a graph whose nodes have the paths of layers."""

    def __init__(self, state: Mapping[str, Tensor], inputs: Sequence[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.graph = fx.Graph()
        self.paths = [""]  # of the layers that run, the innermost one last
        self.node: dict[int, fx.Node] = {}  # by the identity of a tensor
        self.alive: list[Tensor] = []  # so that an identity stands for one tensor
        self.specs: list[InputSpec] = []
        for path, tensor in state.items():
            self._start(path, tensor, InputKind.PARAMETER)
        for number, tensor in enumerate(inputs):
            if isinstance(tensor, Tensor):
                self._start(str(number), tensor, InputKind.USER_INPUT)

    def trace(self, result: Any) -> Trace:
        """Return the record, which ends with the module's result."""
        leaves = pytree.tree_leaves(result)
        self.graph.output([self.node[id(leaf)] if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves])
        return Trace(self.graph, self.specs, {}, None, None)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        reads: list[fx.Node] = []
        mode = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled()
        what = (mode, self._described(args, reads), self._described(kwargs or {}, reads))
        made = self._call(func, (repr(what), *reads))
        for number, leaf in enumerate(pytree.tree_leaves(result)):
            if isinstance(leaf, Tensor):
                several = isinstance(result, tuple | list)
                self._name(leaf, self._call(operator.getitem, (made, number)) if several else made)
        return result

    def _start(self, path: str, tensor: Tensor, kind: InputKind) -> None:
        if id(tensor) in self.node:  # tied
            return
        node = self.graph.placeholder(f"p_{path.replace('.', '_')}")
        node.name = f"p_{path.replace('.', '_')}"
        node.meta["val"] = tensor
        self.specs.append(InputSpec(kind, TensorArgument(node.name), path if kind is InputKind.PARAMETER else None))
        self._name(tensor, node)

    def _call(self, target: Any, args: tuple[Any, ...]) -> fx.Node:
        node = self.graph.create_node("call_function", target, args, name="step")
        node.meta["nn_module_stack"] = {"": (self.paths[-1], "")}
        return node

    def _name(self, tensor: Tensor, node: fx.Node) -> None:
        self.node[id(tensor)] = node
        self.alive.append(tensor)

    def _described(self, value: Any, reads: list[fx.Node]) -> object:
        """Return a value as plain values and tuples; append its tensors to ``reads``."""
        if isinstance(value, Tensor):
            if (node := self.node.get(id(value))) is not None:
                reads.append(node)
                return "tensor"
            if isinstance(value, FakeTensor) or value.numel() > SMALL or value.is_meta:
                raise UnlikeError("a tensor of unknown source is read")
            return value.tolist(), tensor_layout(value)
        if isinstance(value, list | tuple):
            return tuple(self._described(item, reads) for item in value)
        if isinstance(value, dict):
            return tuple((key, self._described(item, reads)) for key, item in value.items())
        return value


def _record(module: nn.Module, given: Arguments, lists: Sequence[str]) -> Trace:
    """Record what a module does on fake tensors; the paths of nodes are those of layers in ``lists``."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    held = {path: fake.from_tensor(tensor) for path, tensor in (*module.named_parameters(), *module.named_buffers())}
    args, kwargs = pytree.tree_map_only(Tensor, fake.from_tensor, (given.args, dict(given.kwargs)))
    recorder, constants = _CallRecorder(held, pytree.tree_leaves((args, kwargs))), ConstantValues()
    try:
        with constant_values(module, constants), _watched(module, lists, recorder.paths), fake, recorder:
            result = torch.func.functional_call(module, held, args, kwargs)
        trace = recorder.trace(result)
        del result
        return trace
    finally:
        recorder.alive.clear()
        constants.release()


@contextmanager
def _watched(module: nn.Module, lists: Sequence[str], paths: list[str]) -> Iterator[None]:
    """Keep the path of the layer that runs at the end of ``paths``."""
    with ExitStack() as hooks:
        for path in lists:
            for name, layer in module.get_submodule(path).named_children():
                here = f"{path}.{name}" if path else name
                enter = layer.register_forward_pre_hook(lambda *_, here=here: paths.append(here))
                leave = layer.register_forward_hook(lambda *_: paths.pop() and None)
                hooks.callback(enter.remove)
                hooks.callback(leave.remove)
        yield


def _repeats(whole: Trace, lists: Sequence[tuple[str, nn.Module]]) -> tuple[Repeat, ...]:
    """Return the layers that repeat; lists within such layers are left alone."""
    found: list[Repeat] = []
    for path, part in sorted(lists, key=lambda pair: pair[0].count(".")):
        if any(repeat.layer(path) is not None for repeat in found):
            continue
        found += _runs(path, _sections(whole, path, len(part._modules)))
    return tuple(found)


def _sections(whole: Trace, path: str, n_layers: int) -> list[int]:
    """Number the layers of a list by what they do; empty if they do not run one after another.

    What lies between two layers belongs to the first of them. Layers of one number may still read unlike layers.
    """
    layers = Repeat(path, 0, 1, n_layers)
    paths = dict(zip((node for node in whole.code.nodes if node.op == "placeholder"), whole.inputs, strict=True))
    calls = [node for node in whole.code.nodes if node.op == "call_function"]
    in_turn = _in_turn([layers.layer(module_path(node)) for node in calls])
    if in_turn is None:
        return []
    steps: list[list[object]] = [[] for _ in range(n_layers)]
    within: set[fx.Node] = set()
    for node, layer in zip(calls, in_turn, strict=False):
        if layer is None:
            continue
        within.add(node)
        reads = [
            read.name
            if read not in paths
            else (layers.moved(str(paths[read].target), -layer), tensor_layout(read.meta["val"]))
            for read in node.all_input_nodes
            if read not in within
        ]
        steps[layer].append((node.target, node.args[0] if isinstance(node.args[0], str) else node.args[1:], reads))
    kinds: dict[str, int] = {}
    return [kinds.setdefault(repr(step), len(kinds)) for step in steps]


def _in_turn(numbers: Sequence[int | None]) -> list[int | None] | None:
    """Return the layer of each call up to the last one of a layer, None before the first; None if layers go back."""
    last = max((position for position, number in enumerate(numbers) if number is not None), default=-1)
    known = [number for number in numbers if number is not None]
    if known != sorted(known):
        return None
    found: list[int | None] = []
    for number in numbers[: last + 1]:
        found.append(found[-1] if number is None and found else number)
    return found


def _runs(path: str, kinds: Sequence[int]) -> Iterator[Repeat]:
    """Yield the longest repetitions of a pattern, from the first layer on."""
    start = 0
    while start < len(kinds):
        best = Repeat(path, start, 1, 1)
        for period in range(1, (len(kinds) - start) // FEW):
            end = start + period
            while end < len(kinds) and kinds[end] == kinds[end - period]:
                end += 1
            repeat = Repeat(path, start, period, (end - start) // period)
            if repeat.more * period > max(best.more * best.period, LEAST - 1):
                best = repeat
        if best.more > 0:
            yield best
        start += best.count * best.period


def _equal(one: Trace, other: Trace) -> bool:
    """Return whether two records have the same steps."""
    a, b = list(one.code.nodes), list(other.code.nodes)
    if len(a) != len(b) or [spec.target for spec in one.inputs] != [spec.target for spec in other.inputs]:
        return False
    number = {node: position for nodes in (a, b) for position, node in enumerate(nodes)}
    return all(
        x.op == y.op
        and (x.target == y.target or x.op == "placeholder")
        and tensor_layout(x.meta.get("val")) == tensor_layout(y.meta.get("val"))
        and fx.map_arg(x.args, number.__getitem__) == fx.map_arg(y.args, number.__getitem__)
        for x, y in zip(a, b, strict=True)
    )
