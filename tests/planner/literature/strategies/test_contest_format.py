"""The format of the ASPLOS 2025 contest: what it means, and what is said of a file that means nothing."""

from math import inf
from typing import Any

import pytest

from graphs.common.errors import InputError
from planner.literature.strategies.contest_format import contest_problem


def small(nodes: dict[str, Any] | None = None, edges: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """Node 0 with two strategies beside node 1 with three."""
    known_nodes = {"intervals": [[0, 2], [1, 3]], "costs": [[1, 2], [3, 0, 9]], "usages": [[5, 1], [4, 6, 0]]}
    known_edges = {"nodes": [[1, 0]], "costs": [[10, 20, 30, 40, 50, 60]]}
    return {
        "problem": {
            "name": "small",
            "nodes": known_nodes | (nodes or {}),
            "edges": known_edges | (edges or {}),
            "usage_limit": 8,
            **fields,
        }
    }


def test_its_costs_and_memory() -> None:
    problem = contest_problem(small())
    assert problem.cost((1, 2)) == 2 + 9 + 60  # the third row's second column
    assert problem.cost((0, 1)) == 1 + 0 + 30
    assert problem.peak((0, 1)) == 5 + 6
    assert problem.allows((1, 1))
    assert not problem.allows((0, 1))


def test_without_a_limit() -> None:
    assert contest_problem(small(usage_limit=None)).limit == inf


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "the file has no problem; add it, an object"),
        (small({"usages": [[1, 1]]}), "nodes of problem of the file has 1 usages; give 2, one for each"),
        (small({"usages": [[1], [1, 1, 1]]}), "node 0 has usages = [1]; it must be a list of 2 numbers of 0 or more"),
        (small({"costs": [[], [1]]}), "node 0 has no strategies; give it one cost at least"),
        (small({"intervals": [[0], [1, 2]]}), "node 0 has interval = [0]; it must be a list of 2 whole numbers"),
        (small(edges={"nodes": [[0, 7]]}), "edge 0 names node 7, but nodes go from 0 to 1"),
        (small(edges={"costs": [[1, 2]]}), "edge 0 has costs = [1, 2]; it must be a list of 6 numbers of 0 or more"),
    ],
)
def test_bad_input_is_named(document: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        contest_problem(document)
    assert str(error.value).startswith(message)
