"""One pass over a program: what is run, what is timed, and that the results are those of the model."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from costmodels.calibrate import MeasurementEffort, profile_program, runs
from costmodels.calibrate.clock import Clock, clock_of
from costmodels.calibrate.runs import Inference, Training, _call_s, _mark_s
from costmodels.host import affinity as pinned
from costmodels.host import packing
from costmodels.host.affinity import Stopped, run_on
from costmodels.operators.keys import op_keys, training_keys
from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from graphs.rewrites.fuse import find_fusions
from tests.costmodels.calibrate.hosts import device
from tests.graphs.importers.modules import Turned

QUICK = MeasurementEffort(passes=3, least_s=0)
CPU = torch.device("cpu")


class Ticks:
    """A clock that counts its marks."""

    def __init__(self) -> None:
        self.marks = 0
        self.settled = 0

    def mark(self) -> int:
        self.marks += 1
        return self.marks

    def settle(self) -> None:
        self.settled += 1

    def seconds(self, start: int, end: int) -> float:
        assert self.settled
        return float(end - start)

    @property
    def clock(self) -> Clock:
        return Clock(self.mark, self.settle, self.seconds)


@pytest.mark.parametrize("kind", [Inference, Training])
def test_inputs_that_the_network_does_not_take(kind: type[Inference] | type[Training]) -> None:
    beyond = program_from_module(nn.Embedding(10, 4), (torch.tensor([3, 40]),))
    with pytest.raises(
        InputError, match=r"^operator 'embedding' \(aten.embedding.default\) fails with the example inputs"
    ):
        kind(beyond, CPU, Ticks().clock).one_pass()


def test_a_pass_marks_behind_each_operator(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_mark_s", lambda _: 0.0)
    ticks = Ticks()
    n_ops = len(program.graph.ops)
    assert Inference(program, CPU, ticks.clock).one_pass() == [[1.0] * n_ops]
    assert (ticks.marks, ticks.settled) == (1 + n_ops, 1)


def test_a_mark_is_taken_off_what_an_operator_takes(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _mark_s(Ticks().clock) == 1.0
    assert Inference(program, CPU, Ticks().clock).one_pass() == [[0.0] * len(program.graph.ops)]
    monkeypatch.setattr(runs, "_mark_s", lambda _: 0.25)
    assert Inference(program, CPU, Ticks().clock).one_pass() == [[0.75] * len(program.graph.ops)]


def test_a_pass_may_end_early(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_mark_s", lambda _: 0.0)
    assert Inference(program, CPU, Ticks().clock, n_ops=2).one_pass() == [[1.0, 1.0]]


@pytest.mark.parametrize("kind", [Inference, Training])
def test_a_pass_stops_when_it_is_told_to(
    program: Program, kind: type[Inference] | type[Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_call_s", lambda *_: 0.0)
    monkeypatch.setattr(runs, "_mark_s", lambda *_: 0.0)

    class Telling(Ticks):
        """Tells its own thread to stop at the fourth mark."""

        def mark(self) -> int:
            if self.marks == 3:
                pinned._THREAD.stop_event.set()
            return super().mark()

    telling = Telling()
    with pytest.raises(Stopped):
        run_on(device(), lambda: kind(program, CPU, telling.clock).one_pass())
    assert telling.marks == 4


def test_what_nobody_reads_any_more_is_dropped(program: Program) -> None:
    graph, run = program.graph, Inference(program, CPU, clock_of(device()))
    for cut in range(len(graph.ops) + 1):
        env = dict(run.given)
        run.run(env, 0, cut)
        read = {name for op in graph.ops[cut:] for name in op.inputs} | set(graph.outputs)
        written = {name for op in graph.ops[:cut] for name in op.outputs}
        assert env.keys() - program.state.keys() == (written | set(graph.inputs)) & read
        run.run(env, cut, len(graph.ops))
        assert env.keys() - program.state.keys() == set(graph.outputs)


def test_an_operator_that_fails_in_a_pass_is_named() -> None:
    program = program_from_module(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)), torch.rand(1, 3))
    run = Inference(program, CPU, clock_of(device()))
    env = run.given | {program.graph.inputs[0]: torch.rand(1, 4)}
    with pytest.raises(InputError, match=r"^operator 'linear' \(aten.linear.default\) fails with the example inputs: "):
        run.run(env, 0, 3)


def shapes_only() -> Program:
    """A network on the meta device, as importing a config makes it."""

    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 4)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.table(tokens) @ torch.zeros(4, 2, device=tokens.device)  # type: ignore[no-any-return]  # a tensor

    with torch.device("meta"):
        return program_from_module(Lookup(), (torch.zeros(3, dtype=torch.long),))


def test_a_network_without_values_gets_some() -> None:
    program = shapes_only()
    assert all(tensor.is_meta for tensor in program.state.values())
    assert profile_program(program, device(), QUICK).ops.keys() == set(op_keys(program.graph))


def test_a_network_without_values_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "free_bytes", lambda _: 100)
    with pytest.raises(InputError) as error:
        profile_program(shapes_only(), device(), QUICK)
    assert str(error.value) == (
        "model 'Lookup' takes 184 B, of which 100 B are free; "  # 10 * 4 * 4 + 3 * 8
        "it cannot be measured as a whole here: plan without measuring"
    )


def test_weights_that_cannot_be_packed_beside_the_model_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_from_module(nn.Linear(256, 256).eval(), torch.zeros(64, 256))
    monkeypatch.setattr(packing, "free_bytes", lambda _: 100)
    quick = replace(device(), kernels="quick")
    with pytest.raises(
        InputError, match=r"has 256 KiB of weights that quick kernels copy, and 100 B are free; calibrate"
    ):
        profile_program(program, quick, QUICK)
    assert profile_program(program, device(), QUICK).ops


def test_packs_that_read_no_weights_take_no_room() -> None:
    program = program_from_module(nn.LSTM(3, 4).eval(), torch.rand(2, 1, 3))  # its first state is computed once
    fused = replace(program, graph=find_fusions(program.graph)(program.graph))
    quick = replace(device(), kernels="quick")
    assert profile_program(fused, quick, QUICK).ops.keys() == set(op_keys(fused.graph))


@pytest.mark.parametrize(
    ("make", "x"),
    [
        (lambda: nn.LSTM(3, 4), torch.rand(2, 1, 3)),
        (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), torch.rand(1, 1, 5, 5)),
        (Turned, torch.randn(2, 3, 16)),
    ],
)
def test_the_results_are_those_of_the_model(make: Callable[[], nn.Module], x: torch.Tensor) -> None:
    module = make().eval()
    program = program_from_module(module, (x,))

    def results() -> dict[str, torch.Tensor]:
        run = Inference(program, CPU, clock_of(device()))
        env = dict(run.given)
        run.run(env, 0, len(run.ops))
        return env

    kept = run_on(device(), results)
    expected = torch.utils._pytree.tree_leaves(run_on(device(), lambda: module(x)))
    got = torch.utils._pytree.tree_leaves(program.unflatten(kept))
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


class Branching(nn.Module):
    """A parameter with two readers, an input beside parameters, a view, an output that others read as well."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3, 3))
        self.embedding = nn.Embedding(5, 3)
        self.norm = nn.LayerNorm(3)

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = x @ self.weight
        b = self.norm(a.t().contiguous() @ self.weight)
        return torch.cat([a, b]).relu(), nn.functional.dropout(b + self.embedding(i), 0.5, training=False)


def test_the_gradients_are_those_of_the_model() -> None:
    module = Branching()
    inputs = torch.rand(3, 3), torch.tensor([0, 2, 4])
    program = program_from_module(module, inputs)

    def two_passes() -> dict[str, torch.Tensor | None]:
        run = Training(program, CPU, Ticks().clock)
        forward, backward = run.one_pass()
        assert len(forward) == len(backward) == len(program.graph.ops)
        run.one_pass()
        return {name: tensor.grad for name, tensor in run.given.items()}

    got = run_on(device(), two_passes)
    results = module(*inputs)
    torch.autograd.backward(results, [torch.ones_like(result) for result in results])
    expected = {name: parameter.grad for name, parameter in module.named_parameters()}
    assert len(expected) == 4
    for name, gradient in expected.items():
        assert gradient is not None
        torch.testing.assert_close(got[name], 2 * gradient)  # of two micro-batches
    assert all(got[name] is None for name in program.graph.inputs)
    assert all(parameter.requires_grad for parameter in module.parameters())  # the model's own are left alone


@pytest.mark.parametrize("cut", [1, 3, 6])
def test_parts_one_after_the_other_read_what_the_whole_reads(cut: int) -> None:
    """What comes back from a part is ones, so that only the last one's gradients are the model's."""
    inputs = torch.rand(3, 3), torch.tensor([0, 2, 4])
    program = program_from_module(Branching(), inputs)
    n = len(program.graph.ops)

    def in_parts() -> tuple[list[list[list[float]]], dict[str, torch.Tensor]]:
        run = Training(program, CPU, Ticks().clock)
        env = dict(run.given)
        return [run.run(env, 0, cut), run.run(env, cut, n)], env

    parts, env = run_on(device(), in_parts)
    assert [[len(phase) for phase in part] for part in parts] == [[cut, cut], [n - cut, n - cut]]
    expected = program.run(*inputs)
    for name, tensor in zip(program.graph.outputs, expected, strict=True):
        assert torch.equal(env[name], tensor)
        assert env[name].is_leaf  # whoever goes on from it goes back to it and no further
        assert env[name].grad is None
        assert env[name].requires_grad


class Trained(nn.Module):
    """A batch norm, whose statistics are written, and dropout, which draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.layer(self.norm(x)), 0.5, self.training)


@pytest.mark.parametrize("training", [False, True])
def test_a_network_as_it_is_trained_is_left_as_it_was(training: bool) -> None:
    module, x = Trained(), torch.rand(5, 3)
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    program = program_from_module(module, (x,), training=True)
    generator = torch.get_rng_state()
    run = run_on(device(), lambda: _ran(Training if training else Inference, program))
    assert all(torch.equal(tensor, state[name]) for name, tensor in module.state_dict().items())
    if training:
        assert torch.equal(torch.get_rng_state(), generator)
    module.train()(x)
    for name in program.statistics:  # what was updated is a copy
        torch.testing.assert_close(run.given[name], module.state_dict()[name])


def _ran(kind: type[Inference] | type[Training], program: Program) -> Inference | Training:
    run = kind(program, CPU, Ticks().clock)
    run.one_pass()
    return run


def test_the_gradients_are_those_of_the_module_in_training() -> None:
    module, x = Trained(), torch.rand(5, 3)
    program = program_from_module(module, (x,), training=True)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        run = run_on(device(), lambda: _ran(Training, program))
        torch.default_generator.manual_seed(1)
        result = module(x)
    result.backward(torch.ones_like(result))
    for name, parameter in module.named_parameters():
        gradient = run.given[name].grad
        assert gradient is not None
        torch.testing.assert_close(gradient, parameter.grad)


def test_the_call_itself_is_taken_off_what_goes_back(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_call_s", lambda *_: 0.25)
    keys = training_keys(program.graph)
    _, backward = run_on(device(), lambda: Training(program, CPU, Ticks().clock).one_pass())
    # an operator takes one tick; what makes ones reads nothing that gets a gradient
    assert backward == [0.75 if "+grad" in key else 0.0 for key in keys]
    assert 0.0 in backward
    monkeypatch.setattr(runs, "_call_s", lambda *_: 5.0)
    assert set(run_on(device(), lambda: Training(program, CPU, Ticks().clock).one_pass())[1]) == {0.0}


def test_a_call_of_the_engine_takes_longer_than_one_operators_way_back() -> None:
    assert 0 < run_on(device(), lambda: _call_s(CPU, clock_of(device()))) < 1


def test_what_gets_no_gradient_takes_no_time_backward() -> None:
    class FirstReads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x.exp()).relu()  # type: ignore[no-any-return]  # a tensor

    program = program_from_module(FirstReads(), (torch.rand(64, 64),))
    profile = profile_program(program, device(), QUICK, training=True)
    keys = training_keys(program.graph)
    assert keys[0] == op_keys(program.graph)[0]  # exp reads the input only
    assert not profile.ops
    assert profile.training.keys() == set(keys)
    back = [profile.training[key].backward.seconds for key in keys]
    assert all(profile.training[key].forward.seconds > 0 for key in keys)
    assert back[1] > 0
    assert back[2] > 0
    assert back[0] == 0


def test_an_operator_without_a_backward_pass_is_named() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.heaviside(self.weight, x)

    program = program_from_module(Odd(), (torch.rand(3),))
    with pytest.raises(InputError) as error:
        profile_program(program, device(), QUICK, training=True)
    assert str(error.value).startswith("operator 'heaviside' (aten.heaviside.default) has no backward pass here: ")
    assert str(error.value).endswith("; measure without training")
