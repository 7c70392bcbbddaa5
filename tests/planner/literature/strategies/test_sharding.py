"""Sharding programs: prices by hand, and what is said of a file that describes none."""

import json
import sys
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs.common.errors import InputError
from planner.literature.strategies.choice import sharding_choice
from planner.literature.strategies.program import MeshCase, TensorOp
from planner.literature.strategies.reader import sharding_program
from planner.literature.strategies.rules import Spec, follow, strategies
from planner.solvers.strategies.solve import solve_strategies
from tests.children import ran
from tests.planner.literature.strategies.programs import case, two_products

JUDGE = Path(__file__).parents[4] / ".." / "shared" / "bench" / "hybrid" / "sharding"


def specs(document: dict[str, Any], number: int = 0) -> tuple[float, dict[str, list[int | None]]]:
    """The least price on a mesh, and the specs."""
    program = sharding_program(document)
    choice = sharding_choice(program, program.cases[number])
    result = solve_strategies(choice.problem)
    assert result.choice is not None
    assert result.bound == result.objective
    return result.objective, choice.assignment(result.choice)


def mesh(n0: int, n1: int) -> MeshCase:
    return sharding_program(two_products(cases=[case(n0, n1)])).cases[0]


class TestPrices:
    @pytest.mark.parametrize("number", [0, 1])
    def test_one_collective_is_enough(self, number: int) -> None:
        """Rows of x, whole weights (2 each), an all-gather of 128 B: ⌊1 + 1/2 · 128⌋ + 0.1.

        w by columns, v by rows and x whole (2) would need an all-reduce: ⌊1 + 2 · 1/2 · 128⌋ + 0.01.
        """
        price, found = specs(two_products(), number)
        assert price == pytest.approx(min(65.1 + 2 + 2, 129.01 + 2))
        assert found == {
            "0": [number, None],
            "1": [None, None],
            "2": [number, None],
            "3": [None, None],
            "4": [number, None],
        }

    def test_a_price_for_every_all_gather(self) -> None:
        price, found = specs(two_products(cases=[case(2, 1, all_gather_price=500)]))
        assert price == pytest.approx(131.01)
        assert (found["1"], found["2"], found["3"], found["4"]) == ([None, 0], [None, 0], [0, None], [None, None])

    def test_must_split(self) -> None:
        wish = [{"op": 4, "axis": 1, "mesh_axis": 0}]
        price, found = specs(two_products(cases=[case(2, 1, must_split=wish)]))
        assert found["4"] == [None, 0]
        assert price == pytest.approx(65.1 + 65.1 + 2)  # gather x · w, by rows with w whole; gather the answer

    def test_ties_ask_for_equal_specs(self) -> None:
        _, found = specs(two_products(ties=[[1, 3]], cases=[case(2, 1, all_gather_price=500)]))
        assert found["1"] == found["3"]

    def test_one_device(self) -> None:
        assert specs(two_products(cases=[case(1, 1)]))[0] == 6.0  # three whole parameters


class TestRules:
    def test_a_parameter_splits_one_axis_that_is_long_enough(self) -> None:
        op = TensorOp("w", 0, "parameter", (), (8, 2))
        assert [s.spec for s in strategies(op, mesh(4, 2), ())] == [(0, None), (1, None), (None, 1), (None, None)]

    def test_a_dot_on_a_mesh_of_two_axes(self) -> None:
        op = TensorOp("p", 0, "dot", (0, 1), (8, 4), contract=(1, 0))
        found = {s.spec: (s.cost, *s.wants) for s in strategies(op, mesh(2, 4), (2, 2))}
        assert found[0, 1] == (0.0, (0, None), (None, 1))
        assert found[0, None] == (97.01, (0, 1), (1, None))  # ⌊1 + 2 · 3/4 · 64⌋ over 4 devices
        assert found[None, 1] == (33.01, (None, 0), (0, 1))  # ⌊1 + 2 · 1/2 · 32⌋ over 2 devices
        assert len(found) == 6

    def test_two_batch_axes_take_the_whole_mesh(self) -> None:
        op = TensorOp("p", 0, "dot", (0, 1), (8, 8, 4, 4), batch=((0, 1), (0, 1)), contract=(3, 2))
        assert [s.spec for s in strategies(op, mesh(2, 4), (4, 4))] == [(0, 1, None, None)]
        found = [s.spec for s in strategies(op, mesh(4, 1), (4, 4))]
        assert (0, None, None, None) in found
        assert (None, 0, None, None) in found

    @pytest.mark.parametrize(
        ("op", "have", "spec", "cost"),
        [
            (TensorOp("b", 0, "broadcast", (0,), (3, 8, 4), axes=(1, 2)), (0, None), (None, 0, None), 0.0),
            (TensorOp("t", 0, "transpose", (0,), (4, 8), axes=(1, 0)), (0, None), (None, 0), 0.0),
            (TensorOp("r", 0, "reduce", (0,), (4,), axes=(0,)), (0, 1), (1,), 9.01),  # ⌊1 + 2 · 1/2 · 4 · 4 / 2⌋
            (TensorOp("s", 0, "reshape", (0,), (2, 4, 4)), (0, None), (0, None, None), 0.0),
            (TensorOp("s", 0, "reshape", (0,), (32,)), (0, None), (0,), 0.0),
            (TensorOp("s", 0, "reshape", (0,), (32,)), (None, 0), None, 0.0),
            (TensorOp("e", 0, "exp", (0,), (8, 4)), (0, 1), (0, 1), 0.0),
        ],
    )
    def test_what_follows(self, op: TensorOp, have: Spec, spec: Spec | None, cost: float) -> None:
        done = follow(op, mesh(2, 2), have, (8, 4))
        assert (done and done.spec) == spec
        assert done is None or done.cost == cost


def changed(position: int, **fields: Any) -> dict[str, Any]:
    """The program with other fields of one operator; a field of None goes."""
    ops = two_products()["ops"]
    ops[position] = {key: value for key, value in (ops[position] | fields).items() if value is not None}
    return two_products(ops=ops)


class TestBadInput:
    @pytest.mark.parametrize(
        ("document", "message"),
        [
            (changed(2, op="dott"), "operator 2 has op = 'dott'; it must be one of abs, "),
            (changed(2, shape=None), "operator 2 (dot) has no shape; add it, a list of whole numbers of 1 or more"),
            (changed(2, shape=[8, 5]), "operator 2 (dot) has shape [8, 5], but of operator 0 (parameter) [8, 4],"),
            (changed(2, inputs=[0]), "operator 2 (dot) has 1 inputs; a dot has 2"),
            (changed(2, inputs=[0, 4]), "operator 2 (dot) reads operator 4, which does not come before it; list"),
            (changed(2, contract=[0, 0]), "operator 2 (dot) pairs batch and summed axes of sizes [8] with [4]; make"),
            (changed(2, contract=[2, 0]), "operator 2 (dot) names axis 2 of an input of shape [8, 4]; axes count from"),
            (changed(2, batch=[[1], [1]]), "operator 2 (dot) has batch and contract = [1, 1]; name each axis once"),
            (changed(2, batch=[[]]), "operator 2 (dot) has 1 lists in batch; give one for each of its two inputs"),
            (changed(3, id=1), "two operators have the id 1; give each its own"),
            (changed(5, op="transpose", axes=[0, 0]), "operator 5 (transpose) has axes = [0, 0] for an input of shape"),
            (changed(5, op="reduce", axes=[1]), "operator 5 (reduce) has shape [8, 4], but of operator 4 (dot) [8, 4]"),
            (changed(5, op="reshape", shape=[31]), "operator 5 (reshape) has shape [31], but of operator 4 (dot) [8,"),
            (changed(5, op="broadcast", axes=[0]), "operator 5 (broadcast) has 1 axes for an input of shape [8, 4];"),
            (two_products(ties=[[0, 1]]), "a tie joins operator 0 (parameter) and operator 1 (parameter) of shapes"),
            (two_products(ties=[[0, 9]]), "a tie names operator 9, which does not exist; list it in ops"),
            (two_products(ops=[]), "there are no operators; list at least one in ops"),
            (two_products(cases=[]), "there are no cases; list at least one mesh with alpha and beta in cases"),
            (two_products(cases=[case(0, 2)]), "case number 1 of the list has mesh = [0, 2]; it must be a list of 2"),
            (two_products(cases=[case(2, 2, beta=[1])]), "the case of mesh 2x2 has beta = [1]; it must be a list of 2"),
            (
                two_products(cases=[case(2, 1, must_split=[{"op": 0, "axis": 0, "mesh_axis": 0}])]),
                "must_split of mesh 2x1 names operator 0 (parameter); only a dot can be asked to split an axis",
            ),
            (
                two_products(cases=[case(2, 1, must_split=[{"op": 2, "axis": 2, "mesh_axis": 0}])]),
                "must_split of mesh 2x1 asks operator 2 (dot) for axis 2 on mesh axis 0; axes go from 0 to 1, mesh",
            ),
        ],
    )  # fmt: skip
    def test_it_is_named(self, document: dict[str, Any], message: str) -> None:
        with pytest.raises(InputError) as error:
            sharding_program(document)
        assert str(error.value).startswith(message)

    def test_a_split_that_no_strategy_gives(self) -> None:
        wish = [{"op": 2, "axis": 0, "mesh_axis": 1}]
        with pytest.raises(InputError) as error:
            specs(two_products(cases=[case(2, 1, must_split=wish)]))
        assert str(error.value).startswith(
            "must_split asks operator 2 (dot) to split axis 0 on mesh axis 1, which no strategy"
        )

    def test_a_mesh_that_comes_twice_has_a_name_of_its_own(self) -> None:
        found = sharding_program(two_products(cases=[case(2, 1), case(2, 1, alpha=[9, 9])])).cases
        assert [each.name for each in found] == ["2x1", "2x1 (2)"]


@settings(max_examples=15)
@given(st.tuples(st.integers(1, 4), st.integers(1, 4)), st.booleans())
def test_the_least_price_of_all_assignments(shape: tuple[int, int], tied: bool) -> None:
    document = two_products(cases=[case(*shape)], ties=[[1, 3]] if tied else [])
    program = sharding_program(document)
    problem = sharding_choice(program, program.cases[0]).problem
    best = min((problem.cost(c) for c in product(*(range(len(cost)) for cost in problem.node_cost))), default=inf)
    assert solve_strategies(problem).objective == pytest.approx(best)


@pytest.mark.skipif(not JUDGE.exists(), reason="the published programs are not beside the repository")
def test_a_published_program_as_its_judge_prices_it(tmp_path: Path) -> None:
    """A network with attention: all kinds of operators."""
    path = JUDGE / "attention-with-gather.json"
    program = sharding_program(json.loads(path.read_text()))
    for each in program.cases:
        choice = sharding_choice(program, each)
        result = solve_strategies(choice.problem)
        assert result.choice is not None
        answer = tmp_path / "answer.json"
        answer.write_text(json.dumps(choice.assignment(result.choice)))
        done = ran([sys.executable, str(JUDGE / "evaluate.py"), str(path), str(answer), "--mesh", each.name])
        judged = json.loads(done.stdout)
        assert judged["violations"] == []
        assert judged["price"] == pytest.approx(result.objective, rel=1e-12)
        assert judged["price"] == pytest.approx(judged["expected"]["optimum"], rel=1e-12)
