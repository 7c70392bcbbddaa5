"""A small sharding program, for tests."""

from typing import Any


def two_products(**fields: Any) -> dict[str, Any]:
    """y = (x · w) · v, for 8 samples of 4 values; y is wanted whole.

    ::

        0 x [8, 4] ─┐
        1 w [4, 4] ─┴─ 2 dot [8, 4] ─┐
        3 v [4, 4] ──────────────────┴─ 4 dot [8, 4] ── 5 replicate
    """
    known = {
        "ops": [
            {"id": 0, "op": "parameter", "inputs": [], "shape": [8, 4]},
            {"id": 1, "op": "parameter", "inputs": [], "shape": [4, 4]},
            dot(2, [0, 1], [8, 4]),
            {"id": 3, "op": "parameter", "inputs": [], "shape": [4, 4]},
            dot(4, [2, 3], [8, 4]),
            {"id": 5, "op": "replicate", "inputs": [4], "shape": [8, 4]},
        ],
        "ties": [],
        "cases": [case(2, 1), case(1, 2)],
    }
    return known | fields


def case(n0: int, n1: int, **fields: Any) -> dict[str, Any]:
    """A mesh where a collective costs 1 and a byte 1, on either axis."""
    return {"mesh": [n0, n1], "alpha": [1, 1], "beta": [1, 1]} | fields


def dot(key: int, inputs: list[int], shape: list[int], **fields: Any) -> dict[str, Any]:
    """A product of two matrices."""
    known = {"id": key, "op": "dot", "inputs": inputs, "shape": shape, "batch": [[], []], "contract": [1, 0]}
    return known | fields
