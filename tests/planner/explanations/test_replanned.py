"""Planning again, against sums by hand: what it costs to ask for something, and what would help."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from costmodels.cluster.cluster import Cluster
from planner.explanations.cuts import CutMove
from planner.explanations.what_if import Method, Price, Remedy, replanned
from planner.planning.make_plan import Search
from planner.plans.plan import Plan
from planner.problem.constraints import Constraint, contiguous, forbid, pin, together
from planner.problem.problem import Goal
from planner.problem.reporter import Reporter
from planner.problem.result import Interrupted
from tests.planner.explanations.small import diamond, make_graph, make_plan, trained

SEARCH = Search(time_limit_s=10.0, gap=0.0)


def helped(plan: Plan, *moves: CutMove) -> dict[str, Remedy]:
    return {found.change: found for found in replanned(plan, moves, SEARCH).helps}


def priced(plan: Plan, *constraints: Constraint) -> list[Price]:
    return list(replanned(replace(plan, constraints=constraints), (), SEARCH).prices)


def test_searching_again_finds_what_was_missed() -> None:
    # a and b on cpu0, c and d on cpu1: 5 s each; d on cpu0 makes 6
    assert replanned(diamond(), (), SEARCH).again_s == 5.0
    assert replanned(diamond(placed="0011"), (), SEARCH).again_s == 5.0


def test_a_constraint_costs_what_the_best_plan_without_it_gains() -> None:
    # all of it on cpu0: 10 s; without that two devices of 5 s
    everything = diamond(placed="0000", n_devices=2)
    assert priced(everything, pin("*", "cpu0")) == [Price("pin * to cpu0", 10.0, 5.0)]
    # c, of 4 s, on cpu0 with a: b and d on cpu1 make 6 and 4; without that 5 and 5
    assert priced(diamond(placed="0101", n_devices=2), pin("c", "cpu0"), pin("a", "cpu0")) == [
        Price("pin c to cpu0", 6.0, 5.0),
        Price("pin a to cpu0", 6.0, 5.0),
    ]


def test_a_constraint_that_no_better_plan_breaks_is_free() -> None:
    assert priced(diamond(placed="0011"), together("a", "b"), contiguous(), forbid("d", "cpu0")) == [
        Price("together a, b", 5.0, 5.0),
        Price("contiguous", 5.0, 5.0),
        Price("forbid d on cpu0", 5.0, 5.0),
    ]


def test_a_plan_without_constraints_has_no_prices() -> None:
    assert priced(diamond()) == []


def test_one_more_device_is_planned_for() -> None:
    # 10 s of work: 5 and 5 on two devices; three copies take turns on three
    found = helped(diamond(placed="0011"))["one more device like cpu0"]
    assert found == Remedy("one more device like cpu0", 10 / 3, 5.0, Method.REPLANNED, "no plan would be below 3.33 s")


def test_the_kind_of_device_that_lowers_the_bound_most() -> None:
    # cpu1 is twice as slow
    rows = [(2, 4), (3, 6), (4, 8), (1, 2)]
    found = helped(make_plan(diamond().graph, rows, "0000", n_devices=2, kinds=("fast", "slow")))
    assert "one more device like cpu0" in found
    rows = [(b, a) for a, b in rows]
    found = helped(make_plan(diamond().graph, rows, "0000", n_devices=2, kinds=("slow", "fast")))
    assert "one more device like cpu1" in found


def test_without_links_nobody_knows_how_it_would_be_linked() -> None:
    isolated = diamond(placed="0000", n_devices=1)
    assert replanned(isolated, (), SEARCH).helps == (Remedy("one more device like cpu0", 5.0, 10.0, Method.BOUND),)
    assert isolated.cluster == Cluster("desk", isolated.cluster.devices)


def test_faster_links() -> None:
    # a to cpu1 by 2 bytes, 2 s, then c and d: 2 + 2 + 4 + 1 = 9; at twice the bandwidth 8
    found = helped(diamond(Goal.LATENCY, "0011"))["links of twice the bandwidth"]
    assert (found.how, found.now_s, found.seconds) == (Method.REPLANNED, 8.0, 7.5)


def small_memory(placed: str, memory_bytes: float) -> Plan:
    """cpu0 is nine times as fast and has room for one of two parameters of 10 bytes."""
    graph = make_graph({"a": "m", "b": "m"}, {}, parameters={"a": "p", "b": "q"})
    return make_plan(graph, ((1, 9), (1, 9)), placed, memory_bytes=memory_bytes, in_flight=1, n_devices=2)


def test_memory_helps_where_it_is_nearly_full() -> None:
    plan = small_memory("01", 14.0)
    assert plan.evaluation.memory_bytes[0] == 10 + 2  # its parameter, x and a
    found = helped(plan)["twice the memory on cpu0, cpu1"]
    assert (found.now_s, found.seconds) == (9.0, 2.0)
    assert not any("memory" in change for change in helped(small_memory("01", 100.0)))


def test_memory_that_keeps_a_better_move_out() -> None:
    barred = CutMove("d", 1, "cpu1", 5.0, "'cpu1' is over by 8 bytes")
    assert "twice the memory on cpu1" in helped(diamond(), barred)
    assert not any("memory" in change for change in helped(diamond(), replace(barred, objective_s=7.0)))


def test_memory_without_an_end_is_never_full() -> None:
    plan = small_memory("00", 100.0)
    endless = replace(plan, table=replace(plan.table, capacity_bytes=np.full(2, inf)))
    assert not any("memory" in change for change in helped(endless))


def test_a_schedule_that_comes_back_where_a_shared_parameter_keeps_all_on_one_device() -> None:
    plan = trained("abcdef", "1f1b", a="p", f="p")
    assert set(plan.placement.device) == {0}
    found = helped(plan)["the schedule zbv"]
    assert found.remark == "a and f share 'p' and so a device, to which zbv comes back"
    assert found.seconds < 0.8 * found.now_s


def test_a_schedule_is_not_asked_about_where_all_devices_work_or_it_comes_back_already() -> None:
    assert "the schedule zbv" not in helped(trained("abcdef", "1f1b"))
    assert "the schedule zbv" not in helped(trained("abcdef", "zbv", a="p", f="p"))


@pytest.mark.attack("process")
@pytest.mark.parametrize("answered", range(4))
def test_ctrl_c_keeps_the_answers_until_then(answered: int) -> None:
    class Stop(Reporter):
        def on_step(self, name: str, done: int, total: int) -> None:  # noqa: ARG002
            if done == answered:
                raise KeyboardInterrupt

    plan = replace(diamond(), constraints=(contiguous(),))
    whole = replanned(plan, (), SEARCH)
    with pytest.raises(Interrupted) as stopped:
        replanned(plan, (), replace(SEARCH, reporter=Stop()))
    found = stopped.value.best
    assert found.again_s == (whole.again_s if answered else plan.predicted_s)
    assert (found.prices, found.helps) == (whole.prices[: max(0, answered - 1)], whole.helps[: max(0, answered - 2)])


def test_progress_is_told() -> None:
    steps: list[tuple[str, int, int]] = []

    class Watch(Reporter):
        def on_step(self, name: str, done: int, total: int) -> None:
            steps.append((name, done, total))

    plan = replace(diamond(), constraints=(contiguous(),))
    replanned(plan, (), replace(SEARCH, reporter=Watch()))
    assert steps == [("planning again", number, 4) for number in range(4)]
