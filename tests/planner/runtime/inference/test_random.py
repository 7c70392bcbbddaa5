"""Operators that draw random numbers in inference: the same on any placement, by seed, micro-batch and operator."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F  # noqa: N812  # its usual name

from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.program.program import Program
from planner.runtime.benchmark.check import Answers, compare_outputs
from planner.runtime.inference.inline_engine import InlineEngine
from planner.runtime.inference.runner import Runner
from planner.runtime.stages.random_generators import draw_seed
from planner.runtime.start import start
from planner.runtime.verification.verify import verify
from simulator.placement import Placement
from tests.planner.runtime.bits import differences
from tests.planner.runtime.distributed.ranks import joined
from tests.planner.runtime.small import alternating, cpu, desk, make_plan, with_device
from tests.simulator.tables import placements

X = torch.linspace(-1.0, 1.0, 12).reshape(1, 2, 6)


class Chance(nn.Module):
    """Drops, adds noise and draws places, though it is in evaluation mode; two operators are of one kind."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = F.dropout(self.linear(x), 0.5, training=True)
        y = y + torch.rand_like(x) - torch.bernoulli(torch.full_like(x, 0.5)) + torch.randn(6)
        y = F.dropout(F.scaled_dot_product_attention(y, y, y, dropout_p=0.25), 0.5, training=True)
        return y, torch.multinomial(y[0].softmax(-1), 3)


def chance() -> Program:
    torch.manual_seed(0)
    return program_from_module(Chance().eval(), (X,))


PROGRAM = chance()
ALONE = Placement((0,) * len(PROGRAM.graph.ops))


def answers_of(placement: Placement, count: int, seed: int = 0) -> list[tuple[torch.Tensor, ...]]:
    with Runner(make_plan(PROGRAM, placement), PROGRAM, seed=seed) as runner:
        return list(runner.stream([X] * count))


def test_the_first_numbers_by_hand() -> None:
    class Noise(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.rand_like(x)

    program = program_from_module(Noise(), (X,))
    with Runner(make_plan(program, Placement((1,))), program, seed=7) as runner:
        assert runner.begun == 0
        for number in range(3):
            generator = torch.Generator().manual_seed(
                draw_seed(7, 0, number, 0)
            )  # seed, no step, micro-batch, operator
            assert torch.equal(runner(X), torch.empty_like(X).uniform_(generator=generator))
        assert runner.begun == 3


@settings(max_examples=8)
@given(data=st.data())
def test_any_placement_gives_the_same_numbers(data: st.DataObject) -> None:
    placement = data.draw(placements(make_plan(PROGRAM, ALONE).table, copies=3))
    assert differences(answers_of(ALONE, 4), answers_of(placement, 4)) == []


def test_so_do_ranks_whose_seed_is_the_fronts() -> None:
    expected = answers_of(ALONE, 4, seed=3)
    with joined(make_plan(PROGRAM, alternating(PROGRAM)), PROGRAM, seed=3) as ranks:
        assert differences(expected, list(ranks.runner.stream([X] * 4))) == []
        assert not compare_outputs(ranks.runner).wrong
        assert ranks.runner.begun == 5


@pytest.mark.slow
def test_so_do_processes() -> None:
    with start(make_plan(PROGRAM, alternating(PROGRAM, 2)), PROGRAM, processes=True, seed=3) as runner:
        assert differences(answers_of(ALONE, 4, seed=3), list(runner.stream([X] * 4))) == []
        assert not compare_outputs(runner).wrong


def test_other_seeds_and_other_micro_batches_draw_others() -> None:
    drawn = [first for seed in (0, 1) for first, _ in answers_of(ALONE, 3, seed)]
    assert all(not torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])


def test_nobody_else_can_disturb_them_nor_is_disturbed() -> None:
    expected = answers_of(ALONE, 2)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    assert differences(expected, answers_of(alternating(PROGRAM), 2)) == []
    assert torch.equal(torch.get_rng_state(), before)


def test_on_the_calling_thread() -> None:
    plan = make_plan(PROGRAM, ALONE)
    everything = with_device(plan, 0, replace(cpu("cpu0"), cores=tuple(range(torch.get_num_threads()))))
    with Runner(plan, PROGRAM) as runner:
        expected = runner(X)
    engine = InlineEngine(everything.cluster.devices, runner._engine._stages, PROGRAM.graph.outputs)  # type: ignore[union-attr]
    got = engine.submit({PROGRAM.graph.inputs[0]: X}).result()
    engine.close()
    assert differences(expected, tuple(got[name] for name in PROGRAM.graph.outputs)) == []


# Compared with the reference model


def test_the_answers_are_compared_micro_batch_by_micro_batch() -> None:
    with Runner(make_plan(PROGRAM, alternating(PROGRAM)), PROGRAM, seed=5) as runner:
        for _ in range(3):
            assert compare_outputs(runner) == Answers(())
        runner(X)
        assert not compare_outputs(runner).wrong
        runner.seed = 6  # which the engine does not know
        assert compare_outputs(runner).wrong[0].startswith("output [0] differs in ")


def test_why_they_cannot_be() -> None:
    with Runner(make_plan(PROGRAM, alternating(PROGRAM, 2), desk(2)), PROGRAM) as runner:
        runner.plan = with_device(runner.plan, 1, replace(cpu("cpu1", cores=()), cuda=0))
        found = compare_outputs(runner)
    assert found == Answers((), unknown="operators draw other random numbers on a GPU than on a CPU")


def test_every_cut_is_verified() -> None:
    found = verify(make_plan(PROGRAM, alternating(PROGRAM)), PROGRAM)
    assert found.equal
    assert found.n_stages == len(PROGRAM.graph.ops)


# What is refused


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_seeds_that_are_none(seed: int) -> None:
    plan = make_plan(PROGRAM, ALONE)
    for processes in (False, True):
        with pytest.raises(InputError) as error:
            start(plan, PROGRAM, processes=processes, seed=seed)
        assert str(error.value) == f"the seed is {seed}; it must be 0 or more, and less than 2**63"


@torch.library.custom_op("planner_tests::hiss", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def hiss(x: torch.Tensor) -> torch.Tensor:
    """An operator of a user that draws from the generator that all share."""
    return x + torch.randn_like(x)


@hiss.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_what_cannot_be_seeded() -> None:
    class Hiss(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = hiss(x)
            return result

    program = program_from_module(Hiss(), (X,))
    with pytest.raises(InputError, match=r"operator 'hiss' .* draws random numbers that cannot be seeded"):
        start(make_plan(program, Placement((0,))), program)
