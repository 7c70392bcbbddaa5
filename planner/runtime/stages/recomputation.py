"""Recomputation in PyTorch: a forward pass that keeps nothing for autograd, and the same pass again later.

::

    selective    norm ──► linear ──► gelu ──► linear ──►      what `once` wraps hands its results to the second pass;
                 again    once       again    once            the rest of it computes
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch._ops import OpOverload
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from costmodels.workload import RecomputeMode

ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")
Context = AbstractContextManager[object]


class _Current(threading.local):
    """State of the pass that this thread is running."""

    mode: TorchDispatchMode | None = None  # of selective recomputation


_current = _Current()


def once(call: Callable[ParamsT, ResultT]) -> Callable[ParamsT, ResultT]:
    """Return the same function, which does not compute again in the second pass of selective recomputation."""

    @wraps(call)
    def run(*args: ParamsT.args, **kwargs: ParamsT.kwargs) -> ResultT:
        if _current.mode is None:
            return call(*args, **kwargs)
        _push_mode(_current.mode)  # to enter it would begin the pass anew
        try:
            return call(*args, **kwargs)
        finally:
            _pop_mode()

    return run


class _SelectivePass(AbstractContextManager[None]):
    """A pass of selective recomputation, whose mode is on in what `once` wraps alone.

    Under a mode PyTorch takes other kernels, as for a subclass of tensors, and these lay out results differently (of a
    pooling that needs no gradient), so that sums after them differ.
    """

    def __init__(self, mode: TorchDispatchMode) -> None:
        self._mode = mode

    def __enter__(self) -> None:
        with self._mode:  # the pass begins
            _current.mode = self._mode

    def __exit__(self, *_: object) -> None:
        _current.mode = None


def selective_contexts() -> tuple[Context, Context]:
    """Return the contexts of both passes with selective recomputation, as `torch.utils.checkpoint` takes them.

    PyTorch computes dropout and recurrent networks by operators that write in place, and would refuse to keep what
    these write into. The second pass may read what is kept at the end of an operator all the same: no write runs
    there again, and autograd saves only tensors that nothing writes to afterwards.
    """
    first, again = create_selective_checkpoint_contexts(_policy, allow_cache_entry_mutation=True)  # type: ignore[no-untyped-call]
    return _SelectivePass(first), _SelectivePass(again)


def passes(recompute: RecomputeMode | None) -> tuple[Context, Context | None]:
    """Return the contexts of a forward pass and of the same one again, None if it does not run again.

    The first pass computes as with gradients, too: without, PyTorch takes other kernels, which round differently (of an
    LSTM) or lay out results differently (of a pooling), and sums after them then differ.
    """
    first: Context = torch.enable_grad()
    again: Context | None = None
    if recompute == "selective":
        first, again = selective_contexts()
    elif recompute == "full":
        again = torch.enable_grad()
    return (first if again is None else _forgetting(first)), again


@contextmanager
def _forgetting(first: Context) -> Iterator[None]:
    """Run forward, of which autograd keeps nothing."""
    with saved_tensors_hooks(_forget, _forgotten), first:
        yield


def _forget(_: torch.Tensor) -> None:
    """Return None, which autograd keeps instead of a tensor."""


def _forgotten(_: None) -> torch.Tensor:
    raise AssertionError("a forward pass that keeps nothing has no backward pass")


def _policy(_context: Any, operator: OpOverload, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    """Keep what an operator computes; what only changes a tensor's shape in place has to run again."""
    again = torch.Tag.inplace_view in operator.tags
    return CheckpointPolicy.PREFER_RECOMPUTE if again else CheckpointPolicy.MUST_SAVE
