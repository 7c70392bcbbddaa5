"""Local search finds the best of small problems, keeps every constraint, and says the same every time."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodels.table import CostTable
from planner.literature.placement.offload import Offload
from planner.problem.blocks import merge_blocks
from planner.problem.problem import Goal, Problem
from planner.problem.reporter import Reporter
from planner.solvers.base import Budget
from planner.solvers.compiled import seed_of
from planner.solvers.local_search.annealing import _make_room
from planner.solvers.local_search.kernel import new_state
from planner.solvers.local_search.local_search import SHARE, LocalSearch
from planner.solvers.netlist import netlist
from simulator.placement import Placement
from tests.planner.literature.placement.offloads import with_offload
from tests.planner.problem.problems import brute_force, make_table, value

LIMIT_S = 0.1  # about 1 million pins; a problem of six operators gives up before


class Heard(Reporter):
    """Remembers every incumbent."""

    def __init__(self) -> None:
        self.objectives_s: list[float] = []

    def on_incumbent(self, solver: str, objective_s: float, bound_s: float, wall_s: float) -> None:
        assert solver == "local-search"
        assert bound_s == 0
        assert wall_s < 0  # the budget starts in the future
        self.objectives_s.append(objective_s)


def budget(limit_s: float = LIMIT_S, **fields: object) -> Budget:
    """A budget of so much work, on a machine however slow."""
    return replace(Budget(limit_s), start_s=np.inf, **fields)  # type: ignore[arg-type]  # the fields of a budget


def layers(n_layers: int, width: int, seed: int = 0) -> CostTable:
    """A layered graph on four devices, with whole seconds."""
    rng = np.random.default_rng(seed)
    flows = [
        (layer * width + i, tuple(sorted({(layer + 1) * width + int(j) for j in rng.integers(0, width, 2)})), 1.0)
        for layer in range(n_layers - 1)
        for i in range(width)
    ]
    forward_s = rng.integers(1, 20, n_layers * width).astype(float)
    return make_table(np.repeat(forward_s[:, None], 4, axis=1), flows, overlap=False)


def test_it_gives_up_early_only_if_others_come_after_it() -> None:
    problem = Problem(layers(3, 2), Goal.THROUGHPUT)
    answers = [LocalSearch().search(problem, budget(4.0, last=last)) for last in (False, True)]
    assert answers[0].spent < 0.4 < answers[1].spent == SHARE
    assert answers[0].placement is not None
    assert answers[1].placement is not None
    assert value(problem, answers[1].placement) <= value(problem, answers[0].placement)


def test_it_finds_the_best_of_small_problems() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(20):
        forward_s = rng.integers(1, 10, (6, 3)).astype(float)
        flows = [(op, (op + 1, 5), float(rng.integers(0, 4))) for op in range(4)]
        bytes_ = rng.integers(1, 5, 6)
        table = make_table(forward_s, flows, op_bytes=bytes_, capacity_bytes=[9, 9, 9], overlap=False)
        problem = Problem(table, Goal.THROUGHPUT)
        placement = LocalSearch().search(problem, budget()).placement
        hits += placement is not None and value(problem, placement) == brute_force(problem)
    assert hits == 20


def test_it_offloads() -> None:
    # The middle operator is 9 times as fast on the accelerator, which fetches for 1 s and stores for 2 s.
    table = make_table([[1, 9], [18, 2], [1, 9]], [(0, (1,), 1), (1, (2,), 1)])
    ones = np.ones((2, 2)) * [0.0, 1.0]
    table = with_offload(table, Offload(2 * ones, ones, np.asarray([True, False])))
    placement = LocalSearch().search(Problem(table, Goal.THROUGHPUT), budget()).placement
    assert placement is not None
    assert placement.device == (0, 1, 0)  # max(1 + 1, 1 + 2 + 2) = 5 s; everything on the host 20, on the other 20


def test_a_tight_memory_needs_swaps() -> None:
    # Two devices with room for 10 each; 6 + 4 and 7 + 3 is the only way.
    table = make_table([[1, 1]] * 4, op_bytes=[6, 7, 4, 3], capacity_bytes=[10, 10])
    placement = LocalSearch().search(Problem(table, Goal.THROUGHPUT), budget()).placement
    assert placement is not None
    assert placement.device[0] == placement.device[2] != placement.device[1] == placement.device[3]


def test_several_small_cells_make_room_for_a_large_one() -> None:
    # The first device holds 3 bytes, the second one 1 + 1 + 1 and has no room for more.
    table = make_table([[1, 1]] * 4, op_bytes=[3, 1, 1, 1], capacity_bytes=[9, 3])
    nets = netlist(merge_blocks(table), Goal.THROUGHPUT)
    moves = []
    for seed in range(10):  # each looks at six cells
        state = new_state(nets, np.asarray([0, 1, 1, 1]), seed_of(seed))
        state.pieces[0] = 0, 1
        moves.append(sorted(state.pieces[: _make_room(nets, state, 1)].tolist()))
    assert [[0, 1], [1, 0], [2, 0], [3, 0]] in moves
    assert all(move[0] == [0, 1] and {to for _, to in move[1:]} <= {0} for move in moves)


def test_least_cost_sends_nothing_that_it_need_not_send() -> None:
    # Room for two of the four: cut in the middle, where a byte goes; not at the ends, where five go.
    table = make_table(
        [[1, 1]] * 4, [(0, (1,), 5), (1, (2,), 1), (2, (3,), 5)], op_bytes=[1] * 4, capacity_bytes=[2, 2]
    )
    placement = LocalSearch().search(Problem(table, Goal.COST), budget()).placement
    assert placement is not None
    assert value(Problem(table, Goal.COST), placement) == 5.0  # 4 to compute, 1 to send


def test_same_seed_same_answer_and_progress_is_told() -> None:
    problem = Problem(layers(12, 6), Goal.THROUGHPUT)
    heard = Heard()
    first = LocalSearch().search(problem, budget(0.5, reporter=heard)).placement
    assert first == LocalSearch().search(problem, budget(0.5)).placement
    assert first is not None
    assert heard.objectives_s == sorted(heard.objectives_s, reverse=True)
    assert heard.objectives_s[-1] == value(problem, first)


def test_it_is_near_the_bound_on_layers() -> None:
    table = layers(20, 6)
    placement = LocalSearch().search(Problem(table, Goal.THROUGHPUT), budget(1.0)).placement
    assert placement is not None
    alone_s = table.forward_s[:, 0].sum() / 4  # what each device computes if nothing is sent and all is even
    assert value(Problem(table, Goal.THROUGHPUT), placement) <= 1.06 * alone_s


def test_an_incumbent_stays_if_nothing_is_better() -> None:
    table = make_table([[1, 5]], ())
    problem = Problem(table, Goal.THROUGHPUT)
    known = Placement((0,))
    assert LocalSearch().search(problem, budget(incumbent=known)).placement is known


def test_an_incumbent_that_is_good_enough_ends_the_search() -> None:
    problem = Problem(layers(12, 6), Goal.THROUGHPUT)
    known = Placement((0,) * 72)
    answer = LocalSearch().search(problem, budget(incumbent=known, bound_s=value(problem, known)))
    assert answer.placement is known


def test_without_room_for_an_operator_there_is_no_answer() -> None:
    table = make_table([[1, 1]], op_bytes=[3], capacity_bytes=[2, 2])
    assert LocalSearch().search(Problem(table, Goal.THROUGHPUT), budget()).placement is None


def test_it_refuses_contiguous_operators() -> None:
    table = make_table([[1, 1]])
    assert LocalSearch().refuses(Problem(table, Goal.THROUGHPUT)) == ""
    assert LocalSearch().refuses(Problem(table, Goal.THROUGHPUT, frozenset({0}))) == "contiguous operators"


PUBLIC = Path(__file__).parents[5] / "shared/bench/msr/throughput"
BEST_KNOWN_MS = {"layer-bert24_training": 39.789539, "op-bert_l-3_training": 54.207399}


@pytest.mark.skipif(not PUBLIC.exists(), reason="the public placement problems are not beside the repository")
@pytest.mark.parametrize("name", BEST_KNOWN_MS)
def test_public_problems(name: str) -> None:
    from planner.literature.placement.public_format import read_problem

    problem = read_problem(PUBLIC / f"{name}.json", Goal.THROUGHPUT).problem
    placement = LocalSearch().search(problem, budget(2.0)).placement
    assert placement is not None
    assert value(problem, placement) * 1e3 == pytest.approx(BEST_KNOWN_MS[name], rel=1e-6)
