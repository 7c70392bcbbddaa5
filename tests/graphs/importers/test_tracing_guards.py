"""What an import changes for the whole process is as it was afterwards, whoever imports beside it."""

import contextlib
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._decomp import decompositions
from torch._export.passes import replace_set_grad_with_hop_pass as cutting

from graphs.common.errors import InputError
from graphs.importers import tracing_guards as alone
from graphs.importers.from_torch import program_from_module
from graphs.importers.tracing_guards import (
    in_mode,
    own_backward_passes,
    quiet,
    short_sequences,
    states_of_lstms,
    tracing,
    without_stacks,
)

LATER_S = 60.0  # for what certainly comes
MOMENT_S = 1.0  # for what need not come
STACKS = "do_not_emit_stack_traces"  # a switch that torch 2.11 does not have


def switches() -> tuple[Any, ...]:
    """What is switched for all threads."""
    return (
        torch._C._get_mkldnn_enabled(),
        torch._C._get_nnpack_enabled(),
        torch._C._get_cudnn_enabled(),
        logging.root.manager.disable,
        list(warnings.filters),
        sys.stdout,
        sys.stderr,
        torch.autograd.Function.__dict__["apply"],
        decompositions.one_layer_lstm,
        decompositions.one_layer_rnn,
        cutting._sequential_split_and_maybe_inline_subgraphs,
        getattr(fx.config, STACKS, False),
        torch._C._ensureCUDADeviceGuardSet,
    )


class InTurns:
    """Two threads do the same: the first one leaves once the second is in it, the second once the first has left.

    ::

        first    in ──────── out
        second        in ────────── out        unless one keeps the other out
    """

    def __init__(self) -> None:
        self.inside = (threading.Event(), threading.Event())
        self.first_left = threading.Event()
        self.first: int | None = None
        self.together = False

    def meet(self) -> None:
        """Called inside, by both threads."""
        if threading.get_ident() == self.first:
            self.inside[0].set()
            self.together |= self.inside[1].wait(0 if self.together else MOMENT_S)
        else:
            self.inside[1].set()
            self.first_left.wait(MOMENT_S)

    def run(self, work: Callable[[], object]) -> None:
        """Both at once."""

        def leading() -> object:
            self.first = threading.get_ident()
            try:
                return work()
            finally:
                self.first_left.set()

        with ThreadPoolExecutor(2) as pool:
            jobs = [pool.submit(leading)]
            assert self.inside[0].wait(LATER_S)
            jobs.append(pool.submit(work))
            for job in jobs:
                job.result(LATER_S)


class Calls(nn.Module):
    """Calls something while it is traced."""

    def __init__(self, called: Callable[[], None]) -> None:
        super().__init__()
        self.called = called
        self.inner = nn.Dropout()

    def forward(self, x: Tensor) -> Tensor:
        self.called()
        result: Tensor = self.inner(x)
        return result


@pytest.mark.parametrize("training", [False, True])
def test_two_threads_trace_one_after_the_other(training: bool) -> None:
    turns, before, seen = InTurns(), switches(), set()

    def called() -> None:
        seen.add(torch._C._get_mkldnn_enabled())
        turns.meet()

    module = Calls(called)
    turns.run(lambda: program_from_module(module, (torch.ones(2),), training=training))
    assert seen == {False}  # torch.export switches oneDNN off, so there is something to put back
    assert not turns.together
    assert switches() == before
    assert torch._C._get_mkldnn_enabled()
    assert module.training
    assert module.inner.training


@contextlib.contextmanager
def modes(module: nn.Module) -> Iterator[None]:
    with in_mode(module, training=False):
        assert not module.training
        yield


@pytest.mark.parametrize("change", [quiet, own_backward_passes, tracing, lambda: modes(nn.Dropout())])
def test_each_change_is_one_threads_at_a_time(change: Callable[[], contextlib.AbstractContextManager[object]]) -> None:
    turns, before = InTurns(), switches()

    def work() -> None:
        with change():
            turns.meet()

    turns.run(work)
    assert not turns.together
    assert switches() == before


def test_threads_trace_behind_one_that_has_ended() -> None:
    """A torch for CUDA kills the second one on a host without GPUs, if left alone."""
    for training in (False, True, True):
        with ThreadPoolExecutor(1) as pool:
            traced = pool.submit(program_from_module, nn.Dropout(), (torch.ones(2),), training=training)
            assert len(traced.result(LATER_S).graph.ops) == 1


def test_a_failure_lets_the_next_one_in() -> None:
    before = switches()

    def fails() -> None:
        raise ValueError("no")

    with pytest.raises(InputError, match="cannot be traced"):
        program_from_module(Calls(fails), (torch.ones(2),))
    assert switches() == before
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: program_from_module(nn.ReLU(), (torch.ones(2),))).result(LATER_S)
    assert len(other.graph.ops) == 1


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    with quiet():
        print("a")
        print("b", file=sys.stderr)
        warnings.warn("c", stacklevel=1)
        logging.getLogger("torch").critical("d")
    assert capsys.readouterr() == ("", "")
    assert not caplog.records


# Backward passes


def function(module: str, name: str) -> Any:
    """A `torch.autograd.Function` that is said to be from a module."""
    return type(name, (torch.autograd.Function,), {"__module__": module, "forward": staticmethod(lambda _, x: x + 1)})


def test_functions_of_torch_itself_are_no_models() -> None:
    """A checkpoint keeps what came in with one; in the other kind of checkpoint the trace lacks the gradients."""
    with own_backward_passes() as found:
        for module, name in (
            ("torch._library.autograd", "Generated"),
            ("torch.utils.checkpoint", "_NoopSaveInputs"),
            ("torch.utils.checkpoint", "CheckpointFunction"),
            ("models", "_NoopSaveInputs"),
        ):
            assert function(module, name).apply(torch.ones(())) == 2
    assert found == [f"'{name}', a torch.autograd.Function" for name in ("CheckpointFunction", "_NoopSaveInputs")]


# Shapes of an LSTM


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The decomposition of torch 2.11, whatever is installed."""
    of_layer: Any = decompositions.one_layer_lstm

    def with_a_dimension(inputs: Tensor, first: Any, *args: Any, **kwargs: Any) -> Any:
        result, last = of_layer(inputs, first, *args, **kwargs)
        return result, tuple(state.reshape(1, *before.shape) for state, before in zip(last, first, strict=True))

    monkeypatch.setattr(decompositions, "one_layer_lstm", with_a_dimension)
    alone._wrong_states.cache_clear()
    yield
    alone._wrong_states.cache_clear()


def shapes_of(training: bool, **options: Any) -> list[tuple[int, ...]]:
    """Of what an LSTM returns for five steps of two samples."""
    program = program_from_module(nn.LSTM(4, 3, **options), (torch.ones(5, 2, 4),), training=training)
    return [program.graph.tensor[name].shape for name in program.graph.outputs]


@pytest.mark.usefixtures("faulty")
@pytest.mark.parametrize("training", [False, True])
def test_states_have_the_shapes_that_they_have(training: bool) -> None:
    assert shapes_of(training) == [(5, 2, 3), (1, 2, 3), (1, 2, 3)]
    assert shapes_of(training, num_layers=2, bidirectional=True) == [(5, 2, 6), (4, 2, 3), (4, 2, 3)]
    assert shapes_of(training, proj_size=1) == [(5, 2, 1), (1, 2, 1), (1, 2, 3)]


@pytest.mark.usefixtures("faulty")
def test_the_fault_is_the_one_that_is_mended() -> None:
    """And it is there again afterwards."""
    before = decompositions.one_layer_lstm
    with states_of_lstms():
        assert decompositions.one_layer_lstm is not before
    assert decompositions.one_layer_lstm is before
    with quiet():
        exported = torch.export.export(nn.LSTM(4, 3), (torch.ones(5, 2, 4),), strict=False)
    (node,) = (node for node in exported.graph.nodes if node.target is torch.ops.aten.lstm.input)
    assert [tuple(value.shape) for value in node.meta["val"]] == [(5, 2, 3), (1, 1, 2, 3), (1, 1, 2, 3)]


def test_what_is_right_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "_wrong_states", lambda: False)
    before = decompositions.one_layer_lstm
    with states_of_lstms():
        assert decompositions.one_layer_lstm is before


class Layers(nn.Module):
    """Recurrent layers of all kinds, one after the other, in both directions."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        kinds = (nn.LSTM, nn.GRU, nn.RNN)
        self.layers = nn.ModuleList(kind(6, 3, bidirectional=True, **options) for kind in kinds)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Whatever the layers return."""
        found: list[Tensor] = []
        for layer in self.layers:
            x, last = layer(x)
            found += [x, *(last if isinstance(last, tuple) else (last,))]
        return found


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "batch_first": True, "bias": False}])
def test_one_step_tells_what_all_of_them_would(
    training: bool, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def traced() -> tuple[object, ...]:
        program = program_from_module(Layers(**options), (torch.ones(5, 2, 6),), training=training)
        values = [call.node.meta["val"] for call in program.calls.values()]
        tensors = [value for of in values for value in (of if isinstance(of, tuple | list) else (of,))]
        return program.graph, [(value.shape, value.stride(), value.requires_grad) for value in tensors]

    short = traced()
    monkeypatch.setattr(alone, "short_sequences", contextlib.nullcontext)
    assert short == traced()


def test_a_sequence_takes_one_step_however_long_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        cell = getattr(decompositions, name)

        def counting(*args: Any, **kwargs: Any) -> Any:
            steps.append(name)
            return cell(*args, **kwargs)

        return counting

    alone._wrong_states()  # traces a sequence itself, once
    for name in ("lstm_cell", "gru_cell"):
        monkeypatch.setattr(decompositions, name, counted(name))
    taken = []
    for length in (4, 9):
        steps.clear()
        program_from_module(Layers(), (torch.ones(length, 2, 6),), footprints=False)
        taken.append(list(steps))
    assert taken[0] == taken[1]
    assert taken[0] == ["lstm_cell"] * 2 + ["gru_cell"] * 2  # one in each direction


@pytest.mark.parametrize(("kind", "tanhs"), [(nn.LSTM, 6), (nn.RNN, 3)])
def test_steps_that_are_recorded_are_all_recorded(kind: type[nn.Module], tanhs: int) -> None:
    with tracing(), torch.no_grad():
        exported = torch.export.export(kind(4, 2).eval(), (torch.ones(3, 1, 4),), strict=False)
        taken_apart = exported.run_decompositions()
    kinds = [node.target for node in taken_apart.graph.nodes]
    assert kinds.count(torch.ops.aten.tanh.default) == tanhs


def test_layers_are_as_they_were_afterwards() -> None:
    before = decompositions.one_layer_lstm, decompositions.one_layer_rnn
    with short_sequences():
        assert decompositions.one_layer_lstm is not before[0]
        assert decompositions.one_layer_rnn is not before[1]
    assert (decompositions.one_layer_lstm, decompositions.one_layer_rnn) == before


@pytest.mark.parametrize("had", [False, True])
def test_no_lines_of_python_are_recorded(had: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fx.config, STACKS, had, raising=False)
    with without_stacks():
        assert getattr(fx.config, STACKS) is True
    assert getattr(fx.config, STACKS) is had


class Switching(nn.Module):
    """Doubles its input without gradients, or with them whatever is around it."""

    def __init__(self, on: bool) -> None:
        super().__init__()
        self.on = on

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.on):
            y = x * 2
        return y + x


@pytest.mark.parametrize(("on", "training", "cut"), [(False, False, False), (True, False, True), (False, True, True)])
def test_a_graph_is_cut_only_where_gradients_are_switched(
    on: bool, training: bool, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts: list[fx.GraphModule] = []
    split = vars(cutting)["sequential_split"]

    def noted(module: fx.GraphModule, where: Any) -> Any:
        cuts.append(module)
        return split(module, where)

    monkeypatch.setattr(cutting, "sequential_split", noted)
    program = program_from_module(Switching(on), (torch.ones(2),), training=training)
    assert [op.kind for op in program.graph.ops] == ["aten.mul.Tensor", "aten.add.Tensor"]
    assert bool(cuts) == cut
    assert program.run(torch.ones(2)).tolist() == [3.0, 3.0]


def test_whether_torch_is_right_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    alone._wrong_states.cache_clear()
    assert isinstance(alone._wrong_states(), bool)
    assert torch.equal(torch.get_rng_state(), before)
