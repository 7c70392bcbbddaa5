"""Values of the example inputs, for Python code in a model that asks for them during a trace.

::

    mask ──► mask.all() ──► if ...:          the example's answer, and an operator ``expect`` that checks it in each run
    mask ──► x[mask]                         as many elements as in the example, likewise

What follows from inputs, buffers and constants is computed along with the trace. What follows from parameters, such as
where a router sends a token, is different in each run, and no value is known for it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import SymInt, Tensor, nn
from torch.utils import _pytree as pytree

from graphs.importers.known_values import ASKING, KnownValues, tensor_leaves, untraced
from graphs.importers.source_location import at_caller
from graphs.importers.tracing_guards import running_within
from graphs.program.arguments import Arguments
from graphs.program.expectations import expect

MOST = 64  # values that are asked for at once; with more, hardly any other input has the same, as with fractions

TRUTH = frozenset({"__bool__", "is_nonzero"})


@contextmanager
def example_values(module: nn.Module, given: Arguments, unknown: list[str]) -> Iterator[None]:
    """Let a trace of a module on these arguments know what follows from their values.

    Append to ``unknown`` the places in the user's code that need a value which is not known.
    """
    buffers, made = dict(module.named_buffers()), list[_ExampleValues]()

    def known(*args: Any, **kwargs: Any) -> _ExampleValues:
        values = _ExampleValues(unknown)
        made.append(values)
        with untraced():
            own = pytree.tree_map_only(
                Tensor,
                lambda tensor: tensor.detach().clone(),
                (given.args, {name: given.kwargs[name] for name in kwargs}, buffers),
            )
        values.add((args, kwargs, dict(module.named_buffers())), own)
        return values

    with running_within(module, known):
        try:
            yield
        finally:
            for values in made:
                values.release()


class _ExampleValues(KnownValues):
    """Answers as the example does, and expects that of each run."""

    def __init__(self, unknown: list[str]) -> None:
        super().__init__()
        self._unknown = unknown

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name in ASKING and args:
            value = self.value(args[0])
            if value is not None and value.numel() <= MOST and (name in TRUTH or not value.is_floating_point()):
                return self.answered(func, args[0], value, name in TRUTH)
            self._unknown.append(at_caller())
        if name in SELECTING:
            func, args, kwargs = SELECTING[name](self, func, args, kwargs)
        result = self.followed(func, args, kwargs)
        if any(isinstance(size, SymInt) for leaf in tensor_leaves(result) for size in leaf.shape):
            self._unknown.append(at_caller())
        return result

    def answered(self, func: Callable[..., Any], tensor: Tensor, value: Tensor, truth: bool) -> Any:
        """Return the answer of the example, and expect it of each run."""
        with untraced():
            answer = func(value)
            expected = (value != 0 if truth else value).reshape(-1).double().tolist()
        expect(tensor != 0 if truth else tensor, expected, at_caller())
        return answer

    def positions(self, mask: Tensor, value: Tensor) -> Tensor:
        """[n, n_dimensions], where a mask is not zero, as many as in the example."""
        with untraced():
            where = torch.nonzero(value)
        n = len(where)
        expect(torch.count_nonzero(mask), [float(n)], at_caller())
        found = torch.nonzero_static(mask, size=n)
        self.add(found, where)
        return found


def _indexed(values: _ExampleValues, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """``x[mask]``."""
    tensor, index = args
    single = not isinstance(index, tuple)
    indices: list[Any] = []
    for each in (index,) if single else index:
        value = values.value(each) if isinstance(each, Tensor) and each.dtype == torch.bool else None
        if value is None or not value.dim():
            indices.append(each)
        else:
            indices += values.positions(each, value).unbind(1)
    return func, (tensor, indices[0] if single and len(indices) == 1 else tuple(indices)), kwargs


def _nonzero(values: _ExampleValues, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """``mask.nonzero()``, ``torch.where(mask)``."""
    value = values.value(args[0]) if len(args) == 1 and kwargs.keys() <= {"as_tuple"} else None
    if value is None:
        return func, args, kwargs
    in_columns = kwargs.get("as_tuple", False) or func is torch.where
    (mask,) = args
    if in_columns and not value.dim():
        mask = mask.reshape(1)  # a number has positions along one axis there
        with untraced():
            value = value.reshape(1)
    return (
        (torch.unbind, (values.positions(mask, value), 1), {})
        if in_columns
        else (torch.clone, (values.positions(mask, value),), {})
    )


def _made(values: _ExampleValues, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """``torch.tensor([n, ...])`` of numbers that are tensors."""
    if not isinstance(args[0], list | tuple):
        return func, args, kwargs
    leaves, structure = pytree.tree_flatten(args[0])
    for position, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and (value := values.value(leaf)) is not None:
            leaves[position] = values.answered(Tensor.item, leaf, value, False)
    return func, (pytree.tree_unflatten(leaves, structure), *args[1:]), kwargs


def _masked(values: _ExampleValues, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """``torch.masked_select(x, mask)``."""
    if len(args) != 2 or kwargs or values.value(args[1]) is None:
        return func, args, kwargs
    with values:
        tensor, mask = torch.broadcast_tensors(*args)  # type: ignore[no-untyped-call]
    return _indexed(values, Tensor.__getitem__, (tensor, mask), {})


def _repeated(values: _ExampleValues, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """``x.repeat_interleave(counts)``."""
    counts = kwargs.get("repeats", args[1] if len(args) > 1 else None)
    value = values.value(counts)
    if value is None or kwargs.get("output_size") is not None:
        return func, args, kwargs
    with untraced():
        total, each = int(value.sum()), value.numel() == 1
    expect(counts.sum(), [float(total)], at_caller())
    times = (args[0].numel() if kwargs.get("dim") is None else args[0].shape[kwargs["dim"]]) if each else 1
    return func, args, {**kwargs, "output_size": total * times}


SELECTING: Mapping[str, Callable[..., Any]] = {
    "__getitem__": _indexed,
    "nonzero": _nonzero,
    "where": _nonzero,
    "masked_select": _masked,
    "repeat_interleave": _repeated,
    "tensor": _made,
}
"""Functions whose results have as many elements as values say, and what to call in their place."""
