"""Who hands what to whom, worked out by hand on a network of four operators."""

from typing import Any

import pytest

from graphs.common.errors import InputError
from graphs.ir import Graph, Op, Role, Tensor
from planner.runtime.training.wiring import OUTSIDE, WiredStage, Wiring, check_owners


def graph(*ops: tuple[str, tuple[str, ...]], outputs: tuple[str, ...]) -> Graph:
    """Operators that write a tensor of their own name; x comes in, w and v are parameters, b is a buffer."""
    role = {"x": Role.INPUT, "w": Role.PARAMETER, "v": Role.PARAMETER, "b": Role.BUFFER}
    names = [name for name in role if any(name in reads for _, reads in ops) or name in outputs]
    tensors = [Tensor(name, (2,), "float32", role[name]) for name in names]
    tensors += [Tensor(name, (2,), "float32", Role.ACTIVATION) for name, _ in ops]
    records = tuple(Op(name, "aten.made_up", reads, (name,)) for name, reads in ops)
    return Graph("small", records, tuple(tensors), ("x",), outputs)


LINE = graph(("p", ("x", "w")), ("q", ("p", "b")), ("r", ("q", "p", "v")), ("s", ("r", "p", "b")), outputs=("s", "p"))
LEARNED = frozenset({"w", "v", "p", "q", "r", "s"})


def wired(**of: Any) -> WiredStage:
    empty = dict.fromkeys(("ops", "state", "receives", "sends", "returns", "awaits"), ())
    return WiredStage(**empty | of)


def test_a_tensor_that_every_stage_reads() -> None:
    wiring = Wiring(LINE, ((0,), (1, 2), (3,)), LEARNED)
    assert wiring.stages == (
        wired(ops=(0,), state=("w",), receives=("x",), sends=("p",), awaits=(("p", 1),)),
        wired(
            ops=(1, 2),
            state=("v", "b"),
            receives=("p",),
            sends=("r",),
            returns=("p",),
            awaits=(("p", 2), ("r", 2)),
        ),
        wired(ops=(3,), state=("b",), receives=("r", "p"), returns=("r", "p")),
    )
    assert wiring.home == {"x": OUTSIDE, "w": 0, "v": 1, "p": 0, "q": 1, "r": 1, "s": 2}
    assert wiring.readers["p"] == (1, 2)
    assert (wiring.readers_behind("p", 0), wiring.readers_behind("p", 1)) == ((1, 2), (2,))
    assert wiring.names == (("x", "w"), ("p", "b"), ("q", "p", "v"), ("r", "p", "b"), ("s", "p"))
    assert wiring.forks == {}


def test_one_stage_sends_nothing() -> None:
    assert Wiring(LINE, ((0, 1, 2, 3),), LEARNED).stages == (
        wired(ops=(0, 1, 2, 3), state=("w", "v", "b"), receives=("x",)),
    )


def test_what_is_not_learned_gets_no_gradient() -> None:
    stages = Wiring(LINE, ((0, 1), (2, 3)), frozenset({"v", "r", "s"})).stages
    assert stages[0] == wired(ops=(0, 1), state=("w", "b"), receives=("x",), sends=("p", "q"))
    assert stages[1] == wired(ops=(2, 3), state=("v", "b"), receives=("q", "p"))


def test_a_parameter_of_several_stages_lives_in_the_first() -> None:
    tied = graph(("p", ("x", "w")), ("q", ("p",)), ("r", ("q", "w")), outputs=("r", "w"))
    wiring = Wiring(tied, ((0,), (1,), (2,)), frozenset({"w", "p", "q", "r"}))
    assert wiring.stages == (
        wired(ops=(0,), state=("w",), receives=("x",), sends=("w", "p"), awaits=(("w", 2), ("p", 1))),
        wired(ops=(1,), receives=("p",), sends=("q",), returns=("p",), awaits=(("q", 2),)),
        wired(ops=(2,), receives=("q", "w"), returns=("q", "w")),
    )


def test_a_frozen_parameter_is_held_by_each_that_reads_it() -> None:
    tied = graph(("p", ("x", "w")), ("q", ("p", "v")), ("r", ("q", "w")), outputs=("r",))
    stages = Wiring(tied, ((0, 1), (2,)), frozenset({"v", "q", "r"})).stages
    assert [stage.state for stage in stages] == [("v", "w"), ("w",)]
    assert [stage.receives for stage in stages] == [("x",), ("q",)]


def test_readers_out_of_turn_get_a_copy_each() -> None:
    # p is read by q, r and s; q and s are in the first stage, r in the second
    tangle = graph(("p", ("x", "w")), ("q", ("p",)), ("r", ("p", "p")), ("s", ("p", "q")), outputs=("r", "s"))
    wiring = Wiring(tangle, ((0, 1, 3), (2,)), frozenset({"w", "p", "q", "r", "s"}))
    assert wiring.forks == {"p": ("p#0", "p#1", "p#2", "p#3")}  # the latest reader is s, then r, argument by argument
    assert wiring.names == (("x", "w"), ("p#3",), ("p#1", "p#2"), ("p#0", "q"), ("r", "s"))
    assert wiring.stages == (
        wired(
            ops=(0, 1, 3),
            state=("w",),
            receives=("x",),
            sends=("p#1", "p#2", "s"),
            awaits=(("p#1", 1), ("p#2", 1), ("s", 1)),
        ),
        wired(ops=(2,), receives=("p#1", "p#2", "s"), returns=("p#1", "p#2", "s")),
    )


def test_operators_run_in_the_order_of_the_graph() -> None:
    assert [stage.ops for stage in Wiring(LINE, ((1, 0), (3, 2)), LEARNED).stages] == [(0, 1), (2, 3)]


def test_a_parameter_has_one_owner() -> None:
    tied = graph(("p", ("x", "w", "b")), ("q", ("p", "w", "b")), outputs=("q",))
    wiring = Wiring(tied, ((0,), (1,)), frozenset({"w", "p", "q"}))
    check_owners(wiring, [0, 0], ["a", "b"])
    with pytest.raises(InputError) as error:
        check_owners(wiring, [0, 1], ["a", "b"])
    assert str(error.value) == (
        "parameter 'w' is read on 'a' and 'b'; operators that train the same parameter belong on one device: plan again"
    )
    check_owners(Wiring(tied, ((0,), (1,)), frozenset()), [0, 1], ["a", "b"])  # it is frozen
