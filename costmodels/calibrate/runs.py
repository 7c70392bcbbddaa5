"""Runs a program once on a device, and times every operator.

The sequence makes caches and memory reuse realistic. In inference, operators are compiled as they are for a run (see
`graphs.kernels.functions`), with a mark of the time after each. In training, the operator alone is timed; its arguments
are bound before.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain, pairwise
from statistics import median
from threading import get_ident
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch

from costmodels.calibrate.clock import Clock
from costmodels.host.affinity import check_stopped
from costmodels.host.discovery import ROOT, free_bytes
from costmodels.host.packing import PackedWeights
from costmodels.memory.passes import inference_bytes
from costmodels.operators.views import differentiated
from costmodels.table import worth_pairs
from costmodels.units import format_bytes
from graphs.common.errors import InputError, running
from graphs.ir import Op, Role
from graphs.kernels.choice import Kernels
from graphs.kernels.functions import DeviceState, Subgraph, compile_operators, inputs_of
from graphs.kernels.giving_way import Function
from graphs.kernels.kernel import Kernel
from graphs.kernels.kernels import kernel_of, kernels_of
from graphs.kernels.pairs import Turn, computes_pairs, in_turns, n_micro_batches, one_by_one
from graphs.program.program import Program, as_held, on_device
from graphs.program.traced_strides import lying_as_traced

MARKS = 500  # of which the median distance is taken
CALLS, VIEWS = 50, 50  # to separate a call of the engine from one operator's backward pass

Marks: TypeAlias = tuple[Any, Any]
"""A clock's marks before and after."""


class Pass(Protocol):
    """Runs a program once and times its operators; it ends between two operators if the thread was stopped."""

    def one_pass(self) -> list[list[float]]:
        """[n_phases][n_ops], seconds; one phase for inference, forward and backward for training."""
        ...

    def pause(self) -> None:
        """Let nothing run until the next pass."""
        return


class Inference(Pass, DeviceState):
    """The forward pass without gradients, in which a tensor is released after its last reader."""

    def __init__(
        self,
        program: Program,
        torch_device: torch.device,
        clock: Clock,
        n_ops: int | None = None,
        kernels: Kernels = "exact",
        copies_s: Sequence[float] = (),
    ) -> None:
        """Bring the program's state to the device, with values where it has none; ``n_ops`` operators run, or all.

        For copies of the program, ``copies_s`` are the seconds of its operators alone. Copies run two micro-batches at
        once if they gain by it (see `graphs.kernels.pairs`), and the seconds are then those of one of them.
        """
        self.program = program
        self.clock = clock
        self.ops = program.graph.ops[:n_ops]
        self.given = _brought(program, torch_device, inference_bytes(program.graph))
        self.kernels = [kernels_of(program, op, torch_device, kernels) for op in self.ops]
        self._packed = PackedWeights()
        self._packed.check_room(program.graph, chain.from_iterable(self.kernels), torch.get_num_threads())
        self._strides = lying_as_traced(program)
        self._last = _last_read(program)
        self._pairs = gains_by_pairs(self.kernels, copies_s)
        self._functions: dict[tuple[int, range], _TimedFunction] = {}  # by thread and operators
        self._mark_s = _mark_s(clock) if torch_device.type == "cpu" else 0.0  # a GPU marks while it computes

    def one_pass(self) -> list[list[float]]:
        """[1][n_ops], seconds."""
        return self.run(dict(self.given), 0, len(self.ops))

    def run(self, env: dict[str, torch.Tensor], start: int, stop: int) -> list[list[float]]:
        """[1][stop - start], seconds of the operators from ``start`` to before ``stop``, on the calling thread.

        ``env`` has their inputs by name; outputs are added, and inputs without further readers are removed.
        """
        ops = range(start, min(stop, len(self.ops)))
        timed = self._function(ops)
        marks, count = timed.marks, n_micro_batches(timed.turns)
        marks.clear()

        def at_fault() -> str:
            op = self.ops[timed.turns[len(marks) - 1][0]]
            return f"operator '{op.name}' ({op.kind})"

        with running(at_fault):
            timed.behind()
            given = [env[name] for name in timed.inputs]
            written = timed.function(*given * count)
        env.update(zip(timed.outputs * count, written, strict=True))
        for name in timed.inputs:
            if self._last[name] < ops.stop:
                del env[name]
        self.clock.settle()
        seconds = [0.0] * len(ops)
        for (number, _), (before, after) in zip(timed.turns, pairwise(marks), strict=True):
            took_s = max(0.0, self.clock.seconds(before, after) - self._mark_s)
            seconds[number - start] += took_s / count
        return [seconds]

    def get(self, name: str) -> torch.Tensor:
        """A parameter or buffer."""
        return self.given[name]

    def packed(self, kernel: Kernel, name: str) -> torch.Tensor:
        """A weight as a kernel packs it, once for all threads."""
        return self._packed.get(kernel, name, self.get, torch.get_num_threads())

    def _function(self, ops: range) -> "_TimedFunction":
        """The calling thread's function of some operators, whose memory for results is the same from run to run."""
        key = get_ident(), ops
        if key not in self._functions:
            behind, marks = _marking(self.clock)

            def restart() -> None:
                del marks[1:]

            outputs = tuple(name for i in ops for name in self.ops[i].outputs if self._last[name] >= ops.stop)
            kernels = {number: self.kernels[number] for number in ops}
            turns = (in_turns(kernels) if self._pairs else ()) or one_by_one(ops)
            subgraph = Subgraph(self.program, kernels, outputs, self._strides)
            function = compile_operators(subgraph, self, behind=behind, turns=turns, restart=restart)
            inputs = inputs_of(self.program.graph, ops)
            self._functions[key] = _TimedFunction(function, inputs, outputs, behind, turns, marks)
        return self._functions[key]


class _TimedFunction(NamedTuple):
    """Operators as a run calls them, with a mark of the time after each."""

    function: Function
    inputs: Sequence[str]
    outputs: tuple[str, ...]
    behind: Callable[[], object]  # adds a mark
    turns: Sequence[Turn]  # of operators, with a mark after each
    marks: list[Any]


def _marking(clock: Clock) -> tuple[Callable[[], object], list[Any]]:
    """Return the function to call after each operator, and the list of marks that it extends."""
    marks, mark = list[Any](), clock.mark

    def behind() -> None:
        check_stopped()
        marks.append(mark())

    return behind, marks


def _mark_s(clock: Clock) -> float:
    """Return the median seconds from one mark to the next without an operator in between."""
    behind, marks = _marking(clock)
    for _ in range(MARKS):
        behind()
    clock.settle()
    return median(clock.seconds(before, after) for before, after in pairwise(marks))


@dataclass
class _ForwardPass:
    """An operator between its two passes; its inputs and outputs are leaves, at which its backward pass ends."""

    inputs: list[torch.Tensor]  # its inputs that get a gradient
    results: list[torch.Tensor]  # its results, with the operator's backward pass
    outputs: list[torch.Tensor]  # the leaves that other operators read instead of the results


class Training(Pass):
    """The forward pass, then the backward pass of each operator in the opposite order.

    ::

        x' ──op──► y ┄ y' ──op──► z ┄ z'        a dash marks a leaf; y' shares the storage of y
        x'.grad ◄── y ◄ y'.grad ◄── z ◄ z'.grad

    Gradients are added up in the leaves, those of parameters over all passes, as with micro-batches; batch norms update
    copies of their statistics. A real backward pass calls PyTorch's engine once and not for each operator, so the time
    of an empty call is subtracted.
    """

    def __init__(self, program: Program, torch_device: torch.device, clock: Clock) -> None:
        """As `Inference`, but for the whole program, and with exact kernels, which have a backward pass."""
        self.program = program
        self.torch_device = torch_device
        self.clock = clock
        self.differentiated = differentiated(program.graph)
        n_bytes = {role: sum(t.n_bytes for t in program.graph.tensors if t.role is role) for role in Role}
        # every activation is kept, and may get a gradient, as every parameter may
        self.given = _brought(program, torch_device, 2 * n_bytes[Role.ACTIVATION] + n_bytes[Role.PARAMETER])
        for name in self.differentiated & self.given.keys():
            self.given[name].requires_grad_()
            self.given[name].grad = torch.zeros_like(self.given[name])  # as after an earlier micro-batch
        self.parameters = {id(self.given[name]) for name in self.differentiated & self.given.keys()}
        self.call_s = _call_s(torch_device, clock)
        self.last = _last_read(program)

    def one_pass(self) -> list[list[float]]:
        """[2][n_ops], seconds: forward, backward."""
        with drawing_apart(self.torch_device):  # dropout is active
            return self.run(dict(self.given), 0, len(self.program.graph.ops))

    def run(self, env: dict[str, torch.Tensor], start: int, stop: int) -> list[list[float]]:
        """[2][stop - start], seconds of the operators from ``start`` to before ``stop``, on the calling thread.

        ``env`` has their inputs by name, and afterwards the inputs of later operators, as leaves.
        """
        with torch.enable_grad():
            pairs = [self._forward(op, env) for op in self.program.graph.ops[start:stop]]
        forward, recorded = [list(column) for column in zip(*pairs, strict=True)] if pairs else ([], [])
        leaving = {name: env[name] for name in env.keys() - self.given.keys() if self.last[name] >= stop}
        for tensor in leaving.values():
            if tensor.requires_grad:
                tensor.grad = torch.ones_like(tensor)  # stands for the gradient from later operators
        env.clear()
        backward: list[Marks | None] = []
        while recorded:
            backward.append(self._backward(start + len(recorded) - 1, recorded.pop()))
        self.clock.settle()
        env.update(self.given)
        env.update({name: tensor.detach().requires_grad_(tensor.requires_grad) for name, tensor in leaving.items()})
        forward_s = [self.clock.seconds(*marks) for marks in forward]
        backward_s = [max(0.0, self.clock.seconds(*marks) - self.call_s) if marks else 0.0 for marks in backward[::-1]]
        return [forward_s, backward_s]

    def _forward(self, op: Op, env: dict[str, torch.Tensor]) -> tuple[Marks, _ForwardPass]:
        check_stopped()
        call = self.program.calls[op.name]
        args, kwargs = (on_device(each, self.torch_device) for each in self.program.arguments(op, env.__getitem__))
        target = kernel_of(self.program, op, self.torch_device).target
        with running(f"operator '{op.name}' ({op.kind})"):
            start = self.clock.mark()
            result = target(*args, **kwargs)
            end = self.clock.mark()
        results = list(result) if call.unpack else [result]
        outputs = [
            tensor.detach().requires_grad_(name in self.differentiated)
            for name, tensor in zip(op.outputs, results, strict=True)
        ]
        env.update(zip(op.outputs, outputs, strict=True))
        inputs = [env[name] for name in dict.fromkeys(op.inputs) if env[name].requires_grad]
        return (start, end), _ForwardPass(inputs, results, outputs)

    def _backward(self, number: int, recorded: _ForwardPass) -> Marks | None:
        """The marks of a backward pass; None for an operator without gradients of its outputs or inputs."""
        check_stopped()
        asked = [
            (result, output.grad)
            for result, output in zip(recorded.results, recorded.outputs, strict=True)
            if result.requires_grad and output.grad is not None
        ]
        if not (asked and recorded.inputs):
            return None
        results, gradients = [list(column) for column in zip(*asked, strict=True)]
        start = self.clock.mark()
        try:
            input_gradients = torch.autograd.grad(results, recorded.inputs, gradients, allow_unused=True)
        except torch.OutOfMemoryError:
            raise
        except (NotImplementedError, RuntimeError) as error:
            op = self.program.graph.ops[number]
            raise InputError(
                f"operator '{op.name}' ({op.kind}) has no backward pass here: {str(error).splitlines()[0]}; "
                "measure without training"
            ) from error
        for leaf, gradient in zip(recorded.inputs, input_gradients, strict=True):
            if gradient is not None:
                _add(leaf, gradient, in_place=id(leaf) in self.parameters)
        del asked, results, gradients, input_gradients
        recorded.results.clear()
        recorded.outputs.clear()
        return start, self.clock.mark()


def _add(leaf: torch.Tensor, gradient: torch.Tensor, in_place: bool) -> None:
    """Add a gradient to that of a leaf; only a parameter's changes in place, since others may share their storage.

    PyTorch's own accumulation in a leaf copies the first gradient if its storage may be shared; a backward pass of a
    whole network has no such copies.
    """
    if in_place and leaf.grad is not None:
        leaf.grad += gradient
    else:
        leaf.grad = gradient if leaf.grad is None else leaf.grad + gradient


def _call_s(torch_device: torch.device, clock: Clock) -> float:
    """Return the seconds of a call of the engine without those of the operators."""

    def views_s(n_views: int) -> float:
        times = []
        for _ in range(CALLS):
            with torch.enable_grad():
                leaf = torch.ones(1, device=torch_device, requires_grad=True)
                result = leaf
                for _ in range(n_views):
                    result = result.view(1)
            gradient = torch.ones(1, device=torch_device)
            start = clock.mark()
            torch.autograd.grad([result], [leaf], [gradient])
            end = clock.mark()
            clock.settle()
            times.append(clock.seconds(start, end))
        return median(times)

    one_s, many_s = views_s(1), views_s(1 + VIEWS)
    return max(0.0, one_s - (many_s - one_s) / VIEWS)


def _brought(program: Program, torch_device: torch.device, working_bytes: int) -> dict[str, torch.Tensor]:
    """Inputs, parameters and buffers on the device."""
    given = dict(program.state) | dict(zip(program.graph.inputs, program.example_inputs, strict=True))
    _check_room(program, given, torch_device, working_bytes)
    brought = {name: _with_values(tensor, torch_device) for name, tensor in given.items()}
    return brought | {name: brought[name].clone() for name in program.statistics}  # operators write these


def _with_values(tensor: torch.Tensor, torch_device: torch.device) -> torch.Tensor:
    """A tensor on the device; a tensor without values gets ones that do not slow down arithmetic."""
    if not tensor.is_meta:
        return as_held(tensor, torch_device)
    harmless = 0.01 if tensor.is_floating_point() else 0  # no overflow, no denormal; a valid index
    return torch.full(
        tensor.shape, harmless, dtype=tensor.dtype, device=torch_device, requires_grad=tensor.requires_grad
    )


def _check_room(
    program: Program, given: Mapping[str, torch.Tensor], torch_device: torch.device, working_bytes: int
) -> None:
    """Refuse to allocate more than the free memory for tensors without values."""
    n_bytes = sum(tensor.nbytes for tensor in given.values() if tensor.is_meta)
    free = torch.cuda.mem_get_info(torch_device)[0] if torch_device.type == "cuda" else free_bytes(ROOT)
    if n_bytes and n_bytes + working_bytes > free:
        raise InputError(
            f"model '{program.graph.name}' takes {format_bytes(n_bytes)}, of which {format_bytes(free)} are free; "
            "it cannot be measured as a whole here: plan without measuring"
        )


def drawing_apart(torch_device: torch.device) -> AbstractContextManager[None]:
    """Restore the generators of random numbers afterwards."""
    return torch.random.fork_rng([torch_device] if torch_device.type == "cuda" else [])


def _last_read(program: Program) -> dict[str, int]:
    """Return for each activation its last reader or its writer; for outputs the number of operators."""
    graph = program.graph
    last = {name: i for i, op in enumerate(graph.ops) for name in (*op.inputs, *op.outputs)}
    return last | dict.fromkeys(graph.outputs, len(graph.ops))


def gains_by_pairs(kernels: Sequence[Sequence[Kernel]], alone_s: Sequence[float]) -> bool:
    """Return whether operators that compute pairs take the share of the time that makes pairs worth it.

    ``kernels`` are those of each operator, [n_ops], and ``alone_s`` its seconds, [n_ops].
    """
    paired_s = sum(each_s for each, each_s in zip(kernels, alone_s, strict=False) if computes_pairs(each))
    return bool(worth_pairs(paired_s, sum(alone_s)))
