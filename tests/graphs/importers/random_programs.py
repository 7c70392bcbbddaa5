"""Straight-line programs that write in place, through views and through names that show the same storage.

One program has three forms: the steps themselves, which ``execute`` runs as a user's Python would; a traced graph made
by hand, which may go on under the old name of what it wrote or under the new one; and a module.
"""

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import fx, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

aten = torch.ops.aten

Row = tuple[OpOverload, tuple[Any, ...]]

NEW: tuple[Row, ...] = (
    (aten.clone.default, ()),
    (aten.mul.Tensor, (3,)),
    (aten.relu.default, ()),
    (aten.to.dtype, (torch.float64,)),  # a view of a float64, a copy of a float32
)
VIEWS: tuple[Row, ...] = (
    (aten.reshape.default, ((-1,),)),  # of what is contiguous: a view
    (aten.reshape.default, ((2, -1),)),
    (aten.slice.Tensor, (0, 0, 2)),
    (aten.slice.Tensor, (0, 1, 3)),
    (aten.unsqueeze.default, (0,)),
    (aten.squeeze.default, ()),
    (aten.dropout.default, (0.5, False)),  # a view that its schema keeps to itself
    (aten.atleast_2d.default, ()),
)
WRITES: tuple[Row, ...] = (
    (aten.add_.Scalar, (1,)),
    (aten.mul_.Scalar, (-2,)),
    (aten.relu_.default, ()),
    (aten.clamp_.default, (-1, 2)),
    (aten.gt_.Scalar, (0,)),  # gt yields booleans, gt_ writes ones and zeros into what was there
    (aten.zero_.default, ()),
    (aten.dropout_.default, (0.5, False)),
    (aten.squeeze_.default, ()),
)
SHAPE = (4, 3)


@dataclass(frozen=True)
class Step:
    """``target(values[read], *rest)``, with a second tensor first among the rest if ``other`` is given."""

    target: OpOverload
    read: int
    rest: tuple[Any, ...]
    other: int | None = None

    def apply(self, values: list[Any]) -> tuple[Any, ...]:
        """The arguments, taken from the input and the results of the steps before."""
        others = () if self.other is None else (values[self.other],)
        return (values[self.read], *others, *self.rest)


@dataclass(frozen=True)
class Steps:
    """Steps on one input, and which of its values are returned."""

    steps: tuple[Step, ...]
    returned: tuple[int, ...]

    def execute(self, x: torch.Tensor) -> list[torch.Tensor]:
        """What eager PyTorch makes of it; ``x`` may be written."""
        values: list[Any] = [x]
        for step in self.steps:
            values.append(step.target(*step.apply(values)))
        return [values[i] for i in self.returned]

    def graph(self) -> fx.GraphModule:
        """The same as a traced graph, with the shapes that tracing notes."""
        graph = fx.Graph()
        values: list[Any] = [graph.placeholder("x")]
        for step in self.steps:
            values.append(graph.call_function(step.target, step.apply(values)))
        graph.output([values[i] for i in self.returned])
        return with_shapes(fx.GraphModule(nn.Module(), graph), example())

    def module(self) -> nn.Module:
        """The same as a user's module."""
        steps = self

        class Module(nn.Module):
            def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
                return steps.execute(x)

        return Module()


def example() -> torch.Tensor:
    """An input with negative and positive values, no two alike."""
    return torch.arange(12.0).reshape(SHAPE) - 4.5


def with_shapes(module: fx.GraphModule, *inputs: torch.Tensor) -> fx.GraphModule:
    """Notes every node's value as tracing does: a tensor without data."""
    with FakeTensorMode() as mode:
        FakeTensorProp(module, mode).propagate(*inputs)
    return module


@st.composite
def programs(draw: st.DrawFn, chained: bool = False) -> Steps:
    """Programs that eager PyTorch runs without an error; in a chained one each step reads what the last one made."""
    values: list[Any] = [example()]
    steps: list[Step] = []
    for _ in range(draw(st.integers(2, 10))):
        step = draw(_steps(values, chained))
        try:
            made = step.target(*step.apply(values))
        except (RuntimeError, IndexError):  # shapes do not fit, or parts of one storage are read and written at once
            continue
        values.append(made)
        steps.append(step)
    returned = [len(steps)] if chained else draw(st.lists(_index(len(steps)), min_size=1, max_size=2))
    return Steps(tuple(steps), tuple(returned))


@st.composite
def _steps(draw: st.DrawFn, values: list[torch.Tensor], chained: bool) -> Step:
    latest = len(values) - 1
    if chained and latest == 0:
        return Step(aten.clone.default, 0, ())  # else the input would be written
    read = latest if chained else draw(_index(latest))
    alike = [i for i, value in enumerate(values) if value.shape == values[read].shape]
    if not chained and draw(st.integers(0, 3)) == 0:
        both = draw(st.sampled_from([aten.add.Tensor, aten.add_.Tensor, aten.mul_.Tensor, aten.copy_.default]))
        return Step(both, read, (), other=draw(st.sampled_from(alike)))
    writes = [row for row in WRITES if row[0] is not aten.gt_.Scalar] if chained else WRITES
    target, rest = draw(st.one_of(st.sampled_from(NEW), st.sampled_from(VIEWS), st.sampled_from(writes)))
    return Step(target, read, rest)


def _index(latest: int) -> st.SearchStrategy[int]:
    """The latest value in most cases, else any."""
    return st.integers(0, 2 * latest).map(lambda back: latest - back if back <= latest else latest)
