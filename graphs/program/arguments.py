"""What a network is called with: every form in which a user may give it, as one record."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from graphs.errors import InputError

FORMS = (
    "a tensor, a tuple or list of positional arguments, a dict of keyword arguments, or a pair (tuple, dict) of both"
)

NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
SEVERAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Arguments(NamedTuple):
    """The arguments of one call.

    Attributes:
        args: the positional ones.
        kwargs: the keyword ones.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def batch(self) -> int | None:
        """First dimension of the first tensor that has one."""
        tensors = (leaf for leaf in pytree.tree_leaves(tuple(self)) if isinstance(leaf, torch.Tensor))
        return next((tensor.shape[0] for tensor in tensors if tensor.ndim), None)


def arguments_of(given: Any, what: str = "the example inputs") -> Arguments:
    """The arguments of a call, from any of the `FORMS`.

    A pair of a tuple and a dict with names is always (positional, keyword) arguments, as torch.export has them.
    Whatever else holds tensors, such as a registered dataclass, is the one positional argument.

    Raises:
        InputError: if it is none of these.
    """
    match given:
        case torch.Tensor():
            return Arguments((given,), {})
        case Mapping():
            return Arguments((), _keywords(given, what))
        case (tuple() as args, Mapping() as kwargs) if isinstance(given, tuple) and _are_names(kwargs):
            return Arguments(tuple(args), dict(kwargs))
        case tuple() | list():
            return Arguments(tuple(given), {})
    if any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(given)):
        return Arguments((given,), {})
    raise InputError(f"{what} are a '{type(given).__name__}'; give {FORMS}")


def _keywords(given: Mapping[Any, Any], what: str) -> dict[str, Any]:
    if not _are_names(given):
        key = next(key for key in given if not isinstance(key, str))
        raise InputError(
            f"{what} have the key {key!r}, which is no name of an argument; put a dictionary that is itself an "
            "argument into a tuple: (dictionary,)"
        )
    return dict(given)


def _are_names(keys: Iterable[Any]) -> bool:
    return all(isinstance(key, str) for key in keys)


def check_arguments(forward: Callable[..., Any], given: Arguments, name: str) -> None:
    """A model takes arguments of such names and such a number.

    Raises:
        InputError: if not.
    """
    signature = _signature(forward)
    if signature is None:
        return
    try:
        signature.bind(*given.args, **given.kwargs)
    except TypeError as error:
        untyped = [one.replace(annotation=one.empty) for one in signature.parameters.values()]
        takes = signature.replace(parameters=untyped, return_annotation=signature.empty)
        raise InputError(
            f"model '{name}' cannot be called with its example inputs: {error}; it takes {takes}"
        ) from error


def same(one: Any, other: Any) -> bool:
    """Whether two arguments that are no tensors are the same: of one type, and equal; NaN is the same as NaN."""
    if isinstance(one, torch.Tensor) or type(one) is not type(other):
        return False
    return bool(one == other or (one != one and other != other))


def named_alike(forward: Callable[..., Any], given: Arguments, n_args: int, names: Sequence[str]) -> Arguments:
    """The same call with so many positional arguments and keyword arguments of these names, if it is one.

    What is left out is what the signature has as its default.
    """
    signature = _signature(forward)
    try:
        bound = signature.bind(*given.args, **given.kwargs) if signature else None
    except TypeError:
        bound = None
    if signature is None or bound is None:
        return given
    values: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            return given
        values |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    defaults = {name: one.default for name, one in signature.parameters.items() if one.default is not one.empty}
    single = [name for name, one in signature.parameters.items() if one.kind not in SEVERAL]
    wanted = [*single[:n_args], *names]
    beside = [name for name in values if name not in wanted and not same(values[name], defaults.get(name, signature))]
    if beside or not all(name in values or name in defaults for name in wanted) or n_args > len(single):
        return given
    found = [values.get(name, defaults.get(name)) for name in wanted]
    return Arguments(tuple(found[:n_args]), dict(zip(names, found[n_args:], strict=True)))


def by_name(forward: Callable[..., Any], names: Iterable[str], values: Sequence[Any]) -> Arguments:
    """Values as keyword arguments where these are names of a model's parameters, else as positional ones."""
    signature, names = _signature(forward), list(names)
    if signature and {name for name, one in signature.parameters.items() if one.kind in NAMED}.issuperset(names):
        return Arguments((), dict(zip(names, values, strict=True)))
    return Arguments(tuple(values), {})


def _signature(forward: Callable[..., Any]) -> inspect.Signature | None:
    """None for what has none, as compiled functions may."""
    try:
        return inspect.signature(forward)
    except (TypeError, ValueError):
        return None
