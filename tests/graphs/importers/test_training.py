"""A network imported as it is trained: the results, gradients and statistics are those of the module itself."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import event, given, settings
from torch import Tensor, fx, nn
from torch.nn import functional as F  # noqa: N812  # its usual name
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint
from transformers import BertConfig, ViTConfig

from examples.networks import Network, bert_base, googlenet, lstm_seq2seq, resnet50, vit_b16
from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module, read_pt2
from graphs.importers.training import detach_blocks, take_counters
from graphs.program.program import Program
from tests.graphs.importers.modules import KEEPS_STATE, PICTURE, Function, Tied, X, assert_same
from tests.graphs.importers.random_programs import Steps, example, programs

aten = torch.ops.aten


class Normalised(nn.Module):
    """Batch norms of every dimension, one of them in place, instance norms with and without statistics, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.Dropout2d())
        self.second = nn.Sequential(nn.InstanceNorm2d(6, affine=True, track_running_stats=True), nn.InstanceNorm2d(6))
        self.without = nn.Sequential(nn.BatchNorm2d(6, track_running_stats=False), nn.Dropout(inplace=True))
        self.head = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(96, momentum=0.3, affine=False), nn.Linear(96, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x + self.second(x)
        scores: Tensor = self.head(self.without(x))
        return scores


class Blocks(nn.Module):
    """Blocks without gradients, nested ones, a parameter inside, and a tensor that is both inside and outside."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.arange(1.0, 5.0))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        with torch.no_grad():
            mean, twice = y.mean().mul_(2), self.scale * 2
            twice[0] = 0.5
            largest = y.argmax(-1)
            with torch.enable_grad():
                learned = self.scale * 3 + mean
            low, _ = y.chunk(2)
        z: Tensor = y * mean + twice + learned + low.mean(0) + largest[:, None] + x.exp() + y.detach()
        return z


class Paths(nn.Module):
    """Drops whole samples, as networks with stochastic depth do, and counts its calls."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 0.5
        self.calls.add_(2)
        self.calls = 1 + self.calls + 1
        kept = x.new_empty(x.shape[0], 1).bernoulli_()
        noise = torch.empty_like(x).normal_(0.0, 0.1)
        y: Tensor = self.norm(x + self.layer(x) * kept + noise)
        return y


class Encoder(nn.Module):
    """Attention and a recurrent network, both with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.lstm = nn.LSTM(4, 3, 2, dropout=0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, (hidden, _) = self.lstm(self.block(x))
        return y, hidden


class Case(NamedTuple):
    """A module and its arguments."""

    module: Callable[[], nn.Module]
    args: tuple[Tensor, ...]


CASES = {
    "normalised": Case(Normalised, (PICTURE,)),
    "blocks": Case(Blocks, (X,)),
    "paths": Case(Paths, (X,)),
    "encoder": Case(Encoder, (X[None],)),
    "tied": Case(Tied, (torch.tensor([[1, 2, 6]]),)),
    "checkpoint": Case(
        lambda: nn.Sequential(
            nn.Linear(4, 4), Function(lambda x: checkpoint(lambda y: F.dropout(y.relu()), x, use_reentrant=False))
        ),
        (X,),
    ),
}


class Outcome(NamedTuple):
    """What one training step leaves."""

    results: list[Tensor]
    gradients: dict[str, Tensor | None]
    buffers: dict[str, Tensor]


def outcome(call: Callable[[], Any], state: dict[str, Tensor]) -> Outcome:
    """Forward and back, with the same random numbers whoever asks."""
    for tensor in state.values():
        tensor.grad = None
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        results = [leaf for leaf in pytree.tree_leaves(call()) if isinstance(leaf, Tensor)]
    learned = [result for result in results if result.requires_grad]
    torch.autograd.backward(learned, [torch.linspace(-1, 1, r.numel()).view(r.shape) for r in learned])
    gradients = {name: tensor.grad for name, tensor in state.items() if tensor.requires_grad}
    buffers = {name: tensor.clone() for name, tensor in state.items() if not tensor.requires_grad}
    return Outcome([result.detach() for result in results], gradients, buffers)


def by_operators(program: Program) -> Outcome:
    """One training step of a program on copies of its state, with its updates."""
    state = {n: t.detach().clone().requires_grad_(t.requires_grad) for n, t in program.state.items()}
    state |= {name: update.tensor.clone() for name, update in program.updates.items()}

    def call() -> Any:
        env = dict(state) | dict(zip(program.graph.inputs, program.example_inputs, strict=True))
        for op in program.graph.ops:
            env |= zip(op.outputs, program.execute(op, env), strict=True)
        return program.unflatten(env)

    found = outcome(call, state)
    for name, update in program.updates.items():
        found.buffers[name] += update.increment
    return found


def by_module(module: nn.Module, args: tuple[Tensor, ...]) -> Outcome:
    """The same by the module itself, which is changed."""
    found = outcome(lambda: module.train()(*args), dict(module.named_parameters()))
    return found._replace(buffers=dict(module.named_buffers()))


def check_one_step(module: nn.Module, args: tuple[Tensor, ...], name: str = "") -> None:
    """Both ways end in the same bits."""
    program = program_from_module(module, args, name=name, training=True)
    got, want = by_operators(program), by_module(module, args)
    assert_same(got.results, want.results)
    assert_same(got.gradients, want.gradients)
    assert got.buffers.keys() - want.buffers.keys() <= {"lifted_tensor_0"}  # a number that is written somewhere
    for buffer, tensor in want.buffers.items():
        assert_same(got.buffers.get(buffer, tensor), tensor)
    assert program.statistics <= got.buffers.keys()


@pytest.mark.parametrize("name", CASES)
class TestEveryModule:
    def test_one_step_is_that_of_the_module(self, name: str) -> None:
        check_one_step(CASES[name].module(), CASES[name].args)

    def test_importing_and_running_change_nothing(self, name: str) -> None:
        module, args = CASES[name].module(), CASES[name].args
        state = {key: tensor.clone() for key, tensor in module.state_dict().items()}
        generator, modes = torch.get_rng_state(), [part.training for part in module.modules()]
        program = program_from_module(module, args, training=True)
        assert torch.equal(torch.get_rng_state(), generator)
        program.run(*args)
        assert [part.training for part in module.modules()] == modes
        assert program_from_module(module, args, training=True).graph == program.graph
        assert_same(dict(module.state_dict()), state)
        assert program.training


class TestState:
    def test_statistics_and_counters(self) -> None:
        module = Normalised()
        program = program_from_module(module, (PICTURE,), training=True)
        tracked = ["first.1", "second.0", "head.1"]
        assert program.statistics == {f"{part}.running_{what}" for part in tracked for what in ("mean", "var")}
        assert program.statistics < program.state.keys()
        assert {name: update.increment for name, update in program.updates.items()} == {
            "first.1.num_batches_tracked": 1, "head.1.num_batches_tracked": 1,  # an instance norm does not count
        }  # fmt: skip
        assert program.updates["head.1.num_batches_tracked"].tensor is module.head[1].num_batches_tracked
        assert not program.updates.keys() & program.state.keys()
        assert not [op for op in program.graph.ops if "add_" in op.kind]

    def test_several_additions_add_up(self) -> None:
        program = program_from_module(Paths(), (X,), training=True)
        assert program.updates["calls"].increment == 4.5

    def test_in_evaluation_mode_there_are_none(self) -> None:
        program = program_from_module(Normalised(), (PICTURE,))
        assert (program.training, program.statistics, program.updates) == (False, frozenset(), {})

    def test_micro_batches_may_follow_before_the_first_goes_back(self) -> None:
        """Statistics are written in place, which autograd must not take for a change of what it has saved."""
        program = program_from_module(Normalised(), (PICTURE,), training=True)
        state = {n: t.detach().clone().requires_grad_(t.requires_grad) for n, t in program.state.items()}

        def forward(x: Tensor) -> Tensor:
            env = dict(state) | {program.graph.inputs[0]: x}
            for op in program.graph.ops:
                env |= zip(op.outputs, program.execute(op, env), strict=True)
            return env[program.graph.outputs[0]]

        first, second = forward(PICTURE), forward(PICTURE + 1)
        for result in (second, first):
            result.sum().backward()  # type: ignore[no-untyped-call]  # torch has no types here

    def test_the_fingerprint_is_another(self) -> None:
        evaluated, trained = (program_from_module(Normalised(), (PICTURE,), training=mode) for mode in (False, True))
        assert evaluated.graph.fingerprint != trained.graph.fingerprint
        norm = trained.graph.ops[trained.graph.index["batch_norm"]]
        assert (norm.kind, norm.attrs["training"]) == ("aten.batch_norm.default", True)


class TestModes:
    def test_a_module_in_evaluation_mode_is_trained_as_a_whole(self) -> None:
        module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Sequential(nn.Dropout())).eval()
        program = program_from_module(module, (X,), training=True)
        assert [op.attrs.get("train") for op in program.graph.ops] == [None, True, True]
        assert not any(part.training for part in module.modules())

    def test_a_module_in_training_mode_keeps_its_frozen_parts(self) -> None:
        module = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout())
        module[0].eval()
        program = program_from_module(module, (X,), training=True)
        assert [op.attrs.get("train", op.attrs.get("training")) for op in program.graph.ops] == [False, True]
        assert (program.statistics, program.updates) == (frozenset(), {})
        assert [part.training for part in module.modules()] == [True, False, True]

    def test_it_is_traced_with_gradients(self) -> None:
        module = Function(lambda x: x + 1 if torch.is_grad_enabled() else x - 1)
        assert [op.kind for op in program_from_module(module, (X,), training=True).graph.ops] == ["aten.add.Tensor"]


class Shared(nn.Module):
    """A batch norm, for others."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("average", torch.zeros(4))


class CalledTwice(Shared):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.norm(x))  # type: ignore[no-any-return]  # a tensor


class AlsoRead(Shared):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) - self.norm.running_mean  # type: ignore[no-any-return]  # a tensor


class Returned(Shared):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.norm(x), self.norm.running_var


class Averages(Shared):
    average: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.average.mul_(0.9)
        return self.norm(x)  # type: ignore[no-any-return]  # a tensor


class UsesItsCount(Shared):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) / self.norm.num_batches_tracked  # type: ignore[no-any-return]  # a tensor


class WritesAPartBesideABlock(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        with torch.no_grad():
            mean = y.mean()
        y[0] += 1
        return y * mean


class ClampsUnseen(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        with torch.no_grad():
            y.view(-1).clamp_(0)
        return y * 2


class Rounding(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def rounded(x: Tensor) -> Tensor:
    y: Tensor = Rounding.apply(x)  # type: ignore[no-untyped-call]  # torch has no types here
    return y


TOO = (
    "so that its value depends on their order; call each normalisation once, or switch that part to evaluation mode "
    "(.eval())"
)
OWN = (
    "has a backward pass of its own ('{}', a torch.autograd.Function), which a traced graph does not show; write its "
    "forward pass in operators that PyTorch differentiates, or switch it off"
)
REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "called twice": (
        CalledTwice, f"updates 'norm.running_mean' in 'batch_norm_1' and uses it in 'batch_norm' too, {TOO}"
    ),
    "also read": (AlsoRead, f"updates 'norm.running_mean' in 'batch_norm' and uses it in 'sub' too, {TOO}"),
    "returned": (
        Returned, f"updates 'norm.running_var' in 'batch_norm' and uses it in what the model returns too, {TOO}"
    ),
    "another buffer": (Averages, KEEPS_STATE.format("average")),
    "its count": (UsesItsCount, KEEPS_STATE.format("norm.num_batches_tracked")),
    "written without gradients": (
        lambda: ClampsUnseen(4, 4),
        "writes in place ('clamp_') without gradients to what has one; write out of place there (x = x + 1 for "
        "x += 1), or outside of the block",
    ),
    "a backward pass of its own": (lambda: Function(rounded), OWN.format("Rounding")),
    "reentrant checkpoints": (
        lambda: Function(lambda x: checkpoint(torch.relu, x, use_reentrant=True)), OWN.format("CheckpointFunction")
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    make, text = REFUSED[name]
    module = make()
    with pytest.raises(InputError) as error:
        program_from_module(module, (X,), name="net", training=True)
    assert str(error.value) == f"model 'net' {text}"


@torch.library.custom_op("planner_tests::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    """An operator of a user, who says how it goes back."""
    return x * 2


doubled.register_fake(torch.empty_like)
doubled.register_autograd(lambda _, gradient: gradient * 3)  # another number than forward, to tell it from that


def test_an_operator_of_a_users_own_keeps_its_backward_pass() -> None:
    module = nn.Sequential(nn.Linear(4, 4), Function(doubled))
    program = program_from_module(module, (X,), training=True)
    assert [op.kind for op in program.graph.ops] == ["aten.linear.default", "planner_tests.doubled.default"]
    check_one_step(module, (X,))


def test_in_evaluation_mode_a_backward_pass_of_its_own_does_not_matter() -> None:
    module = Function(rounded)
    assert [op.kind for op in program_from_module(module, (X,)).graph.ops] == ["aten.round.default"]
    with pytest.raises(InputError):
        program_from_module(module, (X,), training=True)
    x = X.clone().requires_grad_()
    rounded(x).sum().backward()  # type: ignore[no-untyped-call]  # torch has no types here
    assert x.grad is not None  # what was put in its place to notice it is gone
    assert torch.equal(x.grad, torch.ones_like(x))


def test_writes_to_a_part_are_left_to_torch_where_nothing_is_updated() -> None:
    class Scaled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            y = F.dropout(super().forward(x), training=self.training)
            y[0] *= 2
            y[:, 1] = x[0, 0]
            return torch.zeros_like(y).double().copy_(y[3])

    module = Scaled(4, 4)
    got = by_operators(program_from_module(module, (X,), training=True))
    want = by_module(module, (X,))
    torch.testing.assert_close(got.gradients, want.gradients)  # contributions are added up in another order
    assert_same(got.results, want.results)


class WritesPartsOfNorms(nn.Module):
    """Writes to parts of what normalisations with running statistics read and return."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.first, self.second = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4, affine=False)
        self.instance = nn.InstanceNorm1d(4, affine=True, track_running_stats=True)
        self.mean, self.variance = (nn.Buffer(torch.full((4,), number)) for number in (0.5, 2.0))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        y[0] *= 2
        z = self.first(y)
        z[:, 1].sigmoid_()
        w = self.second(z.mT.contiguous().mT) + z  # laid out otherwise
        w[1:, :2] = self.instance(w.mT[None])[0, :2, 1:].mT
        return F.batch_norm(w, self.mean, self.variance, training=True)


def test_writes_to_a_part_may_stand_beside_running_statistics() -> None:
    module = WritesPartsOfNorms()
    program = program_from_module(module, (X,), training=True)
    norms = [op.name for op in program.graph.ops if op.kind.split(".")[1] in ("batch_norm", "instance_norm")]
    assert len(norms) == 4
    assert program.statistics == {name for name, _ in module.named_buffers() if "batches" not in name}
    assert program.updates.keys() == {f"{name}.num_batches_tracked" for name in ("first", "second")}
    check_one_step(module, (X,))


def test_writes_to_a_part_may_stand_beside_a_block() -> None:
    module = WritesAPartBesideABlock(4, 4)
    program = program_from_module(module, (X,), training=True)
    assert "aten.detach.default" in {op.kind for op in program.graph.ops}
    check_one_step(module, (X,))


def test_what_dropout_drops_is_a_tensor_of_its_own() -> None:
    """So it may be written in place although its input is read again; in evaluation mode they are one."""

    class Added(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            dropped = F.dropout(y, 0.5, self.training)
            dropped += x
            z: Tensor = self.norm(dropped * y)
            return z

    check_one_step(Added(), (X,))


class Learned(nn.Module):
    """A program on what is computed from a parameter, between normalisations that keep statistics."""

    def __init__(self, program: Steps) -> None:
        super().__init__()
        self.program = program
        self.weight = nn.Parameter(example() / 2)
        self.first, self.last = nn.BatchNorm1d(3), nn.InstanceNorm1d(1, track_running_stats=True)

    def forward(self, x: Tensor) -> list[Tensor]:
        results = self.program.execute(self.first(x * self.weight))
        return [*results, self.last(torch.cat([result.float().reshape(1, 1, -1) for result in results], -1))]


@pytest.mark.slow
@settings(max_examples=20)
@given(programs())
def test_a_random_program_gives_the_same_gradients_or_is_refused(program: Steps) -> None:
    module = Learned(program)
    try:
        want = by_module(deepcopy(module), (example(),))
    except RuntimeError:  # autograd refuses it: what was saved is overwritten, or nothing goes back
        event("refused by PyTorch")
        return
    try:
        imported = program_from_module(module, (example(),), training=True)
    except InputError as error:
        event("refused")
        if "copies at times only" not in str(error):
            raise
        return
    got = by_operators(imported)
    assert_same(got.results, want.results)
    for name, tensor in want.buffers.items():
        assert_same(got.buffers.get(name, tensor), tensor)  # an instance norm does not count
    assert imported.statistics <= want.buffers.keys()
    nothing = torch.zeros_like(module.weight)  # none is as good as zeros
    one, other = (found.gradients["weight"] for found in (got, want))
    torch.testing.assert_close(nothing if one is None else one, nothing if other is None else other)


class TestGraphs:
    """The rewrites by themselves."""

    def test_a_counter_must_be_nothing_else(self) -> None:
        graph = fx.Graph()
        names = ("counter", "read", "shown", "unused", "whole")
        counter, read, shown, _, whole = nodes = [graph.placeholder(name) for name in names]
        for node in nodes:
            node.meta["val"] = torch.zeros((), dtype=torch.int64 if node is whole else torch.float32)
        added = graph.call_function(aten.add_.Tensor, (counter, 1))
        graph.call_function(aten.add_.Scalar, (added, 2))
        graph.call_function(aten.add_.Tensor, (read, 1))
        graph.output(
            (graph.call_function(aten.neg.default, (read,)), graph.call_function(aten.add_.Tensor, (shown, 1)))
        )
        graph.call_function(aten.copy_.default, (whole, graph.call_function(aten.add.Tensor, (whole, 0.5))))
        assert take_counters(graph, {node.name: f"net.{node.name}" for node in nodes}) == {"net.counter": 3}
        assert not counter.users
        assert len(read.users) == 2
        assert len(shown.users) == 1

    def test_a_tensor_is_detached_once_and_only_where_gradients_come_from_it(self) -> None:
        graph = fx.Graph()
        weight, x = graph.placeholder("weight"), graph.placeholder("x")
        for node in (weight, x):
            node.meta["val"] = X
        learned = graph.call_function(aten.mul.Tensor, (weight, x))
        inside = [graph.call_function(aten.neg.default, (node,)) for node in (learned, x, learned)]
        for node in (learned, *inside):
            node.meta["val"] = X
        for node in inside:
            node.meta["gradients"] = False
        graph.output(tuple(inside))
        detach_blocks(graph, frozenset({"weight"}))
        detached = [node for node in graph.nodes if node.target is aten.detach.default]
        assert [node.args for node in detached] == [(learned,)]
        assert [node.args for node in inside] == [(detached[0],), (x,), (detached[0],)]


class TestFiles:
    def saved(self, folder: Path, batch: int = 4, **options: Any) -> Path:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
        torch.export.save(torch.export.export(module, (X[:batch],), **options), folder / "net.pt2")
        return folder / "net.pt2"

    def test_an_exported_program_is_trained_in_the_mode_in_which_it_was_exported(self, tmp_path: Path) -> None:
        program = read_pt2(self.saved(tmp_path), training=True)
        assert program.training
        assert program.statistics == {"1.running_mean", "1.running_var"}
        assert {name: update.increment for name, update in program.updates.items()} == {"1.num_batches_tracked": 1}
        assert [op.attrs.get("train") for op in program.graph.ops] == [None, None, True]

    def test_for_another_batch_its_statistics_stay_as_they_are(self, tmp_path: Path) -> None:
        path = self.saved(tmp_path, dynamic_shapes=({0: torch.export.Dim("batch", min=2, max=8)},))
        program = read_pt2(path, batch=3, training=True)
        assert program.example_inputs[0].shape == (3, 4)
        assert program.state["1.running_mean"].tolist() == [0, 0, 0, 0]
        assert program.updates["1.num_batches_tracked"].tensor == 0


REAL: Mapping[str, Callable[[], Network]] = {
    "resnet50": lambda: resnet50(2),
    "bert_base": lambda: bert_base(2, config=BertConfig(num_hidden_layers=3)),
    "vit_b16": lambda: vit_b16(2, config=ViTConfig(num_hidden_layers=3)),
    "lstm_seq2seq": lambda: lstm_seq2seq(2, length=10, vocabulary=2000),
}
"""In their real width; the layers that are left out repeat the others."""


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_a_step_of_a_real_network(name: str) -> None:
    check_one_step(*REAL[name](), name=name)


@pytest.mark.slow
def test_a_step_with_auxiliary_classifiers() -> None:
    check_one_step(*googlenet(2, aux=True))
