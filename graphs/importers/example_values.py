"""Values of the example inputs, for Python code in a model that asks for them during a trace.

::

    mask ──► mask.all() ──► if ...:          the example's answer, and an operator ``expect`` that checks it in each run
    mask ──► x[mask]                         as many elements as in the example, likewise

What follows from inputs, buffers and constants is computed along with the trace. What follows from parameters, such as
where a router sends a token, is different in each run, and no value is known for it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import SymInt, Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from graphs.common.replaced import replaced
from graphs.importers.source_location import at_caller
from graphs.program.arguments import Arguments
from graphs.program.expectations import expect

MOST = 64  # values that are asked for at once; with more, hardly any other input has the same, as with fractions

ASKING = frozenset({"item", "tolist", "__bool__", "__int__", "__index__", "__float__", "is_nonzero"})
"""Functions that return values of a tensor to Python."""

TRUTH = frozenset({"__bool__", "is_nonzero"})

RANDOM = ("rand", "bernoulli", "multinomial", "normal", "dropout", "poisson")
"""Beginnings of the names of functions whose results no run repeats."""


@contextmanager
def example_values(module: nn.Module, given: Arguments, unknown: list[str]) -> Iterator[None]:
    """Let a trace of a module on these arguments know what follows from their values.

    Append to ``unknown`` the places in the user's code that need a value which is not known.
    """
    forward, buffers = module.forward, dict(module.named_buffers())

    @wraps(forward)
    def with_values(*args: Any, **kwargs: Any) -> Any:
        values = _Values(unknown)
        values.add((args, kwargs), (given.args, {name: given.kwargs[name] for name in kwargs}))
        values.add(dict(module.named_buffers()), buffers)
        with values:
            return forward(*args, **kwargs)

    with replaced(module, "forward", with_values):
        yield


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


@contextmanager
def _untraced() -> Iterator[None]:
    """Compute with real tensors, which no trace records."""
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        yield


class _Values(TorchFunctionMode):
    """Computes what is known next to what is traced."""

    def __init__(self, unknown: list[str]) -> None:
        super().__init__()
        self._unknown = unknown
        self._known: dict[int, tuple[Tensor, Tensor]] = {}  # by the id of a traced tensor: it, and its value

    def add(self, traced: Any, values: Any) -> None:
        """Learn the values of traced tensors, which are at the same places in these structures."""
        with _untraced():
            for tensor, value in zip(pytree.tree_leaves(traced), pytree.tree_leaves(values), strict=True):
                if isinstance(tensor, Tensor) and isinstance(value, Tensor) and not value.is_meta:
                    self._known[id(tensor)] = tensor, value.detach().clone()

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
        result = func(*args, **kwargs)
        if any(isinstance(size, SymInt) for leaf in _tensors(result) for size in leaf.shape):
            self._unknown.append(at_caller())
        self._follow(func, name, args, kwargs, result)
        return result

    def value(self, tensor: Any) -> Tensor | None:
        known = self._known.get(id(tensor))
        return None if known is None else known[1]

    def answered(self, func: Callable[..., Any], tensor: Tensor, value: Tensor, truth: bool) -> Any:
        """Return the answer of the example, and expect it of each run."""
        with _untraced():
            answer = func(value)
            expected = (value != 0 if truth else value).reshape(-1).double().tolist()
        expect(tensor != 0 if truth else tensor, expected, at_caller())
        return answer

    def _follow(
        self, func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """Compute the values of results, or of what was written in place, if all arguments are known."""
        if name.startswith(RANDOM) or not (_tensors(result) or name == "__setitem__"):
            return
        leaves, structure = pytree.tree_flatten((args, dict(kwargs)))
        values = [self.value(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        if any(value is None and leaf is not None for value, leaf in zip(values, leaves, strict=True)):
            self._forget(name, args)
            return
        known_args, known_kwargs = pytree.tree_unflatten(values, structure)
        with _untraced():
            found = func(*known_args, **known_kwargs)
        for tensor, value in zip(pytree.tree_leaves(result), pytree.tree_leaves(found), strict=True):
            if isinstance(tensor, Tensor) and isinstance(value, Tensor):
                self._known[id(tensor)] = tensor, value

    def _forget(self, name: str, args: tuple[Any, ...]) -> None:
        """Forget what an unknown value is written to."""
        written = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
        known = self.value(args[0]) if written and args else None
        if known is not None:
            at = known.untyped_storage().data_ptr()
            shared = [key for key, (_, value) in self._known.items() if value.untyped_storage().data_ptr() == at]
            for key in shared:
                del self._known[key]

    def positions(self, mask: Tensor, value: Tensor) -> Tensor:
        """[n, n_dimensions], where a mask is not zero, as many as in the example."""
        with _untraced():
            where = torch.nonzero(value)
        n = len(where)
        expect(torch.count_nonzero(mask), [float(n)], at_caller())
        found = torch.nonzero_static(mask, size=n)
        self._known[id(found)] = found, where
        return found


def _indexed(values: _Values, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
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


def _nonzero(values: _Values, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """``mask.nonzero()``, ``torch.where(mask)``."""
    value = values.value(args[0]) if len(args) == 1 and kwargs.keys() <= {"as_tuple"} else None
    if value is None:
        return func, args, kwargs
    in_columns = kwargs.get("as_tuple", False) or func is torch.where
    (mask,) = args
    if in_columns and not value.dim():
        mask = mask.reshape(1)  # a number has positions along one axis there
        with _untraced():
            value = value.reshape(1)
    return (
        (torch.unbind, (values.positions(mask, value), 1), {})
        if in_columns
        else (torch.clone, (values.positions(mask, value),), {})
    )


def _made(values: _Values, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """``torch.tensor([n, ...])`` of numbers that are tensors."""
    if not isinstance(args[0], list | tuple):
        return func, args, kwargs
    leaves, structure = pytree.tree_flatten(args[0])
    for position, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and (value := values.value(leaf)) is not None:
            leaves[position] = values.answered(Tensor.item, leaf, value, False)
    return func, (pytree.tree_unflatten(leaves, structure), *args[1:]), kwargs


def _masked(values: _Values, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """``torch.masked_select(x, mask)``."""
    if len(args) != 2 or kwargs or values.value(args[1]) is None:
        return func, args, kwargs
    with values:
        tensor, mask = torch.broadcast_tensors(*args)  # type: ignore[no-untyped-call]
    return _indexed(values, Tensor.__getitem__, (tensor, mask), {})


def _repeated(values: _Values, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """``x.repeat_interleave(counts)``."""
    counts = kwargs.get("repeats", args[1] if len(args) > 1 else None)
    value = values.value(counts)
    if value is None or kwargs.get("output_size") is not None:
        return func, args, kwargs
    with _untraced():
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
