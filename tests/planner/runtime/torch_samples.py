"""Networks around every operator and layer that torch has samples of: its own dtypes, sizes of 0 and 1, broadcasts.

A network computes one operator on a sample of torch's test suite. Some of the operator's tensors are inputs, others
are parameters or buffers; inputs lie in memory in any way; operators may stand before and after it, and results may be
views of inputs, of each other or of a buffer.
"""

import sys
from collections.abc import Callable, Sequence
from functools import cache
from itertools import islice
from random import Random
from types import ModuleType
from typing import Any
from unittest import TestCase

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

MOST_SAMPLES = 60  # of an operator and a dtype, of which one is drawn
MOST_ELEMENTS = 1 << 16

NO_NETWORK = frozenset(
    {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}
    | {"resize_", "resize_as_", "cauchy", "exponential", "geometric", "log_normal", "normal", "uniform", "bernoulli"}
    | {
        "nn.functional.fractional_max_pool2d",
        "nn.functional.fractional_max_pool3d",
        "multinomial",
        "nn.functional.rrelu",
        "randn",
        "randn_like",
        "rand_like",
        "randint",
        "randint_like",
        "svd_lowrank",
        "pca_lowrank",
        "linalg.eig",
        "linalg.eigvals",
    }
)
"""Operators whose results nobody can compare: memory as it was found, and random numbers; and eigenvalues, with which
PyTorch itself crashes where a number is none (oneMKL's SGEBAL)."""


@cache
def samples() -> Sequence[Any]:
    """Return torch's descriptions of its operators and layers, which make samples of their inputs."""
    stand_in = ModuleType("expecttest")  # of torch's own tests, which it needs for a base class only
    stand_in.TestCase = TestCase  # type: ignore[attr-defined]
    sys.modules.setdefault("expecttest", stand_in)
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db

    known = [op for op in op_db if op.name not in NO_NETWORK and "dropout" not in op.name]
    layers = [layer for layer in module_db if not any(word in layer.name for word in ("Lazy", "Fractional"))]
    return (*known, *layers, *layers)


class Around(nn.Module):
    """An operator or a layer with its arguments; ``places`` says which of the tensors among them are inputs."""

    def __init__(
        self, words: str, call: Any, given: Any, places: Sequence[int], before: str, after: str, results: str
    ) -> None:
        super().__init__()
        self.words = f"{words}, before {before}, after {after}, results {results}"
        self.call, self.before, self.after, self.results = call, before, after, results
        leaves, self.spec = pytree.tree_flatten(given)
        self.places = tuple(places)
        self.others: dict[int, Any] = {}
        for i, leaf in enumerate(leaves):
            if not isinstance(leaf, Tensor):
                self.others[i] = leaf
            elif i not in self.places:
                self.register_buffer(f"held_{i}", leaf)
        self.n_leaves = len(leaves)

    def forward(self, *inputs: Tensor) -> Any:
        given = dict(zip(self.places, inputs, strict=True))
        first = self.places[0] if self.places else None
        if first is not None:
            given[first] = BEFORE[self.before](given[first])
        leaves = [
            given[i] if i in given else self.others[i] if i in self.others else getattr(self, f"held_{i}")
            for i in range(self.n_leaves)
        ]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        result = self.call(*args, **kwargs)
        found = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        return RESULTS[self.results]([AFTER[self.after](leaf) for leaf in found], leaves, inputs)


def _if(condition: Callable[[Tensor], bool], change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: change(x) if condition(x) else x


def _floating(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


BEFORE: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda x: x,
    "a copy": lambda x: x.clone(),
    "written": _if(_floating, lambda x: x.clone().mul_(2.0).mul_(0.5)),
    "a view": lambda x: x.unsqueeze(0).squeeze(0),
    "turned": _if(lambda x: x.dim() > 1, lambda x: x.transpose(0, -1).contiguous().transpose(0, -1)),
    "negated": _if(_floating, lambda x: x.neg().neg()),
    "a part": _if(lambda x: x.dim() > 0, lambda x: torch.cat([x, x])[: x.shape[0]]),
    "expanded": lambda x: x.expand(2, *x.shape)[1],
}
AFTER: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda x: x,
    "relu": _if(Tensor.is_floating_point, torch.relu),
    "sigmoid_": _if(_floating, lambda x: x.clone().sigmoid_()),
    "turned": _if(lambda x: x.dim() > 1, lambda x: x.transpose(0, -1)),
    "doubled": lambda x: x + x,
    "sum": lambda x: x.sum(),
    "added": _if(_floating, lambda x: x + x.mean()),
    "half": _if(lambda x: x.dim() > 0, lambda x: x[::2]),
    "flat": lambda x: x.reshape(-1),
    "softmax": _if(lambda x: x.is_floating_point() and x.dim() > 0, lambda x: x.softmax(-1)),
}
Results = Callable[[list[Tensor], list[Any], tuple[Tensor, ...]], Any]
RESULTS: dict[str, Results] = {
    "alone": lambda found, _, __: tuple(found),
    "twice": lambda found, _, __: [*found, *found],
    "with views": lambda found, _, __: {"a": found, "b": [x[None] for x in found]},
    "with inputs": lambda found, _, inputs: (*found, *inputs),
    "with views of inputs": lambda found, _, inputs: (*found, *(x.unsqueeze(0) for x in inputs)),
    "with tensors that it holds": lambda found, leaves, _: (*found, *(x for x in leaves if isinstance(x, Tensor))),
}


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda x: x,
    "turned": lambda x: x.mT.contiguous().mT if x.dim() > 1 else x,
    "sliced": lambda x: torch.stack([x, x], -1)[..., 0],
    "further on": lambda x: torch.cat([x.reshape(-1)[:1], x.reshape(-1)])[min(1, x.numel()) :].view(x.shape),
    "backwards": lambda x: x.permute(*reversed(range(x.dim()))).contiguous().permute(*reversed(range(x.dim()))),
    "wide": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]] if x.dim() else x,
}


def sampled(seed: int) -> tuple[Around, tuple[Tensor, ...]] | None:
    """Return a network and its inputs; None where the sample that is drawn is none, or draws random numbers."""
    random = Random(f"sample {seed}")
    known = samples()
    info = known[seed % len(known)]
    dtypes = sorted(info.dtypes, key=str)
    dtype = random.choice([torch.float32, torch.float32, *dtypes]) if torch.float32 in dtypes else random.choice(dtypes)
    torch.manual_seed(seed)
    drawn = _of_layer(info, dtype, random) if hasattr(info, "module_cls") else _of_operator(info, dtype, random)
    if drawn is None:
        return None
    words, call, given = drawn
    leaves = pytree.tree_leaves(given)
    tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    if not tensors or any(_odd(leaves[i]) for i in tensors):
        return None
    places = tensors[:1] + [i for i in tensors[1:] if random.random() < 0.5]
    layout = random.choice(["as it is", *LAYOUTS])
    if len(places) > 1 and random.random() < 0.05:
        leaves[places[1]] = leaves[places[0]]
    inputs = tuple(LAYOUTS[layout](leaves[i].detach()) for i in places)
    words = f"{words}, {dtype}, inputs {[tuple(x.shape) for x in inputs]} {layout}"
    around = (random.choice([next(iter(table)), *table]) for table in (BEFORE, AFTER, RESULTS))
    return Around(words, call, given, places, *around).eval(), inputs


def _of_operator(info: Any, dtype: torch.dtype, random: Random) -> tuple[str, Any, Any] | None:
    """Draw a sample of an operator: words, a function, its arguments."""
    made = info.sample_inputs("cpu", dtype, requires_grad=False)
    found = _drawn(made, random)
    if found is None or not isinstance(found.input, Tensor | list | tuple):
        return None
    in_place = info.inplace_variant
    if in_place and random.random() < 0.2 and isinstance(found.input, Tensor) and not found.broadcasts_input:

        def call(x: Tensor, *args: Any, **kwargs: Any) -> Any:
            return in_place(x.clone(), *args, **kwargs)

        return f"{info.full_name} in place", call, ((found.input, *found.args), found.kwargs)
    return info.full_name, info.op, ((found.input, *found.args), found.kwargs)


def _of_layer(info: Any, dtype: torch.dtype, random: Random) -> tuple[str, Any, Any] | None:
    """Draw a sample of a layer in evaluation mode."""
    made = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=False, training=False)
    found = _drawn(made, random)
    if found is None or found.forward_input is None:
        return None
    built, called = found.constructor_input, found.forward_input
    layer = info.module_cls(*built.args, **built.kwargs).to(dtype).eval()
    for buffer in (b for b in layer.buffers() if b.is_floating_point()):
        buffer.uniform_(0.5, 1.5)
    return f"{info.name} {layer}", layer, (called.args, called.kwargs)


def _drawn(made: Any, random: Random) -> Any:
    found = list(islice(made, MOST_SAMPLES))
    return random.choice(found) if found else None


def _odd(tensor: Tensor) -> bool:
    """Return whether a tensor is none that a network computes with."""
    return tensor.layout is not torch.strided or tensor.numel() > MOST_ELEMENTS or tensor.is_quantized
