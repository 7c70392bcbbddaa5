"""Context managers that change process-wide state while a model is imported, and restore it; one thread at a time.

torch.export switches oneDNN off while it traces. If two threads saved, changed and restored one switch in turns, the
last restore would bring back the value that the first thread had set::

    first    saves on, switches off ──────────────► on
    second              saves off ───────────────────────► off, from then on
"""

import io
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._decomp import decompositions
from torch._dispatch.python import enable_python_dispatcher
from torch._export.passes import replace_set_grad_with_hop_pass as switches
from torch._subclasses.fake_tensor import FakeTensorConverter, FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from graphs.common.replaced import LOCK, replaced
from graphs.program.fake_strides import strides_of_kernels

OF_OPERATORS = "torch._library.autograd"
"""The module in which torch makes the backward passes of custom operators."""

OF_CHECKPOINT = ("torch.utils.checkpoint", "_NoopSaveInputs")
"""The function with which torch 2.11 keeps the inputs of a checkpoint; no gradient passes through it."""

HOOKING: tuple[tuple[type, str, str], ...] = (
    (Tensor, "register_hook", "register_hook"),
    (Tensor, "register_post_accumulate_grad_hook", "register_post_accumulate_grad_hook"),
    (saved_tensors_hooks, "__enter__", "saved_tensors_hooks"),
)
"""Classes and their methods that change a backward pass, with the names that users know."""


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the warnings, logs and prints of torch's tracing, whose errors reach the user as exceptions."""
    with LOCK:
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
    """All that torch.export and fake tensors need, in any supported version of torch."""
    with (
        quiet(), without_guard(), without_stacks(), without_cuts(), states_of_lstms(), short_sequences(),
        strides_of_kernels(),
    ):  # fmt: skip
        yield


@contextmanager
def as_exported(answer: bool = True) -> Iterator[None]:
    """Let a module that asks whether it is exported run as it does then; with False, as it does in a call."""
    with (
        replaced(torch.compiler, "_is_compiling_flag", answer),
        replaced(torch.compiler, "_is_exporting_flag", answer),
    ):
        yield


@contextmanager
def as_called(module: nn.Module) -> Iterator[None]:
    """Let a module run as it does in a call while it is traced, whatever it asks."""
    with running_within(module, lambda *_, **__: as_exported(False)):
        yield


@contextmanager
def running_within(module: nn.Module, context: Callable[..., AbstractContextManager[object]]) -> Iterator[None]:
    """Let a module run within a context, which is made of the arguments of a call."""
    forward = module.forward

    @wraps(forward)
    def within(*args: Any, **kwargs: Any) -> Any:
        with context(*args, **kwargs):
            return forward(*args, **kwargs)

    with replaced(module, "forward", within):
        yield


@contextmanager
def without_import_warnings() -> Iterator[None]:
    """Silence what torchao says when a model's code imports it, as transformers does: it can do without libraries."""
    loggers = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def in_mode(module: nn.Module, training: bool) -> Iterator[None]:
    """Set the mode for a trace, and restore the mode of every submodule afterwards."""
    with LOCK:
        modes = {part: part.training for part in module.modules()}
        try:
            if not training:
                module.eval()
            elif not module.training:
                module.train()
            yield
        finally:
            for part, mode in modes.items():
                part.training = mode


@contextmanager
def own_backward_passes() -> Iterator[list[str]]:
    """Collect the model's own changes of its backward pass during a trace, which shows the forward pass only.

    These are every ``torch.autograd.Function`` that is applied, every hook that is registered on a tensor, and hooks on
    saved tensors. A custom operator (``torch.library``) has a function for its backward pass, too, but the trace shows
    the operator. Functions and hooks of checkpoints do not count.
    """
    changes: list[str] = []
    thread = threading.get_ident()

    def note(change: str) -> None:
        if threading.get_ident() == thread:  # other threads may train meanwhile
            changes.append(change)

    def noted_function(cls: type, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__ != OF_OPERATORS and (cls.__module__, cls.__name__) != OF_CHECKPOINT:
            note(f"'{cls.__name__}', a torch.autograd.Function")
        return apply.__get__(None, cls)(*args, **kwargs)

    def noted(method: Any, name: str) -> Any:
        def call(self: Any, *args: Any) -> Any:
            if not _keeps_only(self):
                note(f"'{name}'")
            return method(self, *args)

        return call

    with LOCK, ExitStack() as replacements:
        apply: Any = vars(torch.autograd.Function)["apply"]
        replacements.enter_context(replaced(torch.autograd.Function, "apply", classmethod(noted_function)))
        for owner, method, name in HOOKING:
            replacements.enter_context(replaced(owner, method, noted(getattr(owner, method), name)))
        yield changes


def _keeps_only(hooks: object) -> bool:
    """Whether these are torch's own hooks on saved tensors, for a checkpoint or to save the tensors elsewhere."""
    own = isinstance(hooks, saved_tensors_hooks) and type(hooks) is not saved_tensors_hooks
    return own and type(hooks).__module__.startswith("torch.")


@contextmanager
def states_of_lstms() -> Iterator[None]:
    """Trace the last states of an LSTM with their real shapes.

    torch.export infers the shapes with a decomposition, and the one of torch 2.11 leaves a dimension too many where
    oneDNN is switched off: [1, n_layers, batch, width]. The real shapes are those of the first states.
    """
    with LOCK:
        one_layer: Any = decompositions.one_layer_lstm

        def shaped(inputs: Tensor, first: tuple[Tensor, Tensor], *args: Any, **kwargs: Any) -> Any:
            result, last = one_layer(inputs, first, *args, **kwargs)
            return result, tuple(state.reshape(before.shape) for state, before in zip(last, first, strict=True))

        with replaced(decompositions, "one_layer_lstm", shaped) if _wrong_states() else nullcontext():
            yield


@contextmanager
def short_sequences() -> Iterator[None]:
    """Trace a recurrent layer in one step, however long the sequence is.

    torch.export infers the shapes of the layer's results with a dozen operators for every step, and all steps are
    alike. A trace that records those operators is complete.
    """

    def in_one_step(one_layer: Any) -> Any:
        def shaped(inputs: Tensor, *args: Any, **kwargs: Any) -> Any:
            if get_proxy_mode() is not None:
                return one_layer(inputs, *args, **kwargs)
            result, last = one_layer(inputs[:1], *args, **kwargs)
            return result.repeat(inputs.shape[0], 1, 1), last

        return shaped

    with LOCK, ExitStack() as replacements:
        for name in ("one_layer_lstm", "one_layer_rnn"):
            replacements.enter_context(replaced(decompositions, name, in_one_step(getattr(decompositions, name))))
        yield


@contextmanager
def without_stacks() -> Iterator[None]:
    """Trace without the Python stack of each operator, which takes a tenth of the time and has no reader here."""
    with replaced(fx.config, "do_not_emit_stack_traces", True):  # torch 2.11 ignores the switch
        yield


@contextmanager
def without_cuts() -> Iterator[None]:
    """Keep a graph whole where the model switches gradients off that are off.

    torch.export cuts the graph at every switch and joins the parts again, a fifth of its time for a transformer.
    """
    cut = switches._sequential_split_and_maybe_inline_subgraphs

    def kept(module: fx.GraphModule, signature: Any) -> Any:
        found = [node for node in module.graph.nodes if node.target is torch._C._set_grad_enabled]
        if torch.is_grad_enabled() or any(node.args[0] for node in found):
            return cut(module, signature)
        for node in found:
            module.graph.erase_node(node)
        module.recompile()
        return module, signature

    with replaced(switches, cut.__name__, kept):
        yield


@contextmanager
def contiguous_shown() -> Iterator[None]:
    """Record every call of ``contiguous``, which PyTorch leaves out where a tensor is contiguous, as one token's is.

    So traces of different sizes have the same operators.
    """

    def shown(self: Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> Tensor:
        made: Tensor = torch.ops.aten.contiguous.default(self, memory_format=memory_format)
        return made

    with LOCK:
        original = Tensor.contiguous
        Tensor.contiguous = shown  # type: ignore[assignment,method-assign]
        try:
            yield
        finally:
            Tensor.contiguous = original  # type: ignore[method-assign]


@contextmanager
def known_numbers(module: nn.Module) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Let a trace know whole numbers that a module holds in buffers, such as the stride of a convolution.

    Fake tensors have no values, so that a shape that follows from such a buffer would not be fixed. Yield each such
    buffer, and the value that the trace assumes; if they differ afterwards, the module has written to it.
    """
    whole = (b for b in module.buffers() if not (b.is_meta or b.is_floating_point() or b.is_complex()))
    numbers = [buffer for buffer in whole if buffer.numel() == 1]
    values = {id(buffer): buffer.detach().clone() for buffer in numbers}

    def with_value(self: FakeTensorConverter, fake: FakeTensorMode, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        made = convert(self, fake, tensor, *args, **kwargs)
        if id(tensor) in values:
            made.constant = values[id(tensor)]
            self.add_constant_storage_mapping(made)
        return made

    with LOCK:
        convert = FakeTensorConverter.from_real_tensor
        with replaced(FakeTensorConverter, "from_real_tensor", with_value):
            yield [(buffer, values[id(buffer)]) for buffer in numbers]


@contextmanager
def without_guard() -> Iterator[None]:
    """Trace without a device guard for absent GPUs.

    A torch for CUDA sets up a guard while it traces on a host without GPUs. The guard belongs to the first thread that
    traces; after the end of that thread, the next thread that traces is killed (seen with torch 2.11.0+cu130).
    """

    def no_guard() -> None:
        pass

    with replaced(torch._C, "_ensureCUDADeviceGuardSet", no_guard):
        yield


@cache
def _wrong_states() -> bool:
    """Whether torch infers wrong shapes for an LSTM's states."""
    with without_guard(), FakeTensorMode(), enable_python_dispatcher(), torch.no_grad():
        inputs, state, weight = (
            torch.empty(shape, dtype=torch.float64) for shape in ((2, 3, 1), (1, 3, 1), (4, 1))
        )  # oneDNN, which is right, has no float64
        options = (False, 1, 0.0, False, False, False)  # one layer without biases, in evaluation mode
        _, last, _ = torch.ops.aten.lstm.input(inputs, (state, state), (weight, weight), *options)
    return bool(last.shape != state.shape)


@contextmanager
def without_caches(module: nn.Module) -> Iterator[None]:
    """Make a transformers model return no key-value cache, and restore its configs afterwards.

    A cache is state between calls, which a placed network does not have. A call can still ask for a cache explicitly.
    """
    changed = configs_with_cache(module)
    for config in changed:
        config.use_cache = False
    try:
        yield
    finally:
        for config in changed:
            config.use_cache = True


def configs_with_cache(module: nn.Module) -> list[Any]:
    """The configs of a model's parts that ask for a cache, each once."""
    transformers = sys.modules.get("transformers")
    if transformers is None:  # then the module is none of its models
        return []
    configs = {id(config): config for part in module.modules() if (config := getattr(part, "config", None)) is not None}
    return [
        config
        for config in configs.values()
        if isinstance(config, transformers.PretrainedConfig) and getattr(config, "use_cache", False)
    ]
