"""CBC where HiGHS is not installed: the same optimum, and what is said if there is neither."""

import os
import platform
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pulp
import pytest

from graphs.common.errors import InputError
from planner.problem.problem import Goal, Problem
from planner.solvers.base import Budget
from planner.solvers.milp.highs import minimise_by_cbc
from planner.solvers.milp.ilp import ILP
from tests.planner.problem.problems import make_table, value

ARCHITECTURE = {"x86_64": "i64", "aarch64": "arm64"}.get(platform.machine(), "none")
BUNDLED = next(Path(pulp.__file__).parent.glob(f"solverdir/cbc/linux/{ARCHITECTURE}/cbc"), None)
pytestmark = pytest.mark.skipif(
    BUNDLED is None and not pulp.COIN_CMD(msg=False).available(), reason="neither PuLP nor the system brings CBC here"
)

TABLE = make_table([[c, c] for c in (5, 4, 3, 3)], [(0, (1,), 1.0), (1, (2, 3), 1.0)])


@pytest.fixture(autouse=True)
def _without_highs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)  # importing it fails
    if BUNDLED is not None:
        monkeypatch.setenv("PATH", str(BUNDLED.parent), prepend=os.pathsep)


def test_the_same_optimum() -> None:
    problem = Problem(TABLE, Goal.THROUGHPUT)
    answer = ILP().search(problem, Budget(20.0, gap=0.0))
    assert answer.placement is not None
    assert value(problem, answer.placement) == 8  # 5 + 3 | 4 + 3
    assert answer.bound_s == pytest.approx(8, rel=1e-5)


def test_no_placement_is_proved() -> None:
    table = replace(TABLE, op_bytes=TABLE.op_bytes + 6, capacity_bytes=TABLE.capacity_bytes * 0 + 10)
    assert ILP().search(Problem(table, Goal.THROUGHPUT), Budget(20.0, gap=0.0)).placement is None


def test_neither_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulp.COIN_CMD, "available", lambda _: False)
    model: Any = pulp.LpProblem("empty", pulp.LpMinimize)
    with pytest.raises(InputError) as error:
        minimise_by_cbc(model, Budget(1.0), lambda _: None)
    assert str(error.value) == "integer programs need HiGHS or CBC, and neither is installed; `pip install highspy`"
