"""Runs every operator of a program once on fake tensors, and records its memory.

::

    seed ──► gradient of the outputs ──► backward of the operator ──► gradients of its inputs
             ▲ bytes are counted from here on                          ▲ their storages are recorded

Temporary memory inside a kernel (oneDNN's scratch memory, a copy in another layout) does not pass the dispatcher and is
not counted. The fake tensors are on the CPU: PyTorch chooses the same kernels as for real tensors, and allocates
nothing. Equal operators run once in a process, with and without gradients, in the mode of the trace.
"""

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from graphs.common.shortages import failures
from graphs.footprint import Backward, Footprint, Gradient, Run, Storage
from graphs.ir import Op, Role
from graphs.program.program import Program, on_device


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Counts every storage that appears inside its ``with`` block, until the storage is freed.

    ::

        with Meter() as meter:
            ...
        meter.peak_bytes

    Enter the meter after a mode that replaces kernels (fake tensors), so that it sees the results of that mode.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.n_bytes = 0
        self.peak_bytes = 0
        self._alive: dict[int, Any] = {}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.add(leaf)
        return result

    def add(self, tensor: torch.Tensor) -> None:
        """Count the storage of a tensor, unless it is counted already."""
        self._watch(tensor, tensor.untyped_storage().nbytes())

    def ignore(self, tensor: torch.Tensor) -> None:
        """Never count the storage of a tensor."""
        self._watch(tensor, 0)

    def restart(self) -> None:
        """Set the peak to the bytes that are alive now."""
        self.peak_bytes = self.n_bytes

    def _watch(self, tensor: torch.Tensor, n_bytes: int) -> None:
        storage = tensor.untyped_storage()
        key = storage_key(tensor)
        if key in self._alive:
            return

        def freed(_: object) -> None:
            del self._alive[key]
            self.n_bytes -= n_bytes

        self._alive[key] = weakref.ref(storage, freed)  # a storage keeps its Python object for as long as it lives
        self.n_bytes += n_bytes
        self.peak_bytes = max(self.peak_bytes, self.n_bytes)


Names: TypeAlias = weakref.WeakKeyDictionary[torch.UntypedStorage, str]
"""Names of storages, each while its storage is alive."""


def storage_key(tensor: torch.Tensor) -> int:
    """A number that is equal for all tensors of one storage, while the storage is alive."""
    return int(tensor.untyped_storage()._cdata)


CPU = torch.device("cpu")
COMPUTED = ("aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu")
"""Operators whose fake kernels leave out the data that oneDNN saves for the backward pass; they run on zeros."""


@dataclass(frozen=True)
class _TensorMeta:
    """Layout and dtype of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    trained: bool = False  # whether it requires a gradient

    def tensor(self) -> torch.Tensor:
        made = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=CPU)
        return made.requires_grad_(self.trained)


Layouts: TypeAlias = tuple[_TensorMeta, ...]


def with_footprints(program: Program) -> Program:
    """The program with footprints in its graph, except for operators that need values to run."""
    recorder = _FootprintRecorder(program)
    with torch.random.fork_rng(devices=[]):  # operators in COMPUTED may draw random numbers
        ops = tuple(replace(op, footprint=recorder.footprint(op)) for op in program.graph.ops)
    return replace(program, graph=replace(program.graph, ops=ops))


class _FootprintRecorder:
    """Runs the operators of a program in order, and keeps the layouts of all tensors, without and with gradients."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.recorded: dict[object, _NumberedFootprint | None] = {}
        self.switches = _switches()
        self.layouts: tuple[dict[str, _TensorMeta], dict[str, _TensorMeta]] = ({}, {})  # in inference, in training
        self.read = {name for op in program.graph.ops for name in op.inputs} | set(program.graph.outputs)
        starts = dict(zip(program.graph.inputs, program.example_inputs, strict=True)) | dict(program.state)
        trained = _trained(program)
        for name, tensor in starts.items():
            self.layouts[0][name] = _layout(tensor, False)
            self.layouts[1][name] = _layout(tensor, name in trained)

    def footprint(self, op: Op) -> Footprint | None:
        """The memory of an operator; the layouts of its outputs are kept for later operators."""
        inference, _ = self._once(op, False)
        training, backward = self._once(op, True)
        if backward is not None:  # parameters and buffers stay in memory anyway
            activations = tuple(name for name in backward.saved if name not in self.program.state)
            backward = replace(backward, saved=activations)
        return None if inference is None else Footprint(inference, training, backward)

    def _once(self, op: Op, training: bool) -> tuple[Run | None, Backward | None]:
        """Run an operator, or use the record of an equal one."""
        layouts = self.layouts[training]
        names = tuple(dict.fromkeys(op.inputs))
        number = {name: position for position, name in enumerate(names)}
        args, kwargs = self.program.arguments(op, lambda name: _InputNumber(number[name]))
        target, unpack = self.program.calls[op.name].node.target, self.program.calls[op.name].unpack
        args, kwargs = on_device(args, CPU), on_device(kwargs, CPU)
        reads, used = tuple(layouts[name] for name in names), tuple(name in self.read for name in op.outputs)
        key = training, target, (repr(args), repr(kwargs), reads, used)
        if key not in self.recorded:
            call = _OperatorCall(target, args, kwargs, unpack, used)
            self.recorded[key] = _shared(self.switches, key, lambda: _record(call, reads, training, self.fake))
        recorded = self.recorded[key]
        if recorded is None:
            trained = any(layout.trained for layout in reads)
            for name in op.outputs:
                tensor = self.program.graph.tensor[name]
                made = torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype), device="meta")
                layouts[name] = _layout(made, trained and made.is_floating_point())
            return None, None
        layouts |= zip(op.outputs, recorded.layouts, strict=True)
        return recorded.named((*names, *op.outputs))


@dataclass(frozen=True)
class _InputNumber:
    """The number of an input, in place of its tensor in the arguments."""

    number: int


@dataclass(frozen=True)
class _OperatorCall:
    """An operator with its arguments; each tensor is an `_InputNumber`."""

    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    unpack: bool
    used: tuple[bool, ...]  # [n_outputs], whether an operator or the result reads the output

    def run(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        def bound(value: Any) -> Any:
            return tensors[value.number] if isinstance(value, _InputNumber) else value

        args: Any = fx.node.map_aggregate(self.args, bound)
        kwargs: Any = fx.node.map_aggregate(dict(self.kwargs), bound)
        result = self.target(*args, **kwargs)
        return tuple(result) if self.unpack else (result,)


@dataclass(frozen=True)
class _NumberedFootprint:
    """A footprint with numbers of inputs, and of outputs after them, in place of names."""

    run: Run
    backward: Backward | None
    layouts: Layouts

    def named(self, names: tuple[str, ...]) -> tuple[Run, Backward | None]:
        def storage(value: Storage) -> Storage:
            return names[int(value)] if isinstance(value, str) else value

        run = replace(self.run, writes=tuple(storage(value) for value in self.run.writes))
        if self.backward is None:
            return run, None
        saved = tuple(names[int(number)] for number in self.backward.saved)
        gradients = tuple(
            Gradient(names[int(n)], storage(value), viewed) for n, value, viewed in self.backward.gradients
        )
        return run, replace(self.backward, saved=saved, gradients=gradients)


def _record(call: _OperatorCall, reads: Layouts, training: bool, fake: FakeTensorMode) -> _NumberedFootprint | None:
    """Run an operator on fake tensors; None if it needs values. The backward pass may be missing for that reason."""
    with nullcontext() if training and call.target._schema.name in COMPUTED else fake:
        with failures(), torch.set_grad_enabled(training):  # of fake kernels; the caller reports the operator
            return _Recording(call, reads).recorded(training)
        return None


RECORDS = 4096
"""How many records a process keeps. A network has ten to a few hundred different operators."""

_records: OrderedDict[object, _NumberedFootprint] = OrderedDict()
"""Records of PyTorch's own operators in this process, in the order of their last use."""


def _shared(
    switches: Hashable, key: tuple[bool, Any, Hashable], record: Callable[[], _NumberedFootprint | None]
) -> _NumberedFootprint | None:
    """Return the record that an earlier program has left, or a new one; None if recording fails.

    Networks have many operators in common. A user's operator may be redefined, and an operator that failed may succeed
    the next time: these are recorded for every program.
    """
    training, target, _ = key
    if getattr(target, "namespace", "") != "aten":
        return record()
    recorded = _records.pop((switches, key), None) or record()
    if recorded is not None and (recorded.backward is not None or not training):
        _records[switches, key] = recorded
    if len(_records) > RECORDS:
        _records.popitem(last=False)
    return recorded


class _Recording:
    """One run of an operator, and its backward pass."""

    def __init__(self, call: _OperatorCall, reads: Layouts) -> None:
        self.call = call
        self.inputs = [layout.tensor() for layout in reads]
        for tensor in self.inputs:
            if not isinstance(tensor, FakeTensor):
                tensor.detach().zero_()
        self.meter = Meter()
        self.names = Names()
        for number, tensor in enumerate(self.inputs):
            self.names.setdefault(tensor.untyped_storage(), str(number))

    def recorded(self, training: bool) -> _NumberedFootprint:
        kept: list[weakref.ref[torch.UntypedStorage]] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            kept.append(weakref.ref(tensor.untyped_storage()))
            return tensor

        with self.meter, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            for tensor in self.inputs:
                self.meter.ignore(tensor)
            outputs = self.call.run(self.inputs)
        storages = self._storages(outputs)
        own_bytes = sum(value for value in storages if isinstance(value, int))
        run = Run(storages, max(0, self.meter.peak_bytes - self.meter.n_bytes))
        layouts = tuple(_layout(output, output.requires_grad) for output in outputs)
        alive = [storage for storage in (of() for of in kept) if storage is not None]
        saved = tuple(dict.fromkeys(name for name in map(self.names.get, alive) if name is not None))
        saved_bytes = self.meter.n_bytes - own_bytes
        if not training:
            if saved_bytes > 0:  # an output is a view of a part of a larger storage
                first = next((i for i, value in enumerate(storages) if isinstance(value, int)), None)
                grown = (v + saved_bytes if i == first and isinstance(v, int) else v for i, v in enumerate(storages))
                run = replace(run, writes=tuple(grown))
            return _NumberedFootprint(run, None, layouts)
        backward: Backward | None = None
        with failures():  # a backward pass that fails on fake tensors is reported by the caller
            backward = self._backward(list(outputs), saved, saved_bytes)
        return _NumberedFootprint(run, backward, layouts)

    def _storages(self, outputs: Iterable[torch.Tensor]) -> tuple[Storage, ...]:
        """The storage of each output; a new storage is named by the output's number."""
        result: list[Storage] = []
        for number, output in enumerate(outputs, len(self.inputs)):
            storage = output.untyped_storage()
            result.append(self.names.get(storage) or storage.nbytes())
            self.names.setdefault(storage, str(number))
        return tuple(result)

    def _backward(self, outputs: list[torch.Tensor], saved: tuple[str, ...], saved_bytes: int) -> Backward:
        names = Names()  # names of the gradients' storages
        start_bytes = 0
        used = zip(outputs, self.call.used, strict=True)
        numbers = [number for number, (output, read) in enumerate(used) if read and output.requires_grad]
        wanted = [(str(number), tensor) for number, tensor in enumerate(self.inputs) if tensor.requires_grad]
        if not numbers:
            return Backward(saved, saved_bytes)

        def started(gradients: list[torch.Tensor]) -> None:
            nonlocal start_bytes
            for number, gradient in zip(numbers, gradients, strict=True):
                names.setdefault(gradient.untyped_storage(), str(len(self.inputs) + number))
            start_bytes = self.meter.n_bytes
            self.meter.restart()

        with self.meter:
            end = _Seed.apply(started, *(outputs[number] for number in numbers))  # type: ignore[no-untyped-call]
            results = torch.autograd.grad(end, [tensor for _, tensor in wanted], allow_unused=True)
        gradients: list[Gradient] = []
        own_bytes = 0
        for (name, _), gradient in zip(wanted, results, strict=True):
            if gradient is not None:
                storage = gradient.untyped_storage()
                shown = names.get(storage)
                own_bytes += storage.nbytes() if shown is None else 0
                gradients.append(Gradient(name, shown or storage.nbytes(), gradient._is_view()))
                names.setdefault(storage, name)
        extra_bytes = max(0, self.meter.peak_bytes - start_bytes - own_bytes)
        return Backward(saved, saved_bytes, tuple(gradients), extra_bytes)


class _Seed(torch.autograd.Function):
    """The end of a graph, whose backward pass makes the gradients of the outputs and keeps no reference to them."""

    @staticmethod
    def forward(ctx: Any, started: Callable[[list[torch.Tensor]], None], *outputs: torch.Tensor) -> torch.Tensor:
        ctx.started = started
        ctx.layouts = [_layout(output, False) for output in outputs]
        return outputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradients = [torch.empty(layout.shape, dtype=layout.dtype, device=CPU) for layout in ctx.layouts]
        ctx.started(gradients)
        return (None, *gradients)


def _switches() -> Hashable:
    """Return the settings of the process that decide how PyTorch computes an operator and what the operator saves."""
    cuda: Any = torch.backends.cuda  # its switches choose the kernel of attention on a CPU, too
    return (
        (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()),
        (torch.backends.mkldnn.enabled, torch.backends.mkldnn.deterministic, torch.get_num_threads()),
        (torch.is_inference_mode_enabled(), torch.are_deterministic_algorithms_enabled(), torch.get_default_dtype()),
        torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
    )


def _trained(program: Program) -> frozenset[str]:
    """Parameters that require a gradient; all of them if none does, as in a network for inference (ONNX)."""
    tensors = program.graph.tensors
    floating = [t.name for t in tensors if t.role is Role.PARAMETER and program.state[t.name].is_floating_point()]
    return frozenset([name for name in floating if program.state[name].requires_grad] or floating)


def _layout(tensor: torch.Tensor, trained: bool) -> _TensorMeta:
    return _TensorMeta(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, trained)
