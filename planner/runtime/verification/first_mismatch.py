"""The first operator that differs: each operator of a stage is run alone on its inputs from the reference network."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import fx

from costmodels.host.affinity import run_on, torch_device_of
from costmodels.host.kernels import kernel_of
from graphs.program.program import Program
from planner.runtime.stages.compile import add_call
from planner.runtime.stages.generated import function_of
from planner.runtime.stages.random_generators import Generators
from planner.runtime.verification.crossings import StageUnderTest
from planner.runtime.verification.deviation import Deviation
from planner.runtime.verification.reference import (
    Applied,
    Function,
    Reference,
    arguments_of,
    random_operators,
)

Compare = Callable[[torch.Tensor, torch.Tensor], Deviation | None]
"""Takes the expected tensor and the one to check; returns None if they are equal."""


@dataclass(frozen=True)
class FirstMismatch:
    """An operator whose result differs although its inputs are the same."""

    op: str  # its name
    kind: str  # what it computes
    module: str  # path of the module that it came from
    result: str  # what differs, such as "output 'relu'" or "gradient of 'conv.weight'"
    deviation: Deviation  # by how much
    repeatable: bool  # whether another run has the same result


@dataclass(frozen=True)
class Suspects:
    """Runs operators alone, to find the first one that differs."""

    program: Program  # the network
    reference: Reference  # its reference run
    learned: frozenset[str]  # names of the tensors that get a gradient; none in inference
    seed: int  # seed of random operators
    compare: Compare  # what counts as a difference

    def first(self, ops: Iterable[int], part: StageUnderTest, backward: bool) -> FirstMismatch | None:
        """Return the first operator that differs on the device of a stage, with the weights of the stage."""
        for i in ops:
            op, results = self.program.graph.ops[i], dict(self._results(i, part, backward))
            for what, got in results.items():
                expected = (
                    self.reference.contributions[i, what] if backward else self.reference.values[op.outputs[what]]
                )
                difference = self.compare(expected, got)
                if difference is not None:
                    again = dict(self._results(i, part, backward))[what]
                    name = op.inputs[what] if backward else op.outputs[what]
                    return FirstMismatch(
                        op=op.name,
                        kind=op.kind,
                        module=op.module,
                        result=f"gradient of '{name}'" if backward else f"output '{name}'",
                        deviation=difference,
                        repeatable=self.compare(got, again) is None,
                    )
        return None

    def _results(self, i: int, part: StageUnderTest, backward: bool) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield what the operator writes, by output, or the gradients of its arguments, by argument."""
        op = self.program.graph.ops[i]
        applied, gradients = run_on(part.device, lambda: self._run(i, part, backward))
        if backward:
            expected = {position for reader, position in self.reference.contributions if reader == i}
            for position in sorted(expected | gradients.keys()):
                if position in expected:
                    zeros = torch.zeros_like(self.reference.contributions[i, position])
                    yield position, gradients.get(position, zeros)
        else:
            yield from enumerate(applied.results[: len(op.outputs)])

    def _run(self, i: int, part: StageUnderTest, backward: bool) -> tuple[Applied, Mapping[int, torch.Tensor]]:
        torch_device = torch_device_of(part.device)
        op = self.program.graph.ops[i]
        values = {name: part.state.get(name, self.reference.values[name]).to(torch_device) for name in op.inputs}
        random_ops = random_operators(self.program)
        arguments = arguments_of(self.program, op, values, self.learned or self.program.asking)
        generators = Generators([i] if i in random_ops else [], torch_device, self.seed)
        applied = Applied.of(
            alone(self.program, i, torch_device, i in random_ops), arguments, generators, bool(self.learned)
        )
        if not backward:
            return applied, {}
        gradients = (self.reference.gradients.get(name) for name in op.outputs)
        return applied, applied.contributions([None if g is None else g.to(torch_device) for g in gradients])


def alone(program: Program, op: int, torch_device: torch.device, random: bool) -> Function:
    """Compile an operator by itself, as the runtime does."""
    record = program.graph.ops[op]
    graph = fx.Graph()
    reads = iter([graph.placeholder(f"arg{number}") for number in range(len(record.inputs))])
    generator = graph.placeholder("generator") if random else None
    graph.output(
        add_call(graph, program, record, lambda _: next(reads), kernel_of(program, record, torch_device), generator)
    )
    return function_of(graph, [])
