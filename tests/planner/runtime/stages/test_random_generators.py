"""Seeded operators give the bits of PyTorch's own, depend on their seed alone, and are found in a program."""

import operator
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, fx, nn
from torch.nn import functional as F  # noqa: N812  # its usual name
from torch.utils import _pytree as pytree

from graphs.common.errors import InputError
from graphs.importers.footprints import storage_key
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from planner.runtime.stages.random_generators import (
    SEEDED_KERNELS,
    Generators,
    draw_seed,
    is_random,
    randomized,
    seeded_target,
)
from tests.children import LIMIT_S
from tests.graphs.importers.modules import Function

aten = torch.ops.aten
CPU = torch.device("cpu")


def filled(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


X = filled(3, 4, 5, 6)
SPREAD = X.permute(0, 2, 3, 1)  # of other strides, which decide in which order numbers are drawn
CHANCES = X.sigmoid()
MASK = filled(7, 9) > 0


class Call(NamedTuple):
    """An operator and what it is called with."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = {}  # noqa: RUF012  # nobody writes to it


def heads(dtype: torch.dtype = torch.float32, groups: int = 4) -> tuple[Tensor, ...]:
    """Queries of 4 heads, keys and values of some."""
    return filled(2, 4, 7, 8, dtype=dtype), filled(2, groups, 9, 8, dtype=dtype), filled(2, groups, 9, 8, dtype=dtype)


def layers(module: nn.Module, batch_first: bool, bidirectional: bool = False) -> Call:
    """Three layers with dropout between them."""
    x, n_states = filled(6, 2, 4), 6 if bidirectional else 3
    states = [filled(n_states, 2, 3), filled(n_states, 2, 3)]
    target: Any = getattr(aten, {"RNN": "rnn_tanh"}.get(type(module).__name__, type(module).__name__.lower())).input
    start = states if target is aten.lstm.input else states[0]
    given = x.transpose(0, 1) if batch_first else x
    options = (True, 3, 0.5, True, bidirectional, batch_first)
    return Call(target, (given, start, list(module.parameters()), *options))


def recurrent(kind: type[nn.Module], **options: Any) -> Call:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        module = kind(4, 3, 3, dropout=0.5, **options)
    return layers(module, options.get("batch_first", False), options.get("bidirectional", False))


SDPA = aten.scaled_dot_product_attention.default
CALLS: dict[str, Call] = {
    "dropout": Call(aten.dropout.default, (X, 0.3, True)),
    "dropout of a view": Call(aten.dropout.default, (SPREAD, 0.3, True)),
    "dropout of bfloat16": Call(aten.dropout.default, (X.bfloat16(), 0.3, True)),
    "native_dropout": Call(aten.native_dropout.default, (X, 0.3, True)),
    "feature_dropout": Call(aten.feature_dropout.default, (X, 0.3, True)),
    "alpha_dropout": Call(aten.alpha_dropout.default, (X, 0.3, True)),
    "feature_alpha_dropout": Call(aten.feature_alpha_dropout.default, (X, 0.3, True)),
    "attention": Call(SDPA, (*heads(), None, 0.2)),
    "causal attention": Call(SDPA, (*heads(), None, 0.2, True), {"scale": 0.5}),
    "attention with a mask": Call(SDPA, (*heads(), MASK), {"dropout_p": 0.2}),
    "attention with nothing to see": Call(SDPA, (*heads(), torch.zeros_like(MASK), 0.2)),
    "attention with a bias": Call(SDPA, (*heads(), filled(7, 9), 0.2)),
    "attention with a bias to learn": Call(SDPA, (*heads(), nn.Parameter(filled(2, 4, 7, 9)), 0.2)),
    "attention of bfloat16": Call(SDPA, (*heads(torch.bfloat16), MASK, 0.2)),
    "attention of float64": Call(SDPA, (*heads(torch.float64), None, 0.2)),
    "attention in groups": Call(SDPA, (*heads(groups=2), None, 0.2), {"enable_gqa": True}),
    "lstm": recurrent(nn.LSTM),
    "lstm, batch first": recurrent(nn.LSTM, batch_first=True),
    "lstm, both ways": recurrent(nn.LSTM, bidirectional=True),
    "gru": recurrent(nn.GRU),
    "gru, both ways, batch first": recurrent(nn.GRU, bidirectional=True, batch_first=True),
    "rnn_tanh": recurrent(nn.RNN),
    "rnn_relu": Call(aten.rnn_relu.input, recurrent(nn.RNN).args),
    "rrelu": Call(aten.rrelu.default, (X, 0.1, 0.4, True)),
    "rand": Call(aten.rand.default, ([3, 4],), {"device": CPU, "pin_memory": False}),
    "randn": Call(aten.randn.default, ([3, 40],), {"dtype": torch.float64}),
    "randint": Call(aten.randint.default, (10, [3, 4])),
    "randint.low": Call(aten.randint.low, (-5, 10, [3, 4])),
    "randperm": Call(aten.randperm.default, (20,)),
    "rand_like": Call(aten.rand_like.default, (SPREAD,), {"pin_memory": False}),
    "rand_like of another kind": Call(
        aten.rand_like.default, (SPREAD,), {"dtype": torch.float64, "memory_format": torch.contiguous_format}
    ),
    "randn_like": Call(aten.randn_like.default, (X,)),
    "randint_like": Call(aten.randint_like.default, (X, 7)),
    "randint_like.low_dtype": Call(aten.randint_like.low_dtype, (X, 3, 7), {"dtype": torch.int64}),
    "bernoulli": Call(aten.bernoulli.default, (CHANCES,)),
    "bernoulli.p": Call(aten.bernoulli.p, (X, 0.3)),
    "uniform": Call(aten.uniform.default, (X, 1.0, 2.0)),
    "normal_functional": Call(aten.normal_functional.default, (X, 1.0, 2.0)),
    "exponential": Call(aten.exponential.default, (X,)),
    "multinomial": Call(aten.multinomial.default, (CHANCES[0, 0], 2)),
    "normal": Call(aten.normal.Tensor_Tensor, (X, CHANCES)),
    "poisson": Call(aten.poisson.default, (CHANCES,)),
}


def node_of(call: Call) -> fx.Node:
    """As it stands in a traced graph, with nodes for tensors."""
    graph = fx.Graph()
    args, kwargs = pytree.tree_map_only(Tensor, lambda _: graph.placeholder("x"), (call.args, call.kwargs))
    return graph.call_function(call.target, args, kwargs)


def results(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else list(value)


def with_gradients(call: Call, target: Callable[..., Any], **more: Any) -> list[Tensor]:
    """What it returns, and the gradients of what it read."""
    args, kwargs = pytree.tree_map_only(
        Tensor, lambda t: t.detach().clone(memory_format=torch.preserve_format), (call.args, call.kwargs)
    )
    leaves = [t for t in pytree.tree_leaves(args) if isinstance(t, Tensor) and t.is_floating_point()]
    for leaf in leaves:
        leaf.requires_grad_(call.target not in UNLEARNED)
    found = results(target(*args, **kwargs, **more))
    learned = [t for t in found if t.requires_grad]
    if not learned:
        return found
    seeds = [torch.linspace(-1, 1, t.numel(), dtype=t.dtype).view(t.shape) for t in learned]
    gradients = torch.autograd.grad(learned, leaves, seeds, allow_unused=True)
    return [t.detach() for t in found] + [g for g in gradients if g is not None]


UNLEARNED = {
    aten.uniform.default, aten.normal_functional.default, aten.exponential.default, aten.bernoulli.p,
    aten.randint_like.default, aten.randint_like.low_dtype,
}  # fmt: skip
"""PyTorch has no backward pass for them; nobody asks for one, as they fill what was just allocated."""


@pytest.mark.parametrize("name", CALLS)
def test_the_bits_are_those_of_pytorch(name: str) -> None:
    call = CALLS[name]
    node = node_of(call)
    assert is_random(node)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(7)
        want = with_gradients(call, call.target)
        state = torch.get_rng_state()
        got = with_gradients(call, seeded_target(node), generator=torch.Generator().manual_seed(7))
        assert torch.equal(torch.get_rng_state(), state)  # nothing was drawn from the generator that all share
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert (g.dtype, g.stride()) == (w.dtype, w.stride())
        torch.testing.assert_close(g, w, rtol=0, atol=0, equal_nan=True)


def saved_bytes(call: Call, target: Callable[..., Any], **more: Any) -> int:
    """What autograd keeps for the backward pass, besides what was read."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[storage_key(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    leaves = [t for t in pytree.tree_leaves((call.args, call.kwargs)) if isinstance(t, Tensor)]
    args = pytree.tree_map_only(
        Tensor, lambda t: t.detach().requires_grad_(t.is_floating_point() and call.target not in UNLEARNED), call.args
    )
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = target(*args, **call.kwargs, **more)
    assert result is not None  # it holds what was saved, whose numbers would be used again otherwise
    return sum(n_bytes for key, n_bytes in kept.items() if key not in {storage_key(t) for t in leaves})


@pytest.mark.parametrize("name", CALLS)
def test_no_more_is_saved_than_by_pytorch(name: str) -> None:
    """So what was recorded of the operator itself, when the network was imported, holds for its seeded kernel."""
    call = CALLS[name]
    with torch.random.fork_rng(devices=[]):
        want = saved_bytes(call, call.target)
    got = saved_bytes(call, seeded_target(node_of(call)), generator=torch.Generator())
    assert got <= want


@pytest.mark.parametrize("name", [name for name in CALLS if name != "attention with nothing to see"])
def test_another_seed_gives_other_numbers(name: str) -> None:
    call = CALLS[name]
    target = seeded_target(node_of(call))
    one, other = (
        results(target(*call.args, **call.kwargs, generator=torch.Generator().manual_seed(seed))) for seed in (1, 2)
    )
    assert not torch.equal(one[0], other[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("name", CALLS)
def test_on_a_gpu_numbers_follow_from_the_seed_too(name: str) -> None:
    there = torch.device("cuda", 0)
    args, kwargs = pytree.tree_map_only(Tensor, lambda t: t.to(there), (CALLS[name].args, CALLS[name].kwargs))
    call = Call(CALLS[name].target, args, {k: there if k == "device" else value for k, value in kwargs.items()})
    if call.target in MADE_ON:
        call.kwargs["device"] = there
    state = torch.cuda.get_rng_state(there)
    one, again, other = (
        with_gradients(call, seeded_target(node_of(call)), generator=torch.Generator(there).manual_seed(seed))
        for seed in (1, 1, 2)
    )
    assert torch.equal(torch.cuda.get_rng_state(there), state)
    assert all(tensor.device == there for tensor in one)
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert name == "attention with nothing to see" or not torch.equal(one[0], other[0])


MADE_ON = {aten.rand.default, aten.randn.default, aten.randint.default, aten.randint.low, aten.randperm.default}
"""They read no tensor, so that they must be told where to make theirs."""


def test_every_twin_is_compared() -> None:
    assert set(SEEDED_KERNELS) <= {call.target for call in CALLS.values()}


def test_attention_under_autocast_is_computed_as_pytorch_does() -> None:
    call = Call(SDPA, (*heads(), filled(7, 9), 0.2))
    with torch.random.fork_rng(devices=[]), torch.autocast("cpu", dtype=torch.bfloat16):
        torch.default_generator.manual_seed(7)
        want = with_gradients(call, call.target)
        got = with_gradients(call, seeded_target(node_of(call)), generator=torch.Generator().manual_seed(7))
    assert want[0].dtype == torch.bfloat16
    assert all(torch.equal(g, w) for g, w in zip(got, want, strict=True))


CERTAIN: dict[str, Call] = {
    "dropout in evaluation": Call(aten.dropout.default, (X, 0.3, False)),
    "dropout of nothing": Call(aten.dropout.default, (X, 0.0, True)),
    "dropout of everything": Call(aten.dropout.default, (X, 1.0, True)),
    "attention without dropout": Call(SDPA, heads()),
    "attention with a chance of 0": Call(SDPA, (*heads(), None), {"dropout_p": 0.0}),
    "one layer": Call(aten.lstm.input, (X, [X, X], [X], True, 1, 0.5, True, False, False)),
    "layers in evaluation": Call(aten.gru.input, (X, X, [X], True, 2, 0.5, False, False, False)),
    "layers without dropout": Call(aten.gru.input, (X, X, [X], True, 2, 0.0, True, False, False)),
    "rrelu in evaluation": Call(aten.rrelu.default, (X, 0.1, 0.3)),
    "certain bernoulli": Call(aten.bernoulli.p, (X, 1)),
    "relu": Call(aten.relu.default, (X,)),
}


@pytest.mark.parametrize("name", CERTAIN)
def test_nothing_is_random_about(name: str) -> None:
    call = CERTAIN[name]
    assert not is_random(node_of(call))


class Everything(nn.Module):
    """Random operators of every kind, and some that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, 2, dropout=0.5)
        self.single = nn.LSTM(4, 4)
        self.quiet = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.lstm(x)
        x, _ = self.single(x)
        x = self.quiet(F.dropout(x, 0.5, self.training)) + torch.rand_like(x)
        y: Tensor = F.scaled_dot_product_attention(x, x, x, dropout_p=0.1 if self.training else 0.0)
        return y * y.new_empty(x.shape).bernoulli_(0.5)


def everything(training: bool) -> Program:
    return program_from_module(Everything(), (torch.randn(5, 2, 4),), training=training)


def test_random_operators_are_found_in_a_program() -> None:
    program = everything(training=True)
    kinds = {op.name: op.kind for op in program.graph.ops}
    assert sorted(kinds[name] for name in randomized(program)) == [
        "aten.bernoulli.p", "aten.dropout.default", "aten.lstm.input", "aten.rand_like.default",
        "aten.scaled_dot_product_attention.default",
    ]  # fmt: skip
    evaluated = everything(training=False)
    kinds = {op.name: op.kind for op in evaluated.graph.ops}
    assert sorted(kinds[name] for name in randomized(evaluated)) == ["aten.bernoulli.p", "aten.rand_like.default"]


@torch.library.custom_op("planner_tests::noise", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def noise(x: Tensor) -> Tensor:
    """An operator of a user that draws from the generator that all share."""
    return x + torch.randn_like(x)


@noise.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_what_cannot_be_seeded_is_refused_by_name() -> None:
    program = program_from_module(Function(lambda x: torch.relu(noise(x))), (X,), training=True)
    with pytest.raises(InputError) as error:
        randomized(program)
    assert str(error.value) == (
        "operator 'noise' (planner_tests.noise.default) draws random numbers that cannot be seeded, so no run could be "
        "repeated; switch it off, or use one that takes a generator"
    )


def written(program: Program) -> Callable[..., Any]:
    """The program as code with a line for each operator, as the runtime writes it."""
    graph = fx.Graph()
    state = {name: graph.placeholder(f"state{i}") for i, name in enumerate(program.state)}
    random = [op for op in program.graph.ops if op.name in randomized(program)]
    generators = {op.name: graph.placeholder(f"generator{i}") for i, op in enumerate(random)}
    value = state | {name: graph.placeholder(f"x{i}") for i, name in enumerate(program.graph.inputs)}
    for op in program.graph.ops:
        call = program.calls[op.name]
        args, kwargs = program.arguments(op, value.__getitem__)
        target: Any = call.node.target
        if op.name in generators:
            target, kwargs = seeded_target(call.node), kwargs | {"generator": generators[op.name]}
        result = graph.call_function(target, args, kwargs)
        items = [result]
        if call.unpack:
            items = [graph.call_function(operator.getitem, (result, i)) for i in range(len(op.outputs))]
        value.update(zip(op.outputs, items, strict=True))
    graph.output(tuple(value[name] for name in program.graph.outputs))
    return fx.GraphModule(nn.Module(), graph)


def test_numbers_do_not_depend_on_threads_or_on_what_ran_before() -> None:
    program = everything(training=True)
    code = written(program)
    indices = [i for i, op in enumerate(program.graph.ops) if op.name in randomized(program)]

    def run(step: int, micro_batch: int, seed: int = 3) -> Tensor:
        drawn = Generators(indices, CPU, seed).at(step, micro_batch)
        (result,) = code(*program.state.values(), *drawn, *program.example_inputs)
        assert isinstance(result, Tensor)
        return result.detach()

    alone = [run(step, batch) for step in range(2) for batch in range(2)]
    assert len({tuple(result.flatten().tolist()) for result in [*alone, run(0, 0, seed=4)]}) == 5
    together: dict[int, Tensor] = {}

    def work(number: int) -> None:
        torch.rand(100 + number)  # from the generator that all share
        together[number] = run(*divmod(number, 2))

    threads = [threading.Thread(target=work, args=(number,)) for number in reversed(range(4))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert all(torch.equal(together[number], want) for number, want in enumerate(alone))


def test_the_generators_begin_anew_with_each_micro_batch() -> None:
    generators = Generators([5, 9], CPU, seed=1)
    first = [torch.rand(3, generator=g) for g in generators.at(0, 0)]
    assert not torch.equal(*first)
    later = [torch.rand(3, generator=g) for g in generators.at(0, 1)]
    again = [torch.rand(3, generator=g) for g in generators.at(0, 0)]  # as recomputation does
    assert [torch.equal(a, b) for a, b in zip(first, again, strict=True)] == [True, True]
    assert not torch.equal(first[0], later[0])
    (alone,) = Generators([9], CPU, seed=1).at(0, 0)  # on a device that has only this one
    assert torch.equal(torch.rand(3, generator=alone), first[1])


numbers = st.integers(0, 2**40)


@given(st.tuples(numbers, numbers, numbers, numbers), st.tuples(numbers, numbers, numbers, numbers))
def test_seeds_differ_where_anything_does(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    assert (draw_seed(*one) == draw_seed(*other)) == (one == other)
    assert 0 <= draw_seed(*one) < 2**64


def test_seeds_stay_the_same_from_version_to_version() -> None:
    """A training that is resumed later goes on with the numbers that it would have had."""
    assert draw_seed(0, 0, 0, 0) == 11619761522075635141
    assert draw_seed(1, 2, 3, 4) == 15195315728730727403
