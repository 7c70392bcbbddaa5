"""Caches in a graph: what is refused, who may write in place, what is kept on the device, by hand."""

from dataclasses import replace
from typing import Any

import pytest

from costmodels.memory.device import cache_bytes, lasting_bytes, op_bytes, tied_groups, working_bytes
from costmodels.memory.passes import inference_bytes
from costmodels.workload import Workload
from graphs.caches import in_place, users
from graphs.common.errors import InputError
from graphs.files import graph_from_dict, graph_to_dict
from graphs.ir import Graph, Role
from tests.costmodels.sketches import sketch

PUT = "aten.index_put.default"


def kept(graph: Graph, *caches: tuple[str, str]) -> Graph:
    """The graph with some of its inputs as caches."""
    names = {name for name, _ in caches}
    tensors = tuple(replace(t, role=Role.CACHE) if t.name in names else t for t in graph.tensors)
    return replace(graph, tensors=tensors, caches=caches)


# keys and values of 8 positions, a token's own, and attention over both; floats take 4 bytes
ATTENTION = kept(
    sketch(
        {"x": (2,), "xk": (8, 2), "xv": (8, 2), "w": (2, 2), "k": (2,), "k2": (8, 2), "v2": (8, 2), "a": (2,)},
        [
            ("aten.mv.default", "w x", "k"),
            (PUT, "xk k", "k2"),
            (PUT, "xv k", "v2"),
            ("aten.my.default", "k k2 v2", "a"),
        ],
        "a k2 v2",
    ),
    ("xk", "k2"),
    ("xv", "v2"),
)


def test_a_cache_without_another_reader_is_written_in_place() -> None:
    assert in_place(ATTENTION) == {"op1": ("xk", "k2"), "op2": ("xv", "v2")}


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "aten.add.Tensor"},  # a new tensor
        {"inputs": ("k", "xk")},  # the cache is what is written, not what is written to
        {"inputs": ("xk", "xk")},  # it reads the old values as well
    ],
)
def test_another_writer_does_not_write_in_place(changes: dict[str, Any]) -> None:
    ops = list(ATTENTION.ops)
    ops[1] = replace(ops[1], **changes)
    assert in_place(replace(ATTENTION, ops=tuple(ops))) == {"op2": ("xv", "v2")}


def test_another_reader_prevents_a_write_in_place() -> None:
    ops = list(ATTENTION.ops)
    ops[3] = replace(ops[3], inputs=("k", "k2", "v2", "xk"))
    assert in_place(replace(ATTENTION, ops=tuple(ops))) == {"op2": ("xv", "v2")}


def test_writers_and_readers_share_a_device() -> None:
    assert users(ATTENTION) == ((1, 3), (2, 3))
    assert tied_groups(ATTENTION) == ((1, 2, 3),)


def test_each_sequence_on_its_way_has_caches_of_its_own() -> None:
    cache = 4 * 8 * 2
    assert lasting_bytes(ATTENTION).tolist() == [0, cache, cache, 0]
    assert op_bytes(ATTENTION).tolist() == [4 * 4, cache, cache, 0]
    assert op_bytes(ATTENTION, Workload(in_flight=3)).tolist() == [4 * 4, 3 * cache, 3 * cache, 0]
    assert cache_bytes(ATTENTION).tolist() == [0, 0, 0, 0]  # no part of what is temporary


def test_a_write_in_place_takes_no_other_memory() -> None:
    # the input and the result, which the caller holds, and the token's own key, until attention has read it
    assert inference_bytes(ATTENTION) == 4 * (2 + 2 + 2)
    assert working_bytes(ATTENTION, Workload(in_flight=3)) == 3 * 4 * (2 + 2 + 2)


def test_caches_are_kept_in_files_and_change_the_fingerprint() -> None:
    assert graph_from_dict(graph_to_dict(ATTENTION)) == ATTENTION
    tensors = tuple(replace(t, role=Role.INPUT) if t.role is Role.CACHE else t for t in ATTENTION.tensors)
    plain = replace(ATTENTION, tensors=tensors, caches=())
    assert "caches" not in graph_to_dict(plain)
    assert plain.fingerprint != ATTENTION.fingerprint


@pytest.mark.parametrize(
    ("caches", "message"),
    [
        ((("xk", "k2"),), "tensor 'xv' must be a cache by its role and in the list of caches once, or by neither"),
        (
            (("xk", "k2"), ("xv", "v2"), ("xv", "v2")),
            "tensor 'xk' must be a cache by its role and in the list of caches once, or by neither",
        ),
        ((("xk", "k"), ("xv", "v2")), "the cache 'xk' is followed by 'k', which is no output of 'sketch'"),
        (
            (("xk", "a"), ("xv", "v2")),
            "the cache 'xk' is [8, 2] float32, and 'a', which follows it, is [2] float32; both must be alike",
        ),
    ],
)
def test_caches_that_do_not_fit_are_refused(caches: tuple[tuple[str, str], ...], message: str) -> None:
    with pytest.raises(InputError) as error:
        replace(ATTENTION, caches=caches)
    assert str(error.value) == message
