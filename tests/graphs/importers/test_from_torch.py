"""A module, or a .pt2 file, and the Program made from it compute the same bits."""

import gc
import inspect
import json
import logging
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import event, given, settings
from torch import Tensor, nn
from transformers import BertConfig, GPT2Config, T5Config, ViTConfig, WhisperConfig

from examples.networks import NETWORKS, bert_base, gpt2, t5, vit_b16, whisper
from graphs.common.errors import InputError
from graphs.files import graph_from_dict, graph_to_dict
from graphs.importers.from_torch import FIXED_SHAPES, program_from_exported, program_from_module
from graphs.ir import Role
from graphs.program.program import Program
from tests.graphs.importers.modules import (
    CASES,
    KEEPS_STATE,
    PICTURE,
    Branches,
    Case,
    Function,
    Residual,
    Tied,
    X,
    assert_same,
    clone,
    other_arguments,
    program_of,
    run_eagerly,
)
from tests.graphs.importers.random_programs import Steps, example, programs


def imported(case: Case) -> Program:
    return program_from_module(case.module.eval(), case.args, case.kwargs)


def kinds(program: Program) -> list[str]:
    return [op.kind.removeprefix("aten.") for op in program.graph.ops]


@pytest.mark.parametrize("name", CASES)
class TestEveryModule:
    def test_same_bits(self, name: str) -> None:
        case, program = program_of(name)
        for args, kwargs in ((case.args, case.kwargs), other_arguments(case)):
            given, state = clone((args, kwargs)), clone(dict(program.state))
            assert_same(program.run(*args, **kwargs), run_eagerly(case.module, args, kwargs))
            assert_same((args, kwargs), given)
            assert_same(dict(program.state), state)

    def test_every_operator_only_reads_what_it_is_given(self, name: str) -> None:
        _, program = program_of(name)
        assert list(program.calls) == [op.name for op in program.graph.ops]
        for call in program.calls.values():
            assert not call.node.target._schema.is_mutable  # type: ignore[union-attr]  # operators only

    def test_state_is_the_models_own(self, name: str) -> None:
        case, program = program_of(name)
        addresses = {t.data_ptr() for t in (*case.module.parameters(), *case.module.buffers())}
        constants = {"scale", "lifted_tensor_0"}
        for tensor_name, tensor in program.state.items():
            assert tensor_name in constants or tensor.data_ptr() in addresses

    def test_graph_survives_json(self, name: str) -> None:
        graph = program_of(name)[1].graph
        assert graph_from_dict(json.loads(json.dumps(graph_to_dict(graph), allow_nan=False))) == graph


@contextmanager
def collecting(every: int) -> Iterator[None]:
    """Look for objects that hold each other once there are so many new ones; never for 0."""
    before = gc.get_threshold()
    gc.set_threshold(every)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class TestModule:
    def test_the_fast_path_of_transformers_is_not_taken(self) -> None:
        """PyTorch fuses attention in evaluation mode; traced is what it does without."""
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        case = Case(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (X[None],))
        program = imported(case)
        torch.testing.assert_close(program.run(*case.args), run_eagerly(*case))
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            assert_same(program.run(*case.args), run_eagerly(*case))
        finally:
            torch.backends.mha.set_fastpath_enabled(True)

    def test_in_place_operators_become_their_twins(self) -> None:
        program = imported(Case(Branches(), (PICTURE[:, :3],)))
        assert kinds(program) == [
            "conv2d.default", "relu.default", "conv2d.default", "conv2d.default", "hardtanh.default", "cat.default",
        ]  # fmt: skip

    def test_writes_through_views_are_left_to_torch(self) -> None:
        assert "select_scatter.default" in kinds(program_of("view_then_write")[1])

    def test_a_recurrent_layer_stays_one_operator(self) -> None:
        assert [kind for kind in kinds(program_of("lstm")[1]) if "lstm" in kind] == ["lstm.input"]

    def test_a_recurrent_layer_stays_one_operator_on_torchs_way_out(self) -> None:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.lstm, self.norm = nn.LSTM(4, 4), nn.LayerNorm(4)

            def forward(self, x: Tensor) -> Tensor:
                x, _ = self.lstm(x)
                x[0] += 1
                y: Tensor = self.norm(x)
                return y

        case = Case(Net(), (X[None],))
        program = imported(case)
        assert {"lstm.input", "layer_norm.default"} < set(kinds(program))
        assert {op.module for op in program.graph.ops} == {"lstm", "norm", ""}
        assert_same(program.run(*case.args), run_eagerly(*case))

    def test_a_product_of_two_tensors_is_written_in_place(self) -> None:
        class Masked(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.randn(4, 4))

            def forward(self, x: Tensor) -> Tensor:
                y = torch.einsum("ij,jk->ik", x, self.weight)[:, :3]
                y *= 2
                return y + torch.einsum("ij,jk->ik", x, self.weight)[:, 1:]

        module = Masked()
        program = program_from_module(module, (x := torch.randn(4, 4),))
        assert torch.equal(program.run(x), module(x))

    def test_what_a_call_runs_is_traced_where_the_code_for_a_trace_fails(self) -> None:
        class Masked(nn.Module):
            def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
                if mask is None and not torch.compiler.is_compiling():
                    mask = torch.ones(x.shape[1])
                return x * mask[None]  # type: ignore[index]

        program = program_from_module(Masked(), (x := torch.randn(2, 3),))
        assert torch.equal(program.run(x), x)
        assert not torch.compiler.is_compiling()

    def test_name(self) -> None:
        assert imported(CASES["residual"]()).graph.name == "Residual"
        assert program_from_module(Residual(), (PICTURE,), name="net").graph.name == "net"

    def test_the_module_is_the_reference(self) -> None:
        case = CASES["residual"]()
        assert imported(case).module is case.module

    def test_changed_weights_count(self) -> None:
        case = Case(Tied(), (torch.tensor([0, 1]),))
        program = imported(case)
        before = program.run(*case.args)
        with torch.no_grad():
            case.module.embedding.weight.mul_(2)  # type: ignore[operator,union-attr]
        assert_same(program.run(*case.args), run_eagerly(*case))
        assert not torch.equal(program.run(*case.args), before)

    def test_evaluation_mode_is_traced_and_every_mode_put_back(self) -> None:
        module = Residual()
        module.head.eval()
        before = {name: part.training for name, part in module.named_modules()}
        assert set(before.values()) == {True, False}
        program = program_from_module(module, (PICTURE,))
        assert {name: part.training for name, part in module.named_modules()} == before
        assert_same(program.run(PICTURE), run_eagerly(module.eval(), (PICTURE,), {}))

    def test_modes_are_put_back_after_a_failure(self) -> None:
        module = nn.Sequential(nn.Dropout(), Function(lambda x: x if x.sum() > 0 else -x))
        with pytest.raises(InputError):
            program_from_module(module, (X,))
        assert module.training
        assert module[0].training

    @pytest.mark.parametrize("module", [Residual(), Function(lambda x: x if x.sum() > 0 else -x)])
    def test_global_state_is_untouched(self, module: nn.Module) -> None:
        def state() -> tuple[Any, ...]:
            switches = torch.is_grad_enabled(), torch.get_default_dtype(), torch.is_autocast_enabled("cpu")
            return *switches, logging.root.manager.disable, list(warnings.filters), random.getstate()

        logging.disable(logging.DEBUG)
        before, generator = state(), torch.get_rng_state()
        try:
            program_from_module(module, (PICTURE,)).run(PICTURE)
        except InputError:
            assert isinstance(module, Function)
        after = state()
        logging.disable(logging.NOTSET)
        assert after == before
        assert torch.equal(torch.get_rng_state(), generator)

    @pytest.mark.parametrize("training", [False, True])
    @pytest.mark.parametrize("name", ["branches", "lstm", "attention"])
    def test_imports_are_equal_wherever_tensors_lie(self, name: str, training: bool) -> None:
        case = CASES[name]()
        found = []
        lying: list[Tensor] = []
        for every in (700, 1, 0):
            with collecting(every):
                found.append(program_from_module(case.module, case.args, case.kwargs, training=training).graph)
            lying += [torch.empty(size) for size in range(1, 1000)]
            del lying[::2]
        assert found[0] == found[1] == found[2]
        assert len({graph.fingerprint for graph in found}) == 1

    @pytest.mark.parametrize("training", [False, True])
    def test_without_footprints_all_else_is_the_same(self, training: bool) -> None:
        module, (x,) = NETWORKS["mnist"]()
        whole, timed = (program_from_module(module, (x,), training=training, footprints=kept) for kept in (True, False))
        assert all(op.footprint for op in whole.graph.ops)
        without = tuple(replace(op, footprint=None) for op in whole.graph.ops)
        assert timed.graph == replace(whole.graph, ops=without)
        assert timed.updates == whole.updates

    def test_traced_without_gradients(self) -> None:
        module = Function(lambda x: x + 1 if torch.is_grad_enabled() else x - 1)
        assert kinds(program_from_module(module, (X,))) == ["sub.Tensor"]

    def test_meta_device(self) -> None:
        with torch.device("meta"):
            program = program_from_module(Tied(), (torch.zeros(1, 3, dtype=torch.long),))
        assert {t.device.type for t in program.state.values()} == {"meta"}
        assert list(program.state) == ["embedding.weight"]
        assert [t.name for t in program.graph.tensors if t.name in program.state] == ["embedding.weight"]


def line_of(function: Callable[..., Any]) -> str:
    """The first line of its body, as a refusal shows it."""
    lines, first = inspect.getsourcelines(function)
    return f"{__file__}:{first + 1}: {lines[1].strip()}"


def nothing(x: Tensor) -> Tensor:
    return x.nothing  # type: ignore[attr-defined,no-any-return]


def written_slice(x: Tensor) -> Tensor:
    x[:1] = 1
    return x


def branching(x: Tensor) -> Tensor:
    return x if torch.rand_like(x).sum() > 0 else -x


def counted(x: Tensor) -> Tensor:
    return x * x.sum().item()


def selected(x: Tensor) -> Tensor:
    return torch.nonzero(torch.rand_like(x) > 0.5)


def written(x: Tensor) -> Tensor:
    return x[torch.rand_like(x) > 0.5].mul_(2) + 1


def written_through_a_view(x: Tensor) -> Tensor:
    return written_slice(x[torch.rand_like(x) > 0.5])


def chosen(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))  # type: ignore[no-any-return]


def prints(x: Tensor) -> Tensor:
    print("in forward")
    return x + 1


def dropout_then_write(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    flat = y.view(-1)
    return torch.dropout(flat, 0.5, False).add_(1), y


def write_expanded(x: Tensor) -> Tensor:
    rows = (x[0] * 2).expand_as(x)
    rows[0] = x[0]
    return rows


def write_windows(x: Tensor) -> Tensor:
    y = x * 2
    y.unfold(0, 2, 1).relu_()
    return y


def autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x


class Learner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        self.weight.add_(1)
        return x * self.weight


class Counter(nn.Module):
    count: Tensor

    def __init__(self, write: Callable[["Counter"], None]) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4))
        self.write = write

    def forward(self, x: Tensor) -> Tensor:
        self.write(self)
        return x + self.count


def add_in_place(counter: Counter) -> None:
    counter.count.add_(1)


def assign(counter: Counter) -> None:
    counter.count = counter.count + 1


def add_through_dropout(counter: Counter) -> None:
    torch.dropout(counter.count, 0.5, False).add_(1)


def normalise(counter: Counter) -> None:
    nn.functional.batch_norm(torch.ones(4, 4), counter.count, torch.ones(4), training=True)


REFUSED: dict[str, tuple[nn.Module, str]] = {
    "untraceable": (
        Function(branching),
        f"cannot be traced by torch.export ({line_of(branching)}): what comes next depends on the values of tensors; "
        "compute with tensors there (torch.where for an if, a mask for a selection, every expert on all rows), or pass "
        "the number in as an argument",
    ),
    "raises": (
        Function(nothing),
        f"cannot be traced by torch.export ({line_of(nothing)}): 'FakeTensor' object has no attribute 'nothing'; see "
        "that the model itself takes these inputs; make its forward free of control flow that depends on tensor "
        "values, or export it yourself to .pt2",
    ),
    "raises in a part": (
        nn.Sequential(nn.ReLU(), Function(nothing)),
        f"cannot be traced by torch.export in '1' ({line_of(nothing)}): 'FakeTensor' object has no attribute "
        "'nothing'; see that the model itself takes these inputs; make its forward free of control flow that depends "
        "on tensor values, or export it yourself to .pt2",
    ),
    **{
        f"shape or number that depends on values: {function.__name__}": (
            nn.Sequential(Function(function)),
            f"has shapes that follow from what it computes ({line_of(function)}); {FIXED_SHAPES}",
        )
        for function in (selected, written, written_through_a_view, counted)
    },
    "control flow": (
        Function(chosen),
        "has control flow that depends on tensor values ('true_graph_0'), which cannot be placed; "
        "import a model without it",
    ),
    "autocast": (
        Function(autocast),
        "enables torch.autocast in its forward ('submod_1'), which casts while it runs; cast the model as a whole, "
        "for example by model.to(torch.bfloat16)",
    ),
    "writes a buffer": (Counter(add_in_place), KEEPS_STATE.format("count")),
    "assigns a buffer": (Counter(assign), KEEPS_STATE.format("count")),
    "writes a buffer unsaid": (Counter(normalise), KEEPS_STATE.format("count")),
    "writes a parameter": (Learner(), KEEPS_STATE.format("weight")),
    "writes an input": (Function(lambda x: x.relu_()), KEEPS_STATE.format("args_0")),
    "writes an input through a view": (Function(lambda x: x.view(-1).relu_()), KEEPS_STATE.format("args_0")),
    "written behind a copy that may be none": (
        Function(dropout_then_write),
        "writes in place ('add_') to what it reads again through an operator that copies at times only, like dropout; "
        "write out of place there (x = x + 1 for x += 1)",
    ),
    "writes a buffer behind a copy that may be none": (
        Counter(add_through_dropout),
        "writes in place ('add_') to what it reads again through an operator that copies at times only, like dropout; "
        "write out of place there (x = x + 1 for x += 1)",
    ),
    "writes what shows an element twice": (
        Function(write_expanded),
        "writes in place ('copy_') to a tensor of which several elements are one in memory, as after expand; "
        "write out of place there (x = x + 1 for x += 1)",
    ),
    "writes windows that overlap": (
        Function(write_windows),
        "writes in place ('relu_') to a tensor of which several elements are one in memory, as after expand; "
        "write out of place there (x = x + 1 for x += 1)",
    ),
    "cannot be removed": (
        Function(lambda x: nn.functional.instance_norm(x[None], torch.zeros(4), torch.ones(4))),
        "has in-place operators that torch.export cannot remove; rewrite them",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    module, text = REFUSED[name]
    with pytest.raises(InputError) as error:
        program_from_module(module, (X,))
    assert str(error.value) == f"model '{type(module).__name__}' {text}"
    assert capfd.readouterr() == ("", "")
    assert logged(caplog) == []
    if isinstance(module, Counter):
        assert module.count.tolist() == [0, 0, 0, 0]


def test_what_torch_itself_fails_to_remove_is_refused() -> None:
    text = (
        r"^model 'Function' has in-place operators that torch.export cannot remove: .+; write out of place there \(x = "
    )
    with pytest.raises(InputError, match=text):
        program_from_module(Function(lambda x: x.t_()), (X,))


def test_success_is_silent_too(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    imported(CASES["lstm"]())  # torch.export warns about the list of its weights
    imported(CASES["view_then_write"]())
    imported(Case(Function(prints), (X,)))
    assert capfd.readouterr() == ("", "")
    assert logged(caplog) == []


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What a user could see; torch notes every step for its own debugging tools."""
    return [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG]


@pytest.mark.slow
@settings(max_examples=40)
@given(programs())
def test_a_random_program_gives_the_same_or_is_refused(program: Steps) -> None:
    want = program.execute(example())
    try:
        imported = program_from_module(program.module(), (example(),))
    except InputError as error:
        event("refused")
        writes = any(step.target._schema.is_mutable for step in program.steps)
        if not (writes and ("writes to 'x'" in str(error) or "copies at times only" in str(error))):
            raise
    else:
        assert_same(imported.run(example()), want)


FAST = ("mnist", "cifar10")
LEFT_OUT = ("llama", "mixtral", "resnet152", "vgg16", "vgg19")
"""Networks of several GB, or with more of the layers of others; see tests/examples."""

REAL = {name: factory for name, factory in NETWORKS.items() if name not in LEFT_OUT} | {
    "bert_base": lambda: bert_base(config=BertConfig(num_hidden_layers=2)),
    "gpt2": lambda: gpt2(config=GPT2Config(n_layer=2)),
    "t5": lambda: t5(config=T5Config(num_layers=2)),
    "vit_b16": lambda: vit_b16(config=ViTConfig(num_hidden_layers=2)),
    "whisper": lambda: whisper(config=WhisperConfig(encoder_layers=2, decoder_layers=2)),
}
"""In their real width; the layers that are left out repeat the others."""


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in REAL]
)
def test_real_networks_give_the_same_bits(name: str) -> None:
    module, inputs = REAL[name]()
    program = program_from_module(module, inputs, name=name, footprints=False)
    assert_same(program.run(*inputs), run_eagerly(module, inputs, {}))
    n_parameters = sum(t.n_elements for t in program.graph.tensors if t.role is Role.PARAMETER)
    assert n_parameters == sum(p.numel() for p in module.parameters())


def test_an_exported_program_keeps_its_own_graph() -> None:
    case = CASES["grad_blocks"]()
    with torch.no_grad():
        exported = torch.export.export(case.module, case.args, strict=False)
    before = str(exported.graph_module.graph)
    program = program_from_exported(exported, "net")
    assert str(exported.graph_module.graph) == before
    assert_same(program.run(*case.args), run_eagerly(*case))
    assert_same(program.module(*case.args), run_eagerly(*case))
