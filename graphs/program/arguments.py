"""The arguments of a call of a network, in one record for every form in which a user may give them."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from graphs.common.errors import InputError

FORMS = (
    "a tensor, a tuple or list of positional arguments, a dict of keyword arguments, or a pair (tuple, dict) of both"
)

NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
SEVERAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
EMPTY = inspect.Parameter.empty


class Arguments(NamedTuple):
    """The positional and the keyword arguments of one call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def batch(self) -> int | None:
        """The first dimension of the first tensor that has a dimension."""
        tensors = (leaf for leaf in pytree.tree_leaves(tuple(self)) if isinstance(leaf, torch.Tensor))
        return next((tensor.shape[0] for tensor in tensors if tensor.ndim), None)

    @property
    def first_dimensions(self) -> set[int]:
        """The first dimensions of all tensors that have a dimension."""
        return {leaf.shape[0] for leaf in pytree.tree_leaves(tuple(self)) if _is_batched(leaf)}

    def resized(self, batch: int) -> "Arguments":
        """The first sample, repeated: arguments of another batch.

        Raises:
            InputError: if tensors have several first dimensions, so that it is not known which is the batch.
        """
        if len(sizes := self.first_dimensions) != 1:
            raise InputError(f"the inputs have the first dimensions {sorted(sizes)}; give them with batch {batch}")
        args, kwargs = pytree.tree_map(
            lambda leaf: leaf[:1].repeat(batch, *[1] * (leaf.ndim - 1)) if _is_batched(leaf) else leaf, tuple(self)
        )
        return Arguments(args, kwargs)


def _is_batched(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.ndim > 0


def arguments_of(given: Any, what: str = "the example inputs") -> Arguments:
    """The arguments of a call, from any of the `FORMS`.

    A pair of a tuple and a dict with names is always (positional, keyword) arguments, as in torch.export.
    Any other object that holds tensors, such as a registered dataclass, is the only positional argument.

    Raises:
        InputError: for any other value.
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
    """Check that a model's signature accepts the arguments.

    Raises:
        InputError: if it does not.
    """
    signature = _signature(forward)
    if signature is None:
        return
    try:
        signature.bind(*given.args, **given.kwargs)
    except TypeError as error:
        untyped = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
        takes = signature.replace(parameters=untyped, return_annotation=signature.empty)
        raise InputError(
            f"model '{name}' cannot be called with its example inputs: {error}; it takes {takes}"
        ) from error


def same(one: Any, other: Any) -> bool:
    """Whether two arguments that are no tensors have the same type and are equal; NaN equals NaN here."""
    if isinstance(one, torch.Tensor) or type(one) is not type(other):
        return False
    return bool(one == other or (one != one and other != other))


def named_alike(forward: Callable[..., Any], given: Arguments, n_args: int, names: Sequence[str]) -> Arguments:
    """The same call with ``n_args`` positional arguments and keyword arguments of these names.

    Arguments that the call leaves out take their defaults from the signature. If there is no such call, ``given`` is
    returned.
    """
    signature = _signature(forward)
    values = None if signature is None else _values_by_name(signature, given)
    if signature is None or values is None:
        return given
    parameters = signature.parameters.values()
    defaults = {parameter.name: parameter.default for parameter in parameters if parameter.default is not EMPTY}
    single = [parameter.name for parameter in parameters if parameter.kind not in SEVERAL]
    wanted = [*single[:n_args], *names]
    changed = {name for name, value in values.items() if not same(value, defaults.get(name, EMPTY))}
    if n_args > len(single) or not changed <= {*wanted} <= values.keys() | defaults.keys():
        return given
    in_order = [(defaults | values)[name] for name in wanted]
    return Arguments(tuple(in_order[:n_args]), dict(zip(names, in_order[n_args:], strict=True)))


def _values_by_name(signature: inspect.Signature, given: Arguments) -> dict[str, Any] | None:
    """The arguments of a call by name; None if the call does not fit, or has some without a name (``*args``)."""
    try:
        bound = signature.bind(*given.args, **given.kwargs).arguments
    except TypeError:
        return None
    kinds = {name: signature.parameters[name].kind for name in bound}
    if inspect.Parameter.VAR_POSITIONAL in kinds.values():
        return None
    values: dict[str, Any] = {}
    for name, value in bound.items():
        values |= value if kinds[name] is inspect.Parameter.VAR_KEYWORD else {name: value}
    return values


def by_name(forward: Callable[..., Any], names: Iterable[str], values: Sequence[Any]) -> Arguments:
    """The values as keyword arguments if all names are names of the model's parameters, else as positional ones."""
    signature, names = _signature(forward), list(names)
    parameters = signature.parameters.items() if signature else ()
    if signature and {name for name, parameter in parameters if parameter.kind in NAMED}.issuperset(names):
        return Arguments((), dict(zip(names, values, strict=True)))
    return Arguments(tuple(values), {})


def _signature(forward: Callable[..., Any]) -> inspect.Signature | None:
    """The signature of a function; None for one without a signature, as compiled functions may be."""
    try:
        return inspect.signature(forward)
    except (TypeError, ValueError):
        return None
