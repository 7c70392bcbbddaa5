"""Measuring operators: which, where and how often; not how long they take."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from costmodels.calibrate import Effort, ops, profile_program
from costmodels.calibrate.fingerprint import fingerprint_of, machine_of
from costmodels.calibrate.ops import _dead_after, _pooled, _Run
from costmodels.calibrate.pinned import run_on
from costmodels.measured import Measurement, op_keys, read_profile, write_profile
from graphs.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.importers.program import Program
from tests.costmodels.calibrate.hosts import CORE, device

QUICK = Effort(passes=3, least_s=0)


class Twice(nn.Module):
    """Two equal layers, an operator with several outputs of which one is not read, and one that makes a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        head, _, tail = self.second(self.first(x)).split(2, dim=1)
        return torch.cat([head + tail, torch.ones(4, 2)], dim=1)


@pytest.fixture(scope="module")
def program() -> Program:
    return program_from_module(Twice(), (torch.ones(4, 6),))


def test_every_operator_is_measured_and_equal_ones_share(program: Program) -> None:
    profile = profile_program(program, device(), QUICK)
    keys = op_keys(program.graph)
    assert profile.ops.keys() == set(keys)
    assert all(m.seconds > 0 and m.spread >= 0 for m in profile.ops.values())
    linear = next(key for key in keys if "linear" in key)
    assert keys.count(linear) == 2
    assert {key: m.count for key, m in profile.ops.items()} == {key: 3 * keys.count(key) for key in keys}


def test_a_profile_belongs_to_the_machine_and_can_be_kept(program: Program, tmp_path: Path) -> None:
    profile = profile_program(program, device(), QUICK)
    assert profile.machine == machine_of(device())
    assert profile.fingerprint == fingerprint_of(profile.machine)
    write_profile(tmp_path, profile)
    assert read_profile(tmp_path, profile.fingerprint) == profile


def test_a_device_calibrated_elsewhere_is_refused(program: Program) -> None:
    here = fingerprint_of(machine_of(device()))
    assert profile_program(program, device(profile=here), QUICK).fingerprint == here
    with pytest.raises(InputError) as error:
        profile_program(program, device(profile="abc"), QUICK)
    assert str(error.value) == (
        f"device 'cpu0' has the profile 'abc', this host and its software are '{here}'; calibrate again"
    )


def test_the_work_happens_on_a_bound_thread(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[int, tuple[int, ...], int, bool]] = set()
    timed = _Run._timed

    def spied(self: _Run, *args: object) -> object:
        cores = tuple(os.sched_getaffinity(0))
        seen.add((threading.get_ident(), cores, torch.get_num_threads(), torch.is_grad_enabled()))
        return timed(self, *args)  # type: ignore[arg-type]  # handed on as they came

    monkeypatch.setattr(_Run, "_timed", spied)
    before = os.sched_getaffinity(0), torch.get_num_threads()
    profile_program(program, device(), QUICK)
    ((thread, cores, n_threads, inference),) = seen
    assert thread != threading.get_ident()
    assert (cores, n_threads, inference) == ((CORE,), 1, False)
    assert (os.sched_getaffinity(0), torch.get_num_threads()) == before


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


def test_a_pass_marks_before_and_after_each_operator(program: Program) -> None:
    clock = Ticks()
    n_ops = len(program.graph.ops)
    assert _Run(program, torch.device("cpu"), clock).one_pass() == [1.0] * n_ops
    assert (clock.marks, clock.settled) == (2 * n_ops, 1)


def test_what_nobody_reads_any_more_is_dropped(program: Program) -> None:
    graph = program.graph
    dead = _dead_after(program)
    assert {name for names in dead for name in names} == {n for op in graph.ops for n in op.outputs} - set(
        graph.outputs
    )
    for i, names in enumerate(dead):
        for name in names:
            assert not any(name in op.inputs for op in graph.ops[i + 1 :])
            assert name in (*graph.ops[i].inputs, *graph.ops[i].outputs)


def test_equal_operators_have_the_mean_of_their_medians() -> None:
    # passes (rows) of three operators: medians 2, 6, 5; quartiles 1.5 to 2.5, 5 to 7, 5 to 5
    seconds = np.array([[1.0, 4.0, 5.0], [2.0, 6.0, 5.0], [3.0, 8.0, 5.0]])
    assert _pooled(("same", "same", "other"), seconds) == {
        "same": Measurement(seconds=4.0, spread=0.38, count=6),  # (1 + 2) / 2 / 4
        "other": Measurement(seconds=5.0, spread=0.0, count=3),
    }


@pytest.mark.parametrize(
    ("effort", "passes"),
    [
        (Effort(passes=3, least_s=0, most_s=60), 3),
        (Effort(passes=1, least_s=0, most_s=60), 1),
        (Effort(passes=1000, least_s=60, most_s=0), 1),  # no second pass when the time is up
    ],
)
def test_effort_is_passes_within_a_time(program: Program, effort: Effort, passes: int) -> None:
    steps: list[tuple[str, int, int]] = []
    profile = profile_program(program, device(), effort, lambda *step: steps.append(step))
    assert {m.count for key, m in profile.ops.items() if "cat" in key} == {passes}
    assert len(steps) == passes
    assert {what for what, _, _ in steps} == {"measuring Twice on cpu0"}
    assert [done for _, done, _ in steps[:-1]] == sorted(done for _, done, _ in steps[:-1])
    assert all(done < total for _, done, total in steps[:-1])
    assert steps[-1][1] == steps[-1][2]


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
    monkeypatch.setattr(ops, "free_bytes", lambda _: 100)
    with pytest.raises(InputError) as error:
        profile_program(shapes_only(), device(), QUICK)
    assert str(error.value) == (
        "model 'Lookup' takes 184 B, of which 100 B are free; "  # 10 * 4 * 4 + 3 * 8
        "it cannot be measured as a whole here: plan without measuring"
    )


@pytest.mark.parametrize("make", [lambda: nn.LSTM(3, 4), lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))])
def test_the_results_are_those_of_the_model(make: Callable[[], nn.Module]) -> None:
    module = make().eval()
    x = torch.rand(2, 1, 3) if isinstance(module, nn.LSTM) else torch.rand(1, 1, 5, 5)
    program = program_from_module(module, (x,))
    kept: dict[str, torch.Tensor] = {}

    class Kept(_Run):
        def _timed(self, op, env, dead):  # type: ignore[no-untyped-def]  # as in the class itself
            marks = super()._timed(op, env, dead)
            kept.update({name: env[name] for name in program.graph.outputs if name in env})
            return marks

    run_on(device(), lambda: Kept(program, torch.device("cpu"), Ticks()).one_pass())
    with torch.no_grad():
        expected = torch.utils._pytree.tree_leaves(module(x))
    got = torch.utils._pytree.tree_leaves(program.unflatten(kept))
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
