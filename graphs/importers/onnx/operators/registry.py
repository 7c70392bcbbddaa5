"""The table of operators, and the node that they read their attributes from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from graphs.errors import InputError


class Attributes(dict[str, Any]):
    """The attributes of a node, which remember those that somebody has read."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or the default."""
        self.read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)


@dataclass(frozen=True)
class Node:
    """One node of an ONNX graph, as an operator sees it.

    Attributes:
        kind: the operator, such as "Conv".
        name: the node's name, or its first output's where the file gives none.
        opset: the version of the operator set that the file was written for.
        attributes: plain Python values; tensors are PyTorch tensors.
        wanted: for every output that the node lists, whether somebody reads it.
    """

    kind: str
    name: str
    opset: int
    attributes: Attributes = field(default_factory=Attributes)
    wanted: tuple[bool, ...] = (True,)

    def number(self, key: str, default: float) -> float:
        """A float attribute."""
        return float(self.attributes.get(key, default))

    def integer(self, key: str, default: int) -> int:
        """An integer attribute."""
        return int(self.attributes.get(key, default))

    def flag(self, key: str, default: bool = False) -> bool:
        """An integer attribute that means yes or no."""
        return bool(self.attributes.get(key, default))

    def integers(self, key: str, default: Sequence[int] = ()) -> list[int]:
        """An attribute that is a list of integers."""
        return [int(value) for value in self.attributes.get(key, default)]

    def text(self, key: str, default: str = "") -> str:
        """A string attribute."""
        return str(self.attributes.get(key, default))

    def wants(self, output: int) -> bool:
        """Whether somebody reads the output with this index."""
        return output < len(self.wanted) and self.wanted[output]

    def unsupported(self, what: str) -> InputError:
        """The error for a variant of an operator that is not covered."""
        return InputError(
            f"node {self.name!r} ({self.kind}, opset {self.opset}): {what} is not supported; export the PyTorch model "
            f"itself (.pt2 or package.module:factory), or add it to graphs/importers/onnx/operators"
        )


Compute = Callable[..., Any]  # (node, operand 0, operand 1, ...) -> a tensor, or a tuple with one per output
Prepare = Callable[[Sequence[torch.Tensor | None]], dict[str, torch.Tensor]]  # weights -> weights, by name


@dataclass(frozen=True)
class Operator:
    """How one kind of node is computed.

    Attributes:
        compute: gets the node and its operands, None for an operand left out; gives a tensor or a tuple of them.
        known: positions of the operands that come as Python lists. They describe the result's shape, so they must be
            known when the file is read.
        scalars: positions of the operands that come as Python numbers where they are known and of rank 0, as
            someone who writes PyTorch would have it (x / 8.0); not where that loses the result's type.
        described: positions of the operands of which only the shape and type count, whatever the elements are.
        folded: whether every operand must be known when the file is read.
        ignores: names of the attributes that change nothing in what is computed here. One that is neither read nor
            listed here is an error: it could mean anything.
        state: positions of the operands that are running statistics, not trainable.
        prepare: gives the weights as PyTorch's function wants them; see `weights`.
        weights: positions of the operands that `prepare` gets. Its results come after all other operands; the
            positions above count without these.
        arity: number of operands to fill up to with None, for what comes after them; 0 where nothing does.
    """

    compute: Compute
    known: tuple[int, ...] = ()
    scalars: tuple[int, ...] = ()
    described: tuple[int, ...] = ()
    folded: bool = False
    ignores: tuple[str, ...] = ()
    state: tuple[int, ...] = ()
    prepare: Prepare | None = None
    weights: tuple[int, ...] = ()
    arity: int = 0


OPERATORS: dict[str, Operator] = {}


def operator(*kinds: str, **traits: Any) -> Callable[[Compute], Compute]:
    """Enters a function into the table, under each of the kinds; the traits are the fields of `Operator`.

    Raises:
        ValueError: a kind is in the table already.
    """

    def enter(compute: Compute) -> Compute:
        for kind in kinds:
            if kind in OPERATORS:
                raise ValueError(f"operator {kind!r} is in the table already; give each kind one function")
            OPERATORS[kind] = Operator(compute, **traits)
        return compute

    return enter


def plain(function: Callable[..., Any]) -> Compute:
    """A function of the operands alone, which has no use for the node's attributes."""

    def compute(_node: Node, *operands: Any) -> Any:
        return function(*operands)

    return compute
