"""What is changed for the whole process while a model is imported, and put back: one thread at a time.

torch.export switches oneDNN off while it traces. Two threads that save, change and restore one switch in turns would
leave it as the first one had changed it::

    first    saves on, switches off ──────────────► on
    second              saves off ───────────────────────► off, from then on
"""

import io
import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._decomp import decompositions
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorConverter, FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.fx.experimental.proxy_tensor import get_proxy_mode

OF_OPERATORS = "torch._library.autograd"
"""Where torch makes the backward passes of operators that are a user's own."""

OF_CHECKPOINT = ("torch.utils.checkpoint", "_NoopSaveInputs")
"""With which torch 2.11 keeps the inputs of a checkpoint; nothing goes back through it."""

HOOKING: tuple[tuple[type, str, str], ...] = (
    (Tensor, "register_hook", "register_hook"),
    (Tensor, "register_post_accumulate_grad_hook", "register_post_accumulate_grad_hook"),
    (saved_tensors_hooks, "__enter__", "saved_tensors_hooks"),
)
"""Whose methods change a backward pass, and what a user calls that."""

_ALONE = threading.RLock()  # one for all that is here, which is used within each other


@contextmanager
def quiet() -> Iterator[None]:
    """torch's tracing warns, logs and prints about its own internals; what matters to a user comes as an exception."""
    with _ALONE:
        disabled = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                warnings.simplefilter("ignore")
                yield
        finally:
            logging.disable(disabled)


@contextmanager
def tracing() -> Iterator[None]:
    """What torch.export needs around it, and tensors without values do, in whichever version there is."""
    with quiet(), without_guard(), without_stacks(), states_of_lstms(), short_sequences():
        yield


@contextmanager
def in_mode(module: nn.Module, training: bool) -> Iterator[None]:
    """The mode in which a module is traced, and back to what every submodule had."""
    with _ALONE:
        modes = {part: part.training for part in module.modules()}
        try:
            if not training:
                module.eval()
            elif not module.training:
                module.train()
            yield
        finally:
            for part, had in modes.items():
                part.training = had


@contextmanager
def own_backward_passes() -> Iterator[list[str]]:
    """What a model does to its backward pass itself while it is traced, of which a trace shows the forward pass only.

    That is each ``torch.autograd.Function`` that is applied, each hook that is hung on a tensor, and hooks on what is
    saved. An operator of a user's own (``torch.library``) goes back through a function too, but it stands in the trace
    itself. So does all that happens in a checkpoint.
    """
    found: list[str] = []
    thread = threading.get_ident()

    def note(what: str) -> None:
        if threading.get_ident() == thread:  # others may train meanwhile
            found.append(what)

    def noted_function(cls: type, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__ != OF_OPERATORS and (cls.__module__, cls.__name__) != OF_CHECKPOINT:
            note(f"'{cls.__name__}', a torch.autograd.Function")
        return applied.__get__(None, cls)(*args, **kwargs)

    def noted(method: Any, name: str) -> Any:
        def call(self: Any, *args: Any) -> Any:
            if not _keeps_only(self):
                note(f"'{name}'")
            return method(self, *args)

        return call

    with _ALONE, ExitStack() as undo:
        applied: Any = torch.autograd.Function.__dict__["apply"]
        undo.callback(setattr, torch.autograd.Function, "apply", applied)
        torch.autograd.Function.apply = classmethod(noted_function)  # type: ignore[assignment,method-assign]  # see above
        for owner, method, name in HOOKING:
            undo.callback(setattr, owner, method, getattr(owner, method))
            setattr(owner, method, noted(getattr(owner, method), name))
        yield found


def _keeps_only(hooks: object) -> bool:
    """Whether these are torch's own hooks on what is saved, for a checkpoint or to save it elsewhere."""
    own = isinstance(hooks, saved_tensors_hooks) and type(hooks) is not saved_tensors_hooks
    return own and type(hooks).__module__.startswith("torch.")


@contextmanager
def states_of_lstms() -> Iterator[None]:
    """The last states of an LSTM are traced with the shapes that they have.

    torch.export works them out with a decomposition, and that of torch 2.11 leaves a dimension too many where oneDNN is
    switched off: [1, n_layers, batch, width]. The shapes are those of the first states.
    """
    with _ALONE:
        of_layer: Any = decompositions.one_layer_lstm

        def shaped(inputs: Tensor, first: tuple[Tensor, Tensor], *args: Any, **kwargs: Any) -> Any:
            result, last = of_layer(inputs, first, *args, **kwargs)
            return result, tuple(state.reshape(before.shape) for state, before in zip(last, first, strict=True))

        if _wrong_states():
            decompositions.one_layer_lstm = shaped  # type: ignore[assignment]  # has the same parameters
        try:
            yield
        finally:
            decompositions.one_layer_lstm = of_layer


@contextmanager
def short_sequences() -> Iterator[None]:
    """A recurrent layer is traced in one step, however long the sequence is.

    torch.export finds the shapes of its results by the operators of every step, a dozen each, and the steps are all
    alike. Where those operators are what is recorded, nothing is left out.
    """

    def in_one_step(of_layer: Any) -> Any:
        def shaped(inputs: Tensor, *args: Any, **kwargs: Any) -> Any:
            if get_proxy_mode() is not None:
                return of_layer(inputs, *args, **kwargs)
            result, last = of_layer(inputs[:1], *args, **kwargs)
            return result.repeat(inputs.shape[0], 1, 1), last

        return shaped

    with _ALONE:
        of_lstm, of_others = decompositions.one_layer_lstm, decompositions.one_layer_rnn
        decompositions.one_layer_lstm = in_one_step(of_lstm)
        decompositions.one_layer_rnn = in_one_step(of_others)
        try:
            yield
        finally:
            decompositions.one_layer_lstm, decompositions.one_layer_rnn = of_lstm, of_others


@contextmanager
def without_stacks() -> Iterator[None]:
    """Without the lines of Python that led to each operator, which take a tenth of a trace and nobody reads here."""
    name = "do_not_emit_stack_traces"
    with _ALONE:
        had = getattr(fx.config, name, False)  # torch 2.11 has no such switch, and does not mind
        setattr(fx.config, name, True)
        try:
            yield
        finally:
            setattr(fx.config, name, had)


@contextmanager
def known_numbers(module: nn.Module) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Whole numbers that a module holds in buffers, such as the stride of a convolution, are known while it is traced.

    Tensors have no values then, so that a shape that follows from such a buffer would not be fixed.

    Args:
        module: that is traced; its buffers stay as they are.

    Yields:
        Each such buffer, and what it was taken for; where these differ in the end, the module has written to it.
    """
    numbers = [buffer for buffer in module.buffers() if _is_whole_number(buffer)]
    known = {id(buffer): buffer.detach().clone() for buffer in numbers}

    def noted(self: FakeTensorConverter, fake: FakeTensorMode, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        made = converted(self, fake, tensor, *args, **kwargs)
        if id(tensor) in known:
            made.constant = known[id(tensor)]
            self.add_constant_storage_mapping(made)
        return made

    with _ALONE:
        converted = FakeTensorConverter.from_real_tensor
        FakeTensorConverter.from_real_tensor = noted  # type: ignore[assignment,method-assign]  # until below
        try:
            yield [(buffer, known[id(buffer)]) for buffer in numbers]
        finally:
            FakeTensorConverter.from_real_tensor = converted  # type: ignore[method-assign]


def _is_whole_number(buffer: Tensor) -> bool:
    return buffer.numel() == 1 and not (buffer.is_meta or buffer.is_floating_point() or buffer.is_complex())


@contextmanager
def without_guard() -> Iterator[None]:
    """Without a guard for GPUs that are not there.

    A torch for CUDA sets one up while it traces on a host without GPUs. It belongs to the thread that is the first to
    trace; once that has ended, the next one to trace is killed (seen with torch 2.11.0+cu130).
    """
    name = "_ensureCUDADeviceGuardSet"
    with _ALONE:
        ensure = getattr(torch._C, name, _nothing)
        setattr(torch._C, name, _nothing)
        try:
            yield
        finally:
            setattr(torch._C, name, ensure)


def _nothing() -> None:
    """Instead of the guard."""


@cache
def _wrong_states() -> bool:
    """Whether torch gets the shapes of an LSTM's states wrong."""
    with without_guard(), FakeTensorMode(), enable_python_dispatcher(), torch.no_grad():
        inputs, state, weight = (
            torch.empty(shape, dtype=torch.float64) for shape in ((2, 3, 1), (1, 3, 1), (4, 1))
        )  # oneDNN, which is right, has no float64
        options = (False, 1, 0.0, False, False, False)  # one layer without biases, as it is evaluated
        _, last, _ = torch.ops.aten.lstm.input(inputs, (state, state), (weight, weight), *options)
    return bool(last.shape != state.shape)
