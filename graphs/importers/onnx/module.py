"""A folded ONNX graph as a PyTorch module: a tree of small modules that follows the nodes' names."""

import inspect
import keyword
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain, count
from types import CodeType

import torch
from torch import nn

from graphs.importers.onnx.fold import FoldedGraph, KnownValue, RemainingNode
from graphs.importers.onnx.operators import OPERATORS
from graphs.program.program import home_of

_RESERVED = frozenset({*dir(nn.Module()), "_inputs", "_outputs", "output_names", "run", "_calls", "_homes"})


class OnnxNode(nn.Module):
    """One node, with the constants that no earlier node reads.

    ``own`` has these constants with their keys, by position among the operands.
    """

    def __init__(self, step: RemainingNode, own: Mapping[int, tuple[str, torch.Tensor]]) -> None:
        super().__init__()
        self._node = step.node
        self._operands: list[KnownValue | str | None] = []  # a value, the attribute of a constant, or None if passed
        for position, operand in enumerate(step.operands):
            if position in own:
                is_state = position in OPERATORS[step.node.kind].state
                self._operands.append(register_constant(self, *own[position], trainable=not is_state))
            else:
                self._operands.append(operand if isinstance(operand, KnownValue) else None)

    def attribute(self, position: int) -> str:
        """The name of the attribute that holds the operand at this position."""
        name = self._operands[position]
        assert isinstance(name, str)
        return name

    def forward(self, *passed: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The node's results, from the operands that the module does not hold."""
        queue = iter(passed)
        values = [
            next(queue)
            if operand is None
            else operand.value
            if isinstance(operand, KnownValue)
            else getattr(self, operand)
            for operand in self._operands
        ]
        return OPERATORS[self._node.kind].results(self._node, *values)

    def extra_repr(self) -> str:
        """The operator's kind, for the module's ``repr``."""
        return self._node.kind


class _Forward:
    """The call of a model, which takes its inputs by position or by their names in the file."""

    def __init__(self, model: "OnnxModel", inputs: Iterable[str]) -> None:
        names = argument_names(inputs)
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self._model = model
        self.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])

    @property
    def __code__(self) -> CodeType:
        """The code that runs; torch.export asks for it."""
        return OnnxModel.run.__code__

    def __call__(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        return self._model.run(*self.__signature__.bind(*args, **kwargs).args)


def argument_names(names: Iterable[str]) -> list[str]:
    """Names as Python has them: "input.1" -> "input_1", with numbers where two become the same."""
    found: list[str] = []
    for name in names:
        clean = re.sub(r"\W|^(?=\d)", "_", name, flags=re.ASCII)
        clean += "_" * (keyword.iskeyword(clean) or clean == "self")
        found.append(_numbered(clean or "input", found.__contains__))
    return found


class OnnxModel(nn.Module):
    """A whole model, which runs its nodes in the file's order."""

    def __init__(self, program: FoldedGraph) -> None:
        super().__init__()
        self._inputs = program.inputs
        self.forward = _Forward(self, program.inputs)  # whose signature has the inputs' names
        self._outputs = program.outputs
        self.output_names = argument_names(program.outputs)
        self._calls: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = []  # path, keys passed, keys of the results
        self._homes: dict[str, tuple[str, str]] = {}  # key of a passed constant -> path of its module, attribute
        paths = unique_paths([path_of(step) for step in program.steps])
        owners = _owners(program)
        for index, (step, path) in enumerate(zip(program.steps, paths, strict=True)):
            own = {}
            passed = []
            for position, key in enumerate(step.operands):
                if isinstance(key, KnownValue):
                    continue
                if key in owners and owners[key] == (index, position):
                    own[position] = (key, program.constants[key])
                elif key in owners and program.constants[key].dim() <= 1:
                    # Exporters store equal weights once, such as the zero biases of an untrained network. They are not
                    # tied: each reader gets a copy, so that readers can be on different devices.
                    own[position] = (key, program.constants[key].clone())
                else:
                    passed.append(key)
            home, name = home_of(self, path)
            home.add_module(name, OnnxNode(step, own))
            self._calls.append((path, tuple(passed), step.outputs))
        for key in sorted({key for _, passed, _ in self._calls for key in passed}.union(program.outputs)):
            if key in owners:
                index, position = owners[key]
                owner = self.get_submodule(paths[index])
                assert isinstance(owner, OnnxNode)
                self._homes[key] = (paths[index], owner.attribute(position))
            elif key in program.constants:  # a result that does not depend on the inputs
                self._homes[key] = ("", register_constant(self, key, program.constants[key], trainable=False))

    @property
    def paths(self) -> dict[str, str]:
        """The path of the module that computes each result of the file's nodes."""
        return {key: path for path, _, outputs in self._calls for key in outputs}

    def run(self, *inputs: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """The outputs, from the inputs in the file's order."""
        values = dict(zip(self._inputs, inputs, strict=True))
        for key, (path, attribute) in self._homes.items():
            values[key] = getattr(self.get_submodule(path), attribute)
        for path, passed, outputs in self._calls:
            results = self.get_submodule(path)(*[values[key] for key in passed])
            values.update(zip(outputs, results, strict=False))
        results = tuple(values[key] for key in self._outputs)
        return results[0] if len(results) == 1 else results


def _owners(program: FoldedGraph) -> dict[str, tuple[int, int]]:
    """The first reader of each constant, by the constant's key: the step and the position of the operand."""
    first: dict[int, tuple[int, int]] = {}  # by the tensor's identity: two keys may stand for the same weight
    owners = {}
    for index, step in enumerate(program.steps):
        for position, key in enumerate(step.operands):
            if isinstance(key, str) and key in program.constants:
                owners[key] = first.setdefault(id(program.constants[key]), (index, position))
    return owners


def register_constant(module: nn.Module, key: str, value: torch.Tensor, trainable: bool) -> str:
    """Register a constant under a free name made from its key: a weight as parameter, anything else as buffer."""
    name = _free_name(re.split(r"[./]", key)[-1], module)
    if trainable and value.is_floating_point() and value.dim() > 0:
        module.register_parameter(name, nn.Parameter(value.contiguous(), requires_grad=False))
    else:
        module.register_buffer(name, value.contiguous())
    return name


def _free_name(text: str, module: nn.Module) -> str:
    """A name that is no attribute of the module yet."""
    return _numbered(re.sub(r"\W", "_", text, flags=re.ASCII) or "constant", partial(hasattr, module))


def _numbered(stem: str, taken: Callable[[str], bool]) -> str:
    """The stem, or the stem with a number if it is taken."""
    names = chain([stem], (f"{stem}_{number}" for number in count(1)))
    return next(name for name in names if not taken(name))


def path_of(step: RemainingNode) -> tuple[str, ...]:
    """The names of the modules around a node, and its own.

    "/layer1/layer1.0/conv1/Conv" -> ("layer1", "0", "conv1", "Conv"): PyTorch's exporter repeats a list's name before
    the index.
    """
    scopes = step.node.name.split("/")
    if step.scopes is not None:
        scopes = [*step.scopes, scopes[-1]]
    names: list[str] = []
    before = ""
    for scope in scopes:
        rest = scope.removeprefix(f"{before}.") if before else scope
        names += rest.split(".")
        before = scope
    clean = [re.sub(r"\W", "_", name, flags=re.ASCII) for name in names if name]
    return tuple(f"{name}_" if name in _RESERVED else name for name in clean) or (re.sub(r"\W+", "_", step.node.kind),)


def unique_paths(paths: Iterable[tuple[str, ...]]) -> list[str]:
    """Dotted paths, with numbers where a name is the name of another node or of a module around other nodes."""
    paths = list(paths)
    taken = {".".join(path[:depth]) for path in paths for depth in range(1, len(path))}
    unique = []
    for path in paths:
        unique.append(_numbered(".".join(path), taken.__contains__))
        taken.add(unique[-1])
    return unique
