"""Random operators whose numbers depend on a seed, the step, the micro-batch and the operator, and on nothing else.

PyTorch draws from one generator for all threads of a process, so an operator's numbers depend on the operators that ran
before. Here each random operator has a generator of its own, which is seeded anew for each micro-batch::

    seed, step, micro-batch, operator ──blake2b──► torch.Generator ──► dropout(x, 0.1, True, generator=...)

Many operators of PyTorch take a generator. The others have a seeded kernel here, which runs the same operators as
PyTorch's kernel for a CPU: with a generator in the same state, it returns the same bits.
"""

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from graphs.common.checks import fits
from graphs.common.errors import InputError
from graphs.program.program import Program

aten = torch.ops.aten

SeededKernel: TypeAlias = Callable[..., Any]

CHANCES = ("p", "dropout", "dropout_p")
"""Names of the argument with the chance that an element is dropped; 0 and 1 are not random."""

SWITCHES = ("train", "training")
"""Names of the argument that says whether an operator is in training; some operators are random only then."""


class Generators:
    """The generators of some random operators on one device, for use by one thread."""

    def __init__(self, operators: Sequence[int], torch_device: torch.device, seed: int) -> None:
        """Make a generator for each operator, by its index in ``Graph.ops``, which does not depend on the placement."""
        self._operators = tuple(operators)
        self._generators = tuple(torch.Generator(torch_device) for _ in operators)
        self._seed = seed

    def at(self, step: int, micro_batch: int) -> tuple[torch.Generator, ...]:
        """Return the generators, in the order of the operators, in their state at the start of a micro-batch."""
        for operator, generator in zip(self._operators, self._generators, strict=True):
            generator.manual_seed(draw_seed(self._seed, step, micro_batch, operator))
        return self._generators


def check_seed(seed: int) -> None:
    """Check a seed; raise InputError if it is no whole number from 0 to below 2**63."""
    if not fits(seed, int) or not 0 <= seed < 2**63:
        raise InputError(f"the seed is {seed}; it must be 0 or more, and less than 2**63")


def draw_seed(seed: int, step: int, micro_batch: int, operator: int) -> int:
    """Return the seed of one operator in one micro-batch: 64 bits, of which a generator of a CPU takes 32."""
    digest = blake2b(struct.pack("<4q", seed, step, micro_batch, operator), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def randomized(program: Program) -> frozenset[str]:
    """Return the names of the operators that draw random numbers; raise InputError if one cannot be seeded."""
    names = [name for name, call in program.calls.items() if is_random(call.node)]
    for name in names:
        seeded_target(program.calls[name].node)
    return frozenset(names)


def is_random(node: fx.Node) -> bool:
    """Return whether an operator draws random numbers with the arguments that it has."""
    assert isinstance(node.target, OpOverload)
    if torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    arguments = _arguments(node)
    if any(arguments.get(name) is False for name in SWITCHES) or arguments.get("num_layers") == 1:
        return False
    chances = [arguments[name] for name in CHANCES if isinstance(arguments.get(name), int | float)]
    return all(0 < chance < 1 for chance in chances)


def seeded_target(node: fx.Node) -> SeededKernel:
    """Return the seeded kernel of a random operator, or the operator itself if it takes ``generator``.

    It takes the same arguments and ``generator``. Raise InputError if there is neither.
    """
    assert isinstance(node.target, OpOverload)
    kernel = SEEDED_KERNELS.get(node.target)
    if kernel is not None:
        return kernel
    if any(argument.name == "generator" for argument in node.target._schema.arguments):
        return node.target
    raise InputError(
        f"operator '{node.name}' ({node.target}) draws random numbers that cannot be seeded, so no run could be "
        "repeated; switch it off, or use one that takes a generator"
    )


def _arguments(node: fx.Node) -> dict[str, Any]:
    """Return the arguments of a call by name, with defaults."""
    assert isinstance(node.target, OpOverload)
    arguments = node.target._schema.arguments
    defaults = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    return defaults | dict(zip((a.name for a in arguments), node.args, strict=False)) | node.kwargs


def seeded_dropout(x: Tensor, p: float, train: bool, *, generator: torch.Generator) -> Tensor:
    """``aten.dropout``: some elements become 0, the others grow."""
    assert train
    return _scaled(x, p, torch.empty_like(x).bernoulli_(1 - p, generator=generator))


def native_dropout(x: Tensor, p: float, train: bool, *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """``aten.native_dropout``, which also returns the mask of the elements that were kept."""
    assert train
    kept = torch.empty_like(x, dtype=torch.bool).bernoulli_(1 - p, generator=generator)
    return x.mul(kept).mul_(1 / (1 - p)), kept


def rrelu(
    x: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """``aten.rrelu``, whose own backward pass reads slopes that were never written if tensors are kept by hooks."""
    assert training
    slopes = torch.empty_like(x)
    with torch.no_grad():
        aten.rrelu_with_noise.default(x, slopes, lower, upper, True, generator)
    return x * slopes


def _of_features(x: Tensor) -> Tensor:
    """Return a new tensor [batch, channels, 1, ...] without values, to drop whole channels."""
    return x.new_empty([*x.shape[:2], *[1] * (x.dim() - 2)])


SELU = 1.7580993408473766
"""The limit of SELU for large negative numbers, without its sign: its scale times its alpha."""


def _scaled(x: Tensor, p: float, kept: Tensor) -> Tensor:
    return x * kept.div_(1 - p)


def _alpha_dropped(x: Tensor, p: float, kept: Tensor) -> Tensor:
    """Return what keeps mean and variance (Klambauer et al. 2017)."""
    scale = 1 / math.sqrt((SELU * SELU * p + 1) * (1 - p))
    shift = kept.add(-1).mul_(SELU * scale).add_(SELU * scale * p)
    return x.mul(kept.mul_(scale)).add_(shift)


def _dropping(mask: Callable[[Tensor], Tensor], drop: Callable[[Tensor, float, Tensor], Tensor]) -> SeededKernel:
    """Return the seeded kernel of another dropout, by the form of its mask and what it does to the other elements."""

    def run(x: Tensor, p: float, train: bool, *, generator: torch.Generator) -> Tensor:
        assert train
        return drop(x, p, mask(x).bernoulli_(1 - p, generator=generator))

    return run


def dropout_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    generator: torch.Generator,
) -> Tensor:
    """``aten.scaled_dot_product_attention`` with dropout, computed as PyTorch does where no fused kernel can drop.

    Narrow floats are computed in float32. Under autocast everything is computed in autocast's dtype, as in PyTorch.
    """
    device = query.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        query, key, value = (tensor.to(dtype) for tensor in (query, key, value))
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = attn_mask.to(dtype)
    with torch.autocast(device, enabled=False):
        dtype = query.dtype
        if dtype in (torch.float16, torch.bfloat16):
            query, key, value = query.float(), key.float(), value.float()
        if enable_gqa:
            key, value = (t.repeat_interleave(query.size(-3) // t.size(-3), -3) for t in (key, value))
        root = math.sqrt(1 / math.sqrt(query.size(-1)) if scale is None else scale)
        scores = (query * root).matmul(key.transpose(-2, -1) * root)
        mask = _additive(query, key, attn_mask, is_causal)
        if mask is not None:
            scores = scores + mask.to(scores.dtype)
        weights = torch._safe_softmax(scores, -1)
        return seeded_dropout(weights, dropout_p, True, generator=generator).matmul(value).to(dtype)


def _additive(query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor | None:
    """Return a mask to add to the scores, with -inf where attention is not allowed."""
    if is_causal:
        mask = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool, device=query.device).tril()
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), -math.inf)


def _recurrent(operator: OpOverload) -> SeededKernel:
    """Return the seeded kernel of a recurrent network of several layers: layer by layer, with dropout in between."""

    def run(
        x: Tensor, start: Tensor | list[Tensor], parameters: list[Tensor], *options: Any, generator: torch.Generator
    ) -> tuple[Tensor, ...]:
        has_biases, num_layers, p, train, bidirectional, batch_first = options
        assert train
        y = x.transpose(0, 1) if batch_first else x
        directions = 2 if bidirectional else 1
        n_parameters = len(parameters) // num_layers
        ends: list[Any] = []
        for layer in range(num_layers):
            rows = slice(layer * directions, (layer + 1) * directions)
            first = start[rows] if isinstance(start, Tensor) else [state[rows] for state in start]
            own = parameters[layer * n_parameters : (layer + 1) * n_parameters]
            y, *end = operator(y, first, own, has_biases, 1, 0.0, train, bidirectional, False)
            ends.append(end)
            if layer < num_layers - 1:
                y = seeded_dropout(y, p, True, generator=generator)
        states = [torch.cat(parts) for parts in zip(*ends, strict=True)]
        return (y.transpose(0, 1) if batch_first else y, *states)

    run.__name__ = str(operator).replace(".", "_")
    return run


def _like(fill: str) -> SeededKernel:
    """Return the seeded kernel of an operator such as ``aten.rand_like``, given the tensors' method that draws."""

    def run(
        x: Tensor,
        *bounds: int,
        generator: torch.Generator,
        memory_format: torch.memory_format | None = None,
        **options: Any,
    ) -> Tensor:
        empty = torch.empty_like(x, memory_format=memory_format or torch.preserve_format, **options)
        filled: Tensor = getattr(empty, fill)(*bounds, generator=generator)
        return filled

    run.__name__ = fill
    return run


SEEDED_KERNELS: Mapping[OpOverload, SeededKernel] = {
    aten.dropout.default: seeded_dropout,
    aten.native_dropout.default: native_dropout,
    aten.feature_dropout.default: _dropping(_of_features, _scaled),
    aten.alpha_dropout.default: _dropping(torch.empty_like, _alpha_dropped),  # keeps mean and variance
    aten.feature_alpha_dropout.default: _dropping(_of_features, _alpha_dropped),
    aten.rrelu.default: rrelu,
    aten.scaled_dot_product_attention.default: dropout_attention,
    **{op: _recurrent(op) for op in (aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input)},
    aten.rand.default: aten.rand.generator,
    aten.randn.default: aten.randn.generator,
    aten.randint.default: aten.randint.generator,
    aten.randint.low: aten.randint.low_generator,
    aten.randperm.default: aten.randperm.generator,
    aten.rand_like.default: _like("uniform_"),
    aten.randn_like.default: _like("normal_"),
    aten.randint_like.default: _like("random_"),
    aten.randint_like.low_dtype: _like("random_"),
}
"""For operators that take no generator, the kernels that compute the same with one."""
