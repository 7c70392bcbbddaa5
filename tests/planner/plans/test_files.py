"""plan.json: out and in without loss, and what is said of one that is not as it should be."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.measured import Profile
from costmodels.operator_times import OperatorTimes
from costmodels.profilefile import write_profile
from costmodels.table import Source, arrays_of
from costmodels.tabulate import assemble
from costmodels.workload import Workload
from graphs.common.errors import InputError
from planner.plans.files import load_plan, plan_from_dict, plan_to_dict, save_plan
from planner.plans.plan import Plan
from planner.problem.constraints import contiguous, pin, together
from planner.problem.problem import Goal
from simulator.placement import Placement
from tests.costmodels.parts import table_with
from tests.planner.sample import INF, PLAN, table


def assert_equal(one: Plan, other: Plan) -> None:
    for name in ("graph", "cluster", "workload", "goal", "placement", "status", "solver", "bound_s"):
        assert getattr(one, name) == getattr(other, name), name
    read = dict(arrays_of(other.table))
    assert read.keys() == {name for name, _ in arrays_of(one.table)}
    for name, expected in arrays_of(one.table):
        np.testing.assert_array_equal(read[name], expected, err_msg=name)


def test_round_trip(tmp_path: Path) -> None:
    save_plan(PLAN, tmp_path / "plan.json")
    assert_equal(PLAN, load_plan(tmp_path / "plan.json"))
    save_plan(PLAN, str(tmp_path / "again.json"))
    assert_equal(PLAN, load_plan(str(tmp_path / "again.json")))


def test_the_same_plan_is_the_same_bytes(tmp_path: Path) -> None:
    save_plan(PLAN, tmp_path / "one.json")
    save_plan(load_plan(tmp_path / "one.json"), tmp_path / "two.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.json", "two.json"]


def test_what_people_look_for_in_the_file() -> None:
    document = plan_to_dict(PLAN)
    assert document["placement"] == {"a": "gpu0", "b": "cpu0", "c": "cpu0"}
    assert document["order"] == ["b", "a", "c"]
    assert document["predicted"]["load_s"] == {"cpu0": 5.5, "gpu0": 3.5, "cpu1": 0.0}
    assert document["costs"] == [
        {"devices": ["cpu0", "cpu1"], "forward_s": [4.0, 1.0, 2.0], "source": ["measured"] * 3},
        {"devices": ["gpu0"], "forward_s": [1.0, None, 3.0], "source": ["roofline"] * 3},
    ]
    assert plan_to_dict(replace(PLAN, placement=Placement((1, 0, 0))))["order"] is None


def test_the_file_is_json_that_others_can_read(tmp_path: Path) -> None:
    free = replace(PLAN, table=table([[0.0, 0.0, 0.0]] * 3), placement=Placement((0, 0, 0)), bound_s=0.0)
    assert free.samples_per_s == INF
    assert free.gap == 0
    save_plan(free, tmp_path / "plan.json")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    document = json.loads((tmp_path / "plan.json").read_text("utf-8"), parse_constant=refuse)
    assert document["predicted"]["samples_per_s"] is None
    assert "naïve" in (tmp_path / "plan.json").read_text("utf-8")
    assert_equal(free, load_plan(tmp_path / "plan.json"))


def test_devices_of_one_kind_may_differ() -> None:
    """Their times follow from their peaks; the kind is a name."""
    uneven = replace(PLAN, table=table([[4.0, 1.0, 8.0], [1.0, INF, 2.0], [2.0, 3.0, 4.0]]))
    assert_equal(uneven, plan_from_dict(plan_to_dict(uneven)))


@given(st.data())
def test_round_trip_of_any_costs(data: st.DataObject) -> None:
    seconds = st.floats(0, 1e9) | st.just(INF)
    rows = [[data.draw(st.floats(0, 1e9)), data.draw(seconds), data.draw(seconds)] for _ in range(3)]
    sources = [[data.draw(st.sampled_from(list(map(str, Source)))) for _ in range(3)] for _ in range(3)]
    plan = replace(PLAN, table=table(rows, sources=sources), placement=Placement((0, 0, 0)), bound_s=0.0)
    text = json.dumps(plan_to_dict(plan))
    again = plan_from_dict(json.loads(text))
    assert_equal(plan, again)
    assert json.dumps(plan_to_dict(again)) == text


def test_figures_are_computed_not_believed() -> None:
    document = plan_to_dict(PLAN)
    document |= {"objective_s": 1e-9, "gap": 0.0, "predicted": {"samples_per_s": 1e9}}
    plan = plan_from_dict(document)
    assert (plan.objective_s, plan.samples_per_s) == (5.5, 4 / 5.5)
    assert (plan.solver, plan.bound_s) == ("by hand", 1.375)  # the proof is gone with them


SLOWDOWN = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
TRAINING = Workload("training", batch=4)
TRAINING_TIMES = OperatorTimes(
    forward_s=PLAN.table.forward_s,
    source=PLAN.table.source,
    backward_s=2 * PLAN.table.forward_s,
    slowdown=SLOWDOWN,
    copies_slowdown=np.zeros_like(SLOWDOWN),
)
CONTENDED = replace(
    PLAN,
    workload=TRAINING,
    goal=Goal.TRAINING,
    table=assemble(PLAN.graph, PLAN.cluster, TRAINING, TRAINING_TIMES),
)


@pytest.mark.parametrize("copies", [0.0, 0.5, 1.0])
def test_slowdown_is_kept(copies: float) -> None:
    plan = replace(CONTENDED, table=table_with(CONTENDED.table, copies_slowdown=copies * SLOWDOWN))
    assert_equal(plan, plan_from_dict(plan_to_dict(plan)))


def test_constraints_are_kept() -> None:
    asked = (pin("*", "cpu0", "gpu0"), together(PLAN.graph.ops[0].name), contiguous())
    plan = replace(PLAN, constraints=asked)
    again = plan_from_dict(json.loads(json.dumps(plan_to_dict(plan))))
    assert again.constraints == asked
    assert again.problem.contiguous == frozenset(range(len(PLAN.graph.ops)))


# Files that are no plan, or not any more


def refusal(change: Callable[[dict[str, Any]], Any]) -> str:
    """What is said of the plan after a change by hand."""
    document = json.loads(json.dumps(plan_to_dict(PLAN)))
    change(document)
    with pytest.raises(InputError) as error:
        plan_from_dict(document)
    return str(error.value)


def put(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    """Set what stands at a path."""

    def change(document: dict[str, Any]) -> None:
        place: Any = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            put("version", value=12),
            "the plan has the version 12, this planner reads 1; plan again",
        ),
        (
            put("version", value=None),
            "the plan has the version None, this planner reads 1; plan again",
        ),
        (lambda plan: plan.pop("placement"), "the plan is damaged: KeyError('placement'); plan again"),
        (put("placement", "a", value="gpu9"), "the plan has operator 'a' on 'gpu9'; its devices are cpu0, gpu0, cpu1"),
        (
            lambda plan: plan["placement"].pop("c"),
            "the plan says nothing of operator 'c'; give it a device, or plan again",
        ),
        (
            put("placement", "z", value="cpu0"),
            "the plan names the operator 'z', which its graph does not have; plan again",
        ),
        (put("placement", "b", value="gpu0"), "operator 'b' cannot run on 'gpu0'"),
        (
            put("placement", "a", value="cpu1"),
            "tensor 'a' must go from 'cpu1' to 'cpu0', but there is no link; add a [[link]] to cluster.toml",
        ),
        (put("order", value=["b", "c", "a"]), "the placement's order runs 'c' before 'a', which writes its input"),
        (put("order", value=["b", "a"]), "the placement's order must name every operator exactly once"),
        (
            put("order", value=["b", "a", "z"]),
            "the plan names the operator 'z', which its graph does not have; plan again",
        ),
        (
            put("goal", value="comfort"),
            "the goal is 'comfort'; it must be one of throughput, latency, training, cost, generation",
        ),
        (
            put("status", value="great"),
            "the plan is damaged: ValueError(\"'great' is not a valid Status\"); plan again",
        ),
        (
            put("costs", 0, "source", 1, value="felt"),
            "the plan is damaged: ValueError(\"'felt' is not a valid Source\"); plan again",
        ),
        (
            put("bound_s", value="low"),
            "the plan is damaged: ValueError(\"could not convert string to float: 'low'\"); plan again",
        ),
        (put("workload", "batch", value=0), "the batch is 0; it must be 1 or more"),
        (
            put("workload", "mode", value="play"),
            "the workload has mode = 'play'; it must be one of inference, training, generation",
        ),
        (
            put("costs", 0, "forward_s", value=[1.0, -1.0, 1.0]),
            "the cost table's forward_s is -1.0 for operator 'b'; costs are 0 or more",
        ),
        (
            put("costs", 0, "forward_s", value=[1.0, 1e308, 1.0]),
            "the cost table's forward_s is 1e+308 for operator 'b'; costs are 1e+100 or less",
        ),
        (
            put("costs", 0, "spread", value=[0.1, 1e10, 0.1]),
            "the cost table's spread holds a number above 1e+09; it is a share of a time",
        ),
        (put("costs", 0, "devices", value=["cpu0"]), "the plan is damaged: KeyError('cpu1'); plan again"),
        (
            put("cluster", "version", value=7),
            "the cluster has the version 7, this planner reads 1; make the plan again",
        ),
        (
            put("graph", "ops", 0, "kind", value="aten.relu.default"),
            "graph 'naïve' was changed by hand: its fingerprint is ",
        ),
        (put("cluster", value=[]), "the plan is damaged: AttributeError("),
        (put("graph", value="none"), "the plan is damaged: AttributeError("),
        (put("costs", value=3), "the plan is damaged: TypeError("),
        (put("costs", 0, "forward_s", value=[1.0]), "the plan is damaged: ValueError("),
        (put("workload", "speed", value=3), "the plan is damaged: TypeError("),
    ],
)
def test_a_plan_that_was_changed_by_hand(change: Callable[[dict[str, Any]], Any], text: str) -> None:
    said = refusal(change)
    assert said.startswith(text) if text[-1] in "( " else said == text
    assert "\n" not in said


@pytest.mark.parametrize("key", sorted(set(plan_to_dict(PLAN)) - {"version", "predicted", "gap", "objective_s"}))
def test_every_field_that_counts_is_asked_for(key: str) -> None:
    if key in ("model", "fingerprint", "phases"):  # for people; the graph has its own; phases are those of generation
        document = plan_to_dict(PLAN)
        del document[key]
        assert_equal(PLAN, plan_from_dict(document))
    else:
        assert refusal(lambda plan: plan.pop(key)) == f"the plan is damaged: KeyError('{key}'); plan again"


def test_no_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with pytest.raises(InputError) as error:
        load_plan(path)
    assert str(error.value) == f"cannot read the plan '{path}': No such file or directory; check the path"


@pytest.mark.parametrize(
    ("text", "said"), [("{", "is not JSON ("), ("[]", "holds a list, not an object"), ("\x80", "is no text in UTF-8")]
)
def test_no_plan(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(InputError) as error:
        load_plan(path)
    assert str(error.value).startswith(f"the plan '{path}' {said}")


def test_a_file_that_breaks_off_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save_plan(PLAN, path)
    text = path.read_text("utf-8")
    for end in range(0, len(text) - 2, 97):
        path.write_text(text[:end], encoding="utf-8")
        with pytest.raises(InputError, match="is not JSON"):
            load_plan(path)


# Places that cannot be written to


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "plan.json"
    with pytest.raises(InputError) as error:
        save_plan(PLAN, path)
    assert str(error.value) == f"cannot write '{path}': No such file or directory; choose another place"
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.mkdir()
    with pytest.raises(InputError) as error:
        save_plan(PLAN, path)
    assert str(error.value) == f"cannot write '{path}': Is a directory; choose another place"
    assert list(tmp_path.iterdir()) == [path]
    assert list(path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_leaves_the_old_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save_plan(PLAN, path)
    before = path.read_bytes()
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(InputError) as error:
            save_plan(replace(PLAN, solver="another"), path)
    finally:
        tmp_path.chmod(0o700)
    assert str(error.value) == f"cannot write '{path}': Permission denied; choose another place"
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_is_full_leaves_the_old_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    save_plan(PLAN, path)
    before = path.read_bytes()
    write = Path.write_bytes

    def full(self: Path, content: bytes) -> int:
        write(self, content[:1000])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError) as error:
        save_plan(replace(PLAN, solver="another"), path)
    assert str(error.value) == f"cannot write '{path}': No space left on device; choose another place"
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_wrong_with_a_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "newer.json"
    path.write_text(json.dumps(plan_to_dict(PLAN) | {"version": 12}), encoding="utf-8")
    with pytest.raises(InputError) as error:
        load_plan(path)
    assert str(error.value).startswith(f"{path}: the plan has the version 12, this planner reads 1; ")


def test_a_graph_is_no_plan(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(plan_to_dict(PLAN)["graph"]), encoding="utf-8")
    with pytest.raises(InputError) as error:
        load_plan(path)
    assert str(error.value) == (f"'{path}' is a graph, no plan; make one of it with planner plan {path} --cluster FILE")


def test_another_file_of_ours_is_no_plan(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    write_profile(tmp_path, Profile("profile", {}, {}))
    with pytest.raises(InputError) as error:
        load_plan(path)
    assert str(error.value) == f"'{path}' is a profile, no plan; make one with planner plan MODEL --cluster FILE"


def places(document: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where something stands in a document, on every level."""
    for key in document if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ():
        yield (*path, key)
        yield from places(document[key], (*path, key))


@pytest.mark.attack("file")
@pytest.mark.parametrize("odd", [10**299, -1, [[]], "x", None], ids=["huge", "negative", "nested", "text", "null"])
def test_whatever_stands_in_a_plan_is_told_in_one_line(odd: object) -> None:
    text = json.dumps(plan_to_dict(PLAN))
    for path in list(places(json.loads(text)))[::5]:
        document = holder = json.loads(text)
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = odd
        with suppress(InputError):
            plan_from_dict(document)
