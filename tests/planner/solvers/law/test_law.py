"""A few hundred random problems of every kind under the law; `tests/benchmarks/attack.py` takes thousands."""

from math import inf
from random import Random

import pytest

from planner.literature.placement.offload import OffloadTable
from planner.problem.problem import Goal, Problem
from planner.problem.result import Status
from planner.solvers.base import objective_of
from simulator.placement import Placement
from tests.planner.problem.problems import make_table
from tests.planner.solvers.law.law import Claim, break_law, broken
from tests.planner.solvers.law.random_problems import KINDS, random_problem
from tests.planner.solvers.law.truth import Truth

PROBLEMS = 30


@pytest.mark.attack("proof")
@pytest.mark.parametrize("kind", KINDS)
def test_what_solvers_claim_is_true(kind: str) -> None:
    assert [str(claim) for claims in break_law([kind], range(PROBLEMS)) for claim in claims] == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_judge_says_what_is_true(kind: str) -> None:
    for seed in range(PROBLEMS):
        problem, random = random_problem(kind, seed), Random(seed)
        truth, devices = Truth(problem), range(problem.table.n_devices)
        for _ in range(5):
            placement = Placement(tuple(random.choice(devices) for _ in problem.table.ops), random.choice(truth.orders))
            assert objective_of(problem, placement) == pytest.approx(truth.seconds(placement.device, placement.order))


def test_the_same_seed_gives_the_same_problem() -> None:
    for kind in KINDS:
        one, other = (random_problem(kind, 7).table for _ in range(2))
        assert one.forward_s.tolist() == other.forward_s.tolist()
        assert (one.flows, one.together) == (other.flows, other.together)


def test_problems_are_as_hard_as_they_can_be_small() -> None:
    problems = [random_problem(kind, seed) for kind in KINDS for seed in range(PROBLEMS)]
    tables = [problem.table for problem in problems]
    offloads = [table.offload for table in tables if isinstance(table, OffloadTable)]
    for number in (0, 1, 2):
        assert any(offload.host.sum() == number for offload in offloads)
    assert any((offload.store_s != offload.fetch_s).any() for offload in offloads)
    assert any(inf in table.forward_s for table in tables)
    assert any(len(table.together) > 1 for table in tables)
    assert any(not table.linked.all() for table in tables)
    assert any(not table.link_s.all() for table in tables if table.flows)
    assert any((table.slowdown == 3).any() for table in tables)
    assert any((table.slowdown < 0).any() for table in tables)
    assert {table.sharing for table in tables} == {"fifo", "fair", "unlimited"}
    assert {problem.goal for problem in problems} == set(Goal) - {Goal.GENERATION}
    infeasible = sum(Truth(problem).least_s == inf for problem in problems)
    assert 0.05 < infeasible / len(problems) < 0.25


# 3 | 2 on two devices of which each can hold one operator; 3 s is the least
LEAST_IS_3 = Truth(Problem(make_table([[3, 4], [9, 2]], op_bytes=[1, 1], capacity_bytes=[1, 1]), Goal.THROUGHPUT))
NOTHING = Truth(Problem(make_table([[3], [2]], op_bytes=[1, 1], capacity_bytes=[1]), Goal.THROUGHPUT))
BEST, WORSE, TOO_MUCH = Placement((0, 1)), Placement((1, 0)), Placement((0, 0))


@pytest.mark.parametrize(
    ("truth", "claim"),
    [
        (LEAST_IS_3, Claim(BEST, 3.0, 3.0, Status.OPTIMAL)),
        (LEAST_IS_3, Claim(WORSE, 9.0, 2.9, Status.FEASIBLE)),
        (LEAST_IS_3, Claim(None, inf, 0.0, Status.UNKNOWN)),
        (NOTHING, Claim(None, inf, inf, Status.INFEASIBLE)),
    ],
)
def test_what_is_true_is_not_called_broken(truth: Truth, claim: Claim) -> None:
    assert list(broken(truth, claim)) == []


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        (Claim(BEST, 3.0, 3.001, Status.FEASIBLE), "the bound is 3.001, the least is 3.0"),
        (Claim(BEST, 2.9, 0.0, Status.FEASIBLE), "is worth 3.0, not 2.9"),
        (Claim(TOO_MUCH, 12.0, 0.0, Status.FEASIBLE), "is worth inf, not 12.0"),
        (Claim(WORSE, 9.0, 3.0, Status.OPTIMAL), "9.0 is called optimal, the least is 3.0"),
        (Claim(None, inf, 3.0, Status.INFEASIBLE), "it is called infeasible, the least is 3.0"),
        (Claim(None, 3.0, 3.0, Status.UNKNOWN), "the objective is 3.0 without a placement"),
    ],
)
def test_what_is_not_true_is_called_broken(claim: Claim, said: str) -> None:
    (found,) = broken(LEAST_IS_3, claim)
    assert said in found


def test_who_is_exact_has_to_prove_it() -> None:
    (found,) = broken(LEAST_IS_3, Claim(BEST, 3.0, 2.0, Status.FEASIBLE), exact=True)
    assert "ends feasible" in found
