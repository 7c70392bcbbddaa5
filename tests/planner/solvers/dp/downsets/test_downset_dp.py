"""The DP over downsets: contiguous optima by hand, by brute force, and those of the public placement problems."""

from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from costmodels.table import CostTable
from planner.literature.placement.public_format import problem_from_dict, read_problem
from planner.problem.bounds import lower_bound
from planner.problem.evaluate import evaluate
from planner.problem.problem import Goal, Problem
from planner.problem.result import Status
from planner.solvers.base import Answer, Budget
from planner.solvers.dp.downsets import retrace, sweep
from planner.solvers.dp.downsets.downset_dp import DownsetDP
from planner.solvers.solve import solve
from simulator.placement import Placement
from tests.planner.literature.placement.offloads import contiguous_problems, make_offload, offloads
from tests.planner.problem.problems import brute_force, make_table, tables, value
from tests.planner.solvers.dp.downsets.series_parallel import Shape, optimum_ms, series_parallel

PUBLIC = Path(__file__).parents[6] / "shared" / "bench" / "msr" / "throughput"
ROUNDING = 1e-9


def everything(table: CostTable) -> Problem:
    return Problem(table, Goal.THROUGHPUT, frozenset(range(table.n_ops)))


def search(problem: Problem, incumbent: Placement | None = None) -> Answer:
    budget = Budget(1e9, gap=0.0, bound_s=lower_bound(problem), incumbent=incumbent)
    return DownsetDP().search(problem, budget)


def best_s(problem: Problem) -> float:
    """What the answer is worth, if it is proved."""
    answer = search(problem)
    assert answer.complete
    assert answer.placement is not None
    found = value(problem, answer.placement)
    assert answer.bound_s == pytest.approx(found)
    return found


DIAMOND = [(0, (1, 2), 1.0), (1, (3,), 1.0), (2, (3,), 1.0)]


def test_a_row_of_operators_is_cut_where_the_load_is_even() -> None:
    # 3 + 2 + 1 to store | 1 to fetch + 4
    table = make_offload([[c, c] for c in (3, 2, 4)], [(0, (1,), 9.0), (1, (2,), 1.0)])
    assert best_s(everything(table)) == 3 + 2 + 1


def test_branches_go_to_different_devices() -> None:
    # op0 and op1 | op2 and op3: 1 + 5 and, of the flows, op0's is stored (1) and op1's (1); 1 + 1 fetched, 5 + 1
    table = make_offload([[c, c] for c in (1, 5, 5, 1)], DIAMOND)
    problem = everything(table)
    assert best_s(problem) == 1 + 5 + 1 + 1
    placement = search(problem).placement
    assert placement is not None
    assert placement.device in {(0, 0, 1, 1), (0, 1, 0, 1), (1, 1, 0, 0), (1, 0, 1, 0)}


def test_what_goes_to_and_fro_is_not_contiguous() -> None:
    # the ends on one device and the middle on the other: 3 + 3 against 6; contiguous: 3 + 6 | 3
    table = make_offload([[c, c] for c in (3, 6, 3)], [(0, (1,), 0.0), (1, (2,), 0.0)])
    assert value(Problem(table, Goal.THROUGHPUT), Placement((0, 1, 0))) == 3 + 3
    assert best_s(everything(table)) == 3 + 6


def test_a_host_transfers_for_nothing_but_is_slow() -> None:
    # the host computes op0 (4 s against 1 s), so that only the accelerator pays for the tensor: 2 + 3
    table = make_offload([[1, 4], [3, 12]], [(0, (1,), 2.0)], hosts=[1])
    assert best_s(everything(table)) == 1 + 3
    table = make_offload([[3, 4], [3, 12]], [(0, (1,), 2.0)], hosts=[1])
    assert best_s(everything(table)) == 2 + 3


def test_memory_moves_the_cut() -> None:
    rows, flows = [[1, 1]] * 4, [(op, (op + 1,), 0.0) for op in range(3)]
    memory = {"op_bytes": [1, 1, 2, 7], "capacity_bytes": [8, 8]}
    assert best_s(everything(make_offload(rows, flows))) == 2
    assert best_s(everything(make_offload(rows, flows, **memory))) == 3


def test_a_group_takes_along_what_is_on_its_way() -> None:
    # op0 and op2 share a device, so op1 between them does as well
    flows = [(op, (op + 1,), 0.0) for op in range(3)]
    table = make_offload([[c, c] for c in (1, 1, 1, 2)], flows, together=((0, 2),))
    assert best_s(everything(table)) == 1 + 1 + 1


def test_backward_operators_follow_their_forward_ones() -> None:
    # forward 0, 1, 2; backward 3, 4, 5, each with its forward operator: (1 + 2) * 2 + store 1 and fetch 1 | 1 + 2 + 2
    flows = [(0, (1, 5), 1.0), (1, (2, 4), 9.0), (2, (3,), 9.0), (3, (4,), 9.0), (4, (5,), 1.0)]
    rows = [[c, c] for c in (1, 1, 1, 2, 2, 2)]
    table = make_offload(rows, flows, together=((0, 5), (1, 4), (2, 3)))
    problem = Problem(table, Goal.THROUGHPUT, frozenset({0, 1, 2}))
    assert best_s(problem) == 2 * (1 + 2) + 1 + 1


def test_a_loose_operator_can_go_back_against_the_order() -> None:
    # op2 is not contiguous: it may be with op0 although it reads op1, and balances 2 + 3 against 5
    table = make_offload([[c, c] for c in (2, 5, 3)], [(0, (1,), 0.0), (1, (2,), 0.0), (0, (2,), 0.0)])
    assert best_s(Problem(table, Goal.THROUGHPUT, frozenset({0, 1}))) == 2 + 3
    assert best_s(everything(table)) == 2 + 5


def test_operators_that_nothing_joins_are_packed() -> None:
    assert best_s(everything(make_offload([[c, c] for c in (5, 4, 3, 2)]))) == 5 + 2


def test_operators_that_cost_nothing_are_placed() -> None:
    assert best_s(everything(make_offload([[0, 0]] * 3, [(0, (1, 2), 0.0)]))) == 0


def test_where_nothing_takes_time_what_cannot_run_still_cannot() -> None:
    # op0 on dev1 and op1 on dev0 alone; op2 and op3 have no room beside each other
    table = make_offload([[inf, 0], [0, inf], [0, 0], [0, 0]], op_bytes=[0, 0, 1, 2], capacity_bytes=[2, 2])
    assert best_s(everything(table)) == 0


@pytest.mark.attack("proof")
def test_operators_that_cost_nothing_are_placed_where_they_can_run() -> None:
    answer = search(everything(make_offload([[0, inf], [0, 0]], [(0, (1,), 0.0)])))
    assert answer.placement is not None
    assert (answer.placement.device[0], answer.bound_s, answer.complete) == (0, 0, True)


def test_it_says_if_no_placement_has_enough_memory() -> None:
    table = make_offload([[1, 1]] * 3, op_bytes=[2, 2, 2], capacity_bytes=[3, 3])
    answer = search(everything(table))
    assert (answer.placement, answer.bound_s, answer.complete) == (None, inf, True)


def test_direct_links_are_charged_at_both_ends() -> None:
    # 2 | 2 + 2 + 2 with 1 s to send, against 4 | 4 with 9 s
    flows = [(op, (op + 1,), size) for op, size in enumerate((1.0, 9.0, 9.0))]
    assert best_s(everything(make_table([[2, 2]] * 4, flows, overlap=False))) == 1 + 6


def test_without_contiguous_operators_it_finds_a_contiguous_placement_and_proves_nothing() -> None:
    table = make_offload([[c, c] for c in (3, 6, 3)], [(0, (1,), 0.0), (1, (2,), 0.0)])
    problem = Problem(table, Goal.THROUGHPUT)
    answer = search(problem)
    assert (answer.bound_s, answer.complete) == (0.0, False)
    assert answer.placement is not None
    assert value(problem, answer.placement) == 3 + 6


def test_a_better_start_is_kept() -> None:
    table = make_offload([[c, c] for c in (3, 6, 3)], [(0, (1,), 0.0), (1, (2,), 0.0)])
    start = Placement((0, 1, 0))
    assert search(Problem(table, Goal.THROUGHPUT), incumbent=start).placement == start


def test_out_of_time_it_returns_the_incumbent_and_the_bound_that_it_was_given() -> None:
    problem = everything(make_offload([[c, c] for c in (1, 5, 5, 1)], DIAMOND))
    start = Placement((0, 0, 0, 1))  # on several devices, so that no line is cut first
    answer = DownsetDP().search(problem, Budget(time_limit_s=0.0, incumbent=start, bound_s=6.0))
    assert answer == Answer(start, 6.0, complete=False)


def test_more_ideals_than_memory_has_room_for_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = everything(make_offload([[1, 1]] * 20))  # 20 * 19 * .. * 11 / 10! = 184756 downsets are half the work
    start = Placement((0,) * 19 + (1,))
    monkeypatch.setattr(sweep, "MOST_BYTES", 184_756 * (sweep.BYTES_EACH + 2 * 20 + 3 * sweep.BYTES_EACH_STATE) - 1)
    assert DownsetDP().search(problem, Budget(1e9, incumbent=start, bound_s=9.999)) == Answer(start, 9.999)
    # a line is cut first, unless there is a placement on several devices
    assert DownsetDP().search(problem, Budget(1e9, bound_s=9.999)) == Answer(Placement((0,) * 10 + (1,) * 10), 9.999)


@pytest.mark.attack("proof")
@pytest.mark.parametrize("seed", range(12))
def test_it_proves_what_an_ordinary_dynamic_program_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = Shape(
        n_nodes=int(rng.integers(20, 50)),
        downsets=(40, 400),
        n_accelerators=int(rng.integers(1, 5)),
        n_hosts=1 + seed % 3,
        memory=float(rng.choice([0.0, 1.1, 1.5])),
        transfers=float(rng.choice([0.1, 1.0, 4.0])),
        unsupported=float(rng.choice([0.0, 0.1])),
    )
    document = series_parallel(shape, seed)
    found = solve(problem_from_dict(document, Goal.THROUGHPUT, contiguous=True).problem, "downset-dp", 1e3, gap=0.0)
    assert found.status is Status.OPTIMAL
    assert found.objective_s * 1e3 == pytest.approx(optimum_ms(document))


@pytest.mark.parametrize("seed", range(2))
def test_sets_of_more_than_64_elements_take_several_words(seed: int) -> None:
    document = series_parallel(Shape(90, (200, 500), n_accelerators=3, memory=1.3, transfers=2.0), seed)
    found = solve(problem_from_dict(document, Goal.THROUGHPUT, contiguous=True).problem, "downset-dp", 1e3, gap=0.0)
    assert found.status is Status.OPTIMAL
    assert found.objective_s * 1e3 == pytest.approx(optimum_ms(document))


@pytest.mark.parametrize("seed", range(6))
def test_more_than_64_counts_of_devices_take_several_words(seed: int) -> None:
    # 7 different devices, so 128 sets of them, which each hold two of the five operators
    rng = np.random.default_rng(seed)
    rows = rng.integers(1, 9, (5, 7)).astype(float).tolist()
    table = make_offload(rows, DIAMOND, hosts=[6], op_bytes=[1] * 5, capacity_bytes=[2] * 7)
    assert best_s(everything(table)) == pytest.approx(brute_force(everything(table)))


@pytest.mark.attack("proof")
def test_it_proves_an_optimum_far_above_the_bound_among_eight_thousand_ideals() -> None:
    # what only two hosts can run is far apart, so nearly every downset is within the windows; a minute was not enough
    document = series_parallel(Shape(60, (7000, 10000), n_accelerators=8, n_hosts=2, unsupported=0.05), seed=7)
    found = solve(problem_from_dict(document, Goal.THROUGHPUT, contiguous=True).problem, "downset-dp", 60.0, gap=0.0)
    assert (found.status, found.solver) == (Status.OPTIMAL, "downset-dp")
    assert found.objective_s * 1e3 == pytest.approx(63.512)  # as `optimum_ms` says


def test_many_different_devices_are_refused() -> None:
    few, many = ([[float(1 + device) for device in range(n)]] for n in (8, 9))  # 2 ** 8 sets of devices, and 2 ** 9
    assert DownsetDP().refuses(everything(make_offload(few))) == ""
    assert DownsetDP().refuses(everything(make_offload(many))) == "this many different devices"
    assert DownsetDP().refuses(everything(make_offload([[1.0] * 200]))) == ""


def test_the_same_problem_gets_the_same_answer() -> None:
    rng = np.random.default_rng(0)
    flows = [(op, tuple(sorted({int(r) for r in rng.integers(op + 1, 12, 2)})), 1.0) for op in range(11)]
    problem = everything(make_offload([[c] * 3 for c in rng.integers(1, 9, 12)], flows))
    assert search(problem) == search(problem)


@given(contiguous_problems(offloads()))
def test_beside_a_host_it_is_exact(problem: Problem) -> None:
    truth = brute_force(problem)
    for bound_s in (0.0, lower_bound(problem)):
        answer = DownsetDP().search(problem, Budget(1e9, gap=0.0, bound_s=bound_s))
        assert answer.complete
        assert answer.bound_s == pytest.approx(truth)
    if truth == inf:
        assert answer.placement is None
    else:
        assert answer.placement is not None
        assert value(problem, answer.placement) == pytest.approx(truth)


@given(contiguous_problems(tables()))
def test_with_direct_links_its_bound_holds_and_its_proofs_are_right(problem: Problem) -> None:
    answer, truth = search(problem), brute_force(problem)
    assert answer.bound_s <= truth * (1 + ROUNDING)
    found = inf if answer.placement is None else value(problem, answer.placement)
    assert found >= truth * (1 - ROUNDING)
    if answer.complete:
        assert found == pytest.approx(truth)


@given(tables(uniform=True, overlap=False, sharings=["unlimited"]))
def test_with_uniform_links_it_is_exact(table: CostTable) -> None:
    problem = everything(table)
    answer, truth = search(problem), brute_force(problem)
    assert answer.complete
    assert answer.bound_s == pytest.approx(truth)


@pytest.mark.skipif(not PUBLIC.exists(), reason="the public placement problems are not beside the repository")
@pytest.mark.parametrize(
    ("name", "optimum_ms"),
    [
        ("layer-bert24_inference", 17.789906),
        ("layer-bert24_training", 41.745813),
        ("layer-inceptionv3_inference", 51.551864),
        ("layer-inceptionv3_training", 122.761616),
        ("op-bert_l-3_inference", 27.918568),
        ("op-bert_l-3_training", 65.303093),
        ("op-bert_l-6_inference", 29.579506),
        ("op-bert_l-6_training", 72.864966),
    ],
)
def test_the_contiguous_optimum_of_a_public_problem(name: str, optimum_ms: float) -> None:
    problem = read_problem(PUBLIC / f"{name}.json", Goal.THROUGHPUT, contiguous=True).problem
    answer = search(problem)
    assert answer.complete
    assert answer.placement is not None
    judged = evaluate(problem, answer.placement)
    assert judged.feasible
    assert judged.objective_s * 1e3 == pytest.approx(optimum_ms, abs=1e-6)
    assert answer.bound_s * 1e3 == pytest.approx(optimum_ms, abs=1e-6)


def test_a_tensor_that_two_devices_read_leaves_twice() -> None:
    # 2 | 3 | 3 on three devices: the first one sends to both for 1 each, 2 + 2, and each receives it, 1 + 3; with both
    # readers on one device 3 + 3 + 1; with one of them on the writer's 2 + 3 + 1. Charged once for leaving it were 3
    table = make_table([[2.0] * 3, [3.0] * 3, [3.0] * 3], [(0, (1, 2), 1.0)], overlap=False)
    assert best_s(everything(table)) == 4.0
    # 1.5 for each transfer, of which two and 2 are more than 3 and one: 2 + 2 * 1.5 against 3 + 1.5, so 5
    table = make_table([[2.0] * 3, [3.0] * 3, [3.0] * 3], [(0, (1, 2), 1.5)], overlap=False)
    assert best_s(everything(table)) == 5.0


@pytest.mark.attack("proof")
def test_without_room_for_a_way_back_the_bound_of_the_sweep_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    # the three on a device each: 2 + 2 * 1.5 is 5, and 3 + 1.5 where the first one pays for one reader alone
    monkeypatch.setattr(retrace, "MOST_LABELS", 1)
    problem = everything(make_table([[2.0] * 3, [3.0] * 3, [3.0] * 3], [(0, (1, 2), 1.5)], overlap=False))
    answer = search(problem)
    assert answer.placement is not None
    assert (value(problem, answer.placement), answer.bound_s, answer.complete) == (5.0, 4.5, False)


@pytest.mark.parametrize("seed", range(12))
def test_tensors_of_several_readers_are_proved_between_devices(seed: int) -> None:
    rng = np.random.default_rng(seed)
    readers = [tuple(sorted(set(rng.integers(op + 1, 8, 3).tolist()))) for op in range(7)]
    flows = [(op, found, float(rng.integers(1, 4))) for op, found in enumerate(readers)]
    table = make_table([[float(rng.integers(1, 9))] * 3 for _ in range(8)], flows, overlap=False)
    problem = everything(table)
    assert best_s(problem) == pytest.approx(brute_force(problem))
