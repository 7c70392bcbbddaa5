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
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from costmodels.workload import RecomputeMode

ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")
Context = AbstractContextManager[object]


class _Current(threading.local):
    """State of the operator that this thread is running."""

    once = False  # whether it runs in one pass only


_current = _Current()


def once(call: Callable[ParamsT, ResultT]) -> Callable[ParamsT, ResultT]:
    """Return the same function, which does not compute again in the second pass of selective recomputation."""

    @wraps(call)
    def run(*args: ParamsT.args, **kwargs: ParamsT.kwargs) -> ResultT:
        _current.once = True
        try:
            return call(*args, **kwargs)
        finally:
            _current.once = False

    return run


def second_pass_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy for the second pass alone; selective recomputation allows no operator there that the first one lacked."""
    with _disable_current_modes():
        return tensor.clone()


def selective_contexts() -> tuple[Context, Context]:
    """Return the contexts of both passes with selective recomputation, as `torch.utils.checkpoint` takes them.

    PyTorch computes dropout and recurrent networks by operators that write in place, and would refuse to keep what
    these write into. The second pass may read what is kept at the end of an operator all the same: no write runs
    there again, and autograd saves only tensors that nothing writes to afterwards.
    """
    contexts: tuple[Context, Context]
    contexts = create_selective_checkpoint_contexts(_policy, allow_cache_entry_mutation=True)  # type: ignore[no-untyped-call]
    return contexts


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
    """Keep what an operator computes inside ``once``; what only changes a tensor's shape in place has to run again."""
    kept = _current.once and torch.Tag.inplace_view not in operator.tags
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE
