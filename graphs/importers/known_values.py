"""Values that are known while a model is traced: computed along with the trace, from values that are known before.

::

    trace     arange(4) ──► diff ──► (… != 1).any() ──► if ...:
    values    0 1 2 3       1 1 1    False              the answer

A value is forgotten when something unknown is written to its memory. After the trace, caches in Python code that hold a
traced tensor (``functools.lru_cache``, a dictionary of masks) get its value, as a call would have left it there.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from graphs.importers.outliving import replace_in_caches

CPU = torch.device("cpu")
DEVICES = ("meta", "cuda")

ASKING = frozenset({"item", "tolist", "__bool__", "__int__", "__index__", "__float__", "is_nonzero"})
"""Functions that return values of a tensor to Python."""

UNREPEATED = (
    *("rand", "bernoulli", "multinomial", "normal", "dropout", "poisson", "uniform", "exponential", "geometric"),
    *("cauchy", "rrelu", "fractional", "gumbel", "lowrank", "attention"),
    *("empty", "resize"),  # memory that nobody wrote
    "lift_fresh",  # memory that NumPy may write to
)
"""Parts of the names of functions whose results no run repeats."""

DATA = (Tensor.data.__get__, Tensor.data.__set__)  # type: ignore[attr-defined]  # torch has no types here
"""Functions that, like those on lists, leave the version of a tensor as it is where something is written."""


class _Known(NamedTuple):
    """A traced tensor, and its value as long as it has this version."""

    traced: Tensor
    value: Tensor
    version: int


class KnownValues(TorchFunctionMode):
    """Computes what is known next to what is traced."""

    most_elements = float("inf")  # of a value; larger ones are not known

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, _Known] = {}  # by the id of a traced tensor

    def add(self, traced: Any, values: Any) -> None:
        """Learn the values of traced tensors, which are at the same places in these structures."""
        for tensor, value in zip(pytree.tree_leaves(traced), pytree.tree_leaves(values), strict=True):
            if (
                isinstance(tensor, Tensor)
                and isinstance(value, Tensor)
                and not (value.is_meta or tensor.is_inference())
            ):
                self._known[id(tensor)] = _Known(tensor, value, tensor._version)

    def value(self, tensor: Any) -> Tensor | None:
        """Return the value of a traced tensor, None if it is not known."""
        if id(tensor) not in self._known and _is_constant(tensor) and tensor.numel() <= self.most_elements:
            with untraced():
                self.add(tensor, tensor.detach().clone())
        known = self._known.get(id(tensor))
        return known.value if known is not None and known.traced._version == known.version else None

    def release(self) -> None:
        """Forget all values, and put those of traced tensors that outlive the trace in their place."""
        known = [
            (weakref.ref(each.traced), each.value, each.traced.device)
            for each in self._known.values()
            if type(each.traced) is not Tensor and each.traced._version == each.version
        ]
        self._known.clear()
        outliving = [(traced, value.to(device)) for one, value, device in known if (traced := one()) is not None]
        if outliving:
            replace_in_caches(outliving)

    def followed(
        self, func: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function on traced tensors; compute the values of its results, and of what it wrote to, if it can."""
        if torch.compiler.is_dynamo_compiling():  # a branch of torch.cond, whose compiler refuses what follows
            return func(*args, **(kwargs or {}))
        leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs or {})))
        values = [self.value(leaf) if isinstance(leaf, Tensor) else _at_home(leaf) for leaf in leaves]
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if func in DATA or name.startswith("_foreach_"):
            self._forget(leaves)
        elif any(value is None and leaf is not None for value, leaf in zip(values, leaves, strict=True)):
            pass  # unknown, and so is what it wrote to, which has a new version
        elif not any(word in name for word in UNREPEATED) and self._is_wanted(name, result):
            known_args, known_kwargs = pytree.tree_unflatten(values, structure)
            with untraced():
                found = func(*known_args, **known_kwargs)
            self._keep_written(leaves)
            self.add(result, found)
        return result

    def _is_wanted(self, name: str, result: Any) -> bool:
        """Return whether a function has results of known sizes, none too large, or writes to what has."""
        sizes = [leaf.numel() for leaf in tensor_leaves(result)]
        small = all(isinstance(size, int) and size <= self.most_elements for size in sizes)
        return small and (bool(sizes) or name == "__setitem__")

    def _keep_written(self, leaves: Sequence[Any]) -> None:
        """Keep the values of tensors, and of their views, to which the same was written as to their values."""
        known = [self._known[id(leaf)] for leaf in leaves if id(leaf) in self._known]
        places = {_place(each.value) for each in known if each.traced._version != each.version}
        if not places:
            return
        for key, each in [*self._known.items()]:
            if _place(each.value) not in places:
                continue
            if each.traced._version == each.version:  # a copy in the trace, of which the value is a view
                del self._known[key]
            else:
                self._known[key] = each._replace(version=each.traced._version)

    def _forget(self, leaves: Sequence[Any]) -> None:
        """Forget the values of these tensors, and of all that share memory with them."""
        places = {_place(self._known[id(leaf)].value) for leaf in leaves if id(leaf) in self._known}
        self._known = {key: each for key, each in self._known.items() if _place(each.value) not in places}


def tensor_leaves(values: Any) -> list[Tensor]:
    """Return the tensors in a structure."""
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


@contextmanager
def untraced() -> Iterator[None]:
    """Compute with real tensors, which no trace records."""
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        yield


def _is_constant(tensor: Any) -> bool:
    """Return whether something is a real tensor in a trace, from a cache or an attribute: no input, and no weight."""
    if type(tensor) is not Tensor or tensor.requires_grad or tensor.is_inference() or tensor.is_meta:
        return False
    return tensor.layout is torch.strided and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _place(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


def _at_home(argument: Any) -> Any:
    """Return an argument that is no tensor; values are computed on the processor."""
    named = isinstance(argument, str) and argument.partition(":")[0] in DEVICES
    return CPU if named or isinstance(argument, torch.device) else argument
