"""The table of two phases, by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodels.generation_costs import PhaseCosts, mean_pass
from costmodels.table import CostTable
from costmodels.tabulate import tabulate
from costmodels.workload import Workload
from graphs.common.errors import InputError
from graphs.ir import Role
from graphs.phases import Phase
from tests.costmodels.sketches import sketch
from tests.costmodels.test_tabulate import CLUSTER
from tests.planner.problem.problems import make_table


def table_of(seconds: list[list[float]], n_bytes: float, working_bytes: float, **more: Any) -> CostTable:
    """A table of two operators, the first of which sends to the second over a link of 0.5 s and 1 s a byte."""
    return make_table(seconds, [(0, (1,), n_bytes)], link_s=0.5, working_bytes=working_bytes, **more)


def two_phases() -> tuple[PhaseCosts, ...]:
    chunk = table_of([[8.0, 4.0], [16.0, np.inf]], 12.0, 900.0, overhead_s=[0.25, 0.5])
    token = table_of([[1.0, 2.0], [3.0, np.inf]], 2.0, 100.0, overhead_s=[0.25, 0.5])
    return PhaseCosts(Phase(128, 256), 1, 0, chunk), PhaseCosts(Phase(1, 256), 0, 3, token)


def test_a_pass_is_the_mean_of_all_passes() -> None:
    found = mean_pass(two_phases())
    # one pass of 128 tokens and three of one: a quarter of the first and three quarters of the second
    assert found.forward_s.tolist() == [[8 / 4 + 1 * 3 / 4, 4 / 4 + 2 * 3 / 4], [16 / 4 + 3 * 3 / 4, np.inf]]
    assert found.flow_bytes.tolist() == [12 / 4 + 2 * 3 / 4]
    # each pass pays the latency of its message and the overhead of handing it over once, whatever its size
    assert found.send_s(0, 0, 1) == (0.5 + 12) / 4 + (0.5 + 2) * 3 / 4 == 0.5 + found.flow_bytes[0]
    assert found.overhead_s.tolist() == [0.25, 0.5]
    assert found.working_bytes == 900  # of the phase that needs the most


def test_a_phase_without_passes_counts_for_memory_alone() -> None:
    chunk, token = two_phases()
    unused = PhaseCosts(chunk.phase, 0, 0, chunk.table)
    found = mean_pass((unused, token))
    assert np.array_equal(found.forward_s, token.table.forward_s)
    assert found.working_bytes == 900
    with pytest.raises(InputError, match=r"^no phase has a pass; generation needs a prompt of 1 token or more$"):
        mean_pass((unused,))


def test_slowdowns_and_spreads_are_weighted_by_time_and_the_source_is_of_the_longest() -> None:
    chunk = table_of(
        [[8.0, 4.0], [16.0, 4.0]], 1.0, 0.0, slowdown=np.array([[0.5, 0], [0, 0]]), spread=np.full((2, 2), 0.4)
    )
    token = table_of(
        [[1.0, 4.0], [3.0, 4.0]], 1.0, 0.0, slowdown=np.array([[0.1, 0], [0, 0]]), spread=np.full((2, 2), 0.2)
    )
    found = mean_pass((PhaseCosts(Phase(8, 9), 1, 0, chunk), PhaseCosts(Phase(1, 9), 0, 2, token)))
    # operator 0 on device 0: 8 s of the chunk and 2 x 1 s of tokens
    assert found.slowdown[0, 0] == pytest.approx((8 * 0.5 + 2 * 0.1) / 10)
    assert found.spread[0, 0] == pytest.approx((8 * 0.4 + 2 * 0.2) / 10)


def test_a_cache_takes_no_part_of_a_request() -> None:
    device = replace(CLUSTER.devices[0], request_s=1.0)
    cluster = replace(CLUSTER, devices=(device, CLUSTER.devices[1]))
    cached = sketch(
        {"x": (4, 5), "w": (5, 5), "wk": (4, 5), "a": (4, 5), "after": (4, 5), "d": (4, 5)},
        [
            ("aten.linear.default", "x w", "a"),
            ("aten.add.Tensor", "wk a", "after"),
            ("aten.relu.default", "after", "d"),
        ],
        "d after",
    )
    roles = {"x": Role.INPUT, "wk": Role.CACHE}
    tensors = tuple(replace(t, role=roles.get(t.name, t.role)) for t in cached.tensors)
    cached = replace(cached, tensors=tensors, inputs=("x", "wk"), caches=(("wk", "after"),))
    more = tabulate(cached, cluster, Workload(), {}).forward_s - tabulate(cached, CLUSTER, Workload(), {}).forward_s
    assert more[:, 0].tolist() == pytest.approx(
        [0.5, 0.0, 0.5]
    )  # x is read by op0 and d written by op2; wk and after stay


def test_a_workload_of_generation_says_what_fits() -> None:
    asked = {"mode": "generation", "batch": 2, "in_flight": 3, "prompt": 5, "output": 4}
    assert Workload(**asked, context=8).sequences == 6  # type: ignore[arg-type]
    assert Workload(**asked, context=8, free=1).sequences == 5  # type: ignore[arg-type]
    for more, text in (
        ({"context": 7}, r"^a prompt of 5 tokens and 4 after it do not fit into the context of 7; ask for fewer, or"),
        ({"context": 8, "prompt": 0}, r"^the prompt has 0 tokens; generation needs 1 or more$"),
        ({"context": 8, "free": 2}, r"^2 free rows of a group of 2; leave them out, or take fewer groups$"),
        ({"context": 8, "mode": "inference"}, r"^prompt is for generation and the mode is inference; leave it out$"),
    ):
        with pytest.raises(InputError, match=text):
            Workload(**{**asked, **more})  # type: ignore[arg-type]
