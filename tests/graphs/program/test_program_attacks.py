"""Programs from strangers: a file holds operators and values, and nothing in it becomes code or leads to a module."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphs.common.errors import InputError
from graphs.importers.from_torch import program_from_module
from graphs.ir import Graph
from graphs.program.files import program_from_dict, program_to_dict
from graphs.program.program import Program
from planner.runtime.stages.compile import compile_stages
from simulator.placement import Placement
from simulator.stages import split_stages
from tests.graphs.importers.modules import Function, X
from tests.planner.runtime.small import desk, make_plan

pytestmark = pytest.mark.attack("file")

TOUCH = "__import__('os').system('touch pwned')"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which an attack that succeeds leaves a file."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def honest() -> Program:
    return program_from_module(Function(lambda x: torch.nn.functional.gelu(x, approximate="tanh") + 1), (X,))


def carried_out(change: Callable[[dict[str, Any]], None], kind: str | None = None) -> str:
    """Why a program is refused, which is read and run where it is not."""
    program = honest()
    graph = program.graph
    if kind is not None:
        first, *others = graph.ops
        graph = replace(graph, ops=(replace(first, kind=kind), *others))
    document = json.loads(json.dumps(program_to_dict(program))) | {"fingerprint": graph.fingerprint}
    change(document)
    with pytest.raises(InputError) as refusal:
        run(document, graph, program.example_inputs)
    assert os.listdir() == []
    return str(refusal.value)


def run(document: dict[str, Any], graph: Graph, inputs: tuple[torch.Tensor, ...]) -> None:
    read = program_from_dict(document, graph, inputs)
    plan = make_plan(read, Placement((0,) * len(graph.ops)), desk(1))
    compiled, _ = compile_stages(read, split_stages(plan.table, plan.placement), plan.cluster.devices)
    (stage,) = compiled.values()
    stage.call(*read.example_inputs)


def same(_document: dict[str, Any]) -> None:
    """Nothing is changed."""


def call(args: list[Any], **kwargs: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        document["calls"]["gelu"] = {"args": args, "kwargs": kwargs}

    return change


def field(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.__setitem__(name, value)


def form(kind: Any, context: Any, children: Any = ()) -> str:
    return json.dumps([1, {"type": kind, "context": context, "children_spec": list(children)}])


ARGUMENT = {"tensor": honest().graph.inputs[0]}


@pytest.mark.parametrize(
    "keyword", [f"approximate={TOUCH}, x", f"x={TOUCH}", "approximate\n", "lambda", "", "out", "self", "__class__"]
)
def test_a_keyword_is_one_of_the_operators(keyword: str) -> None:
    text = carried_out(call([ARGUMENT], **{keyword: "none"}))
    assert "operator 'gelu'" in text


@pytest.mark.parametrize(
    "kind",
    [
        "os.system.default",
        "aten.add.default.__globals__",
        "aten.gelu.__class__",
        "aten.gelu.default.__init__",
        "aten.gelu._schema",
        "aten.gelu",
        "gelu",
        "",
        "..",
        "aten..default",
        "__class__.__init__.__globals__",
        "load_library.__func__.__globals__",
        "loaded_libraries.add.__self__",
        "prim.Print.default",
        "prim.data.default",
        "higher_order.wrap_with_set_grad_enabled.default",
        "higher_order.cond.default",
        "_operator.getitem.default",
        "aten.from_file.default",
        "debugprims.load_tensor.default",
        "profiler._record_function_enter.default",
        "profiler._record_function_enter_new.default",
        "_c10d_functional.all_reduce.default",
        "c10d.barrier.default",
        "inductor._reinterpret_tensor.default",
        "aten.gelu_.default",
        "aten.gelu.out",
        "aten.resize_.default",
        "aten.is_same_size.default",
        "aten.item.default",
        "aten.sym_size.int",
    ],
)
def test_a_target_is_a_function_of_tensors(kind: str) -> None:
    text = carried_out(same, kind)
    assert text.startswith(f"operator 'gelu' is of the kind '{kind}', which ")


@pytest.mark.parametrize("name", ["etc/passwd", "out"])
def test_no_operator_reads_or_writes_a_file(name: str, here: Path) -> None:
    carried_out(call([str(here / name), True, 16]), "aten.from_file.default")


@pytest.mark.parametrize("value", ["load", "ops", "os", "float33", "__builtins__", "Tensor", "float32.__class__", 3])
@pytest.mark.parametrize("key", ["dtype", "layout", "memory_format"])
def test_a_value_of_torchs_is_what_it_says(key: str, value: object) -> None:
    carried_out(call([ARGUMENT, {key: value}]))


@pytest.mark.parametrize(
    "argument",
    [
        {"tensor": ["x"]},
        {"tensor": "gelu"},
        {"float": []},
        {"float": "1_0__"},
        {"complex": TOUCH},
        {"device": TOUCH},
        {"tuple": 3},
        {"tuple": {"x": 1}},
        {"eval": TOUCH},
        {},
        {"dtype": "float32", "device": "cpu"},
    ],
)
def test_an_argument_is_a_value(argument: object) -> None:
    carried_out(call([ARGUMENT, argument]))


def test_an_operator_reads_what_its_graph_says() -> None:
    assert "operator 'gelu'" in carried_out(call([]))
    assert "operator 'gelu'" in carried_out(call([ARGUMENT, ARGUMENT]))
    assert "operator 'gelu'" in carried_out(call([ARGUMENT] * 9))


def test_deep_nesting_ends_in_one_line() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert carried_out(call([ARGUMENT, deep])).startswith("the program is damaged")
    spec = '{"type": "builtins.tuple", "context": "null", "children_spec": [' * 5000 + "]}" * 5000
    assert "the program is damaged" in carried_out(field("out_spec", f"[1, {spec}]"))


@pytest.mark.parametrize("depth", [101, 900, 5000])
def test_text_in_text_is_nested_no_deeper_than_the_file(depth: int) -> None:
    told = "the program is damaged: ValueError('lists or objects are nested deeper than 100'); write it anew"
    deep = "[" * depth + "]" * depth
    assert carried_out(field("out_spec", f"[1, {deep}]")) == told
    assert carried_out(field("out_spec", form("builtins.dict", deep))) == told


@pytest.mark.parametrize("name", ["in_spec", "out_spec"])
@pytest.mark.parametrize(
    "spec",
    [
        form("evil.Thing", "null"),
        form("evil", "null"),
        form("this.that", "null"),
        form(
            "collections.defaultdict",
            {"default_factory_module": "evil", "default_factory_name": "f", "dict_context": ["x"]},
            [{"type": None, "context": None, "children_spec": []}],
        ),
        form(
            "collections.defaultdict",
            {"default_factory_module": "os", "default_factory_name": "system", "dict_context": ["touch pwned"]},
            [{"type": None, "context": None, "children_spec": []}],
        ),
        form("builtins.dict", '[{"__enum__": true, "fqn": "evil:Thing", "name": "x"}]'),
        form("builtins.dict", '[{"__enum__": true, "fqn": "os:environ", "name": "HOME"}]'),
        form("builtins.dict", '[{"\\u005f_enum__": true, "fqn": "evil:Thing", "name": "x"}]'),
        form("builtins.tuple", 3),
        form(3, "null"),
        form(["builtins.tuple"], "null"),
        json.dumps([2, None]),
        json.dumps({"1": 2}),
        "9" * 5000,
        None,
        [1],
    ],
)
def test_a_form_leads_to_no_module(name: str, spec: Any, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(here))
    loaded = set(sys.modules)
    (here.parent / "kept").mkdir(exist_ok=True)
    evil = here.parent / "kept" / "evil.py"
    evil.write_text(f"{TOUCH}\ndef f(): ...\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(evil.parent))
    carried_out(field(name, spec))
    assert not {"evil", "this"} & (set(sys.modules) - loaded)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("state", {"x": {"stride": [4, 1], "requires_grad": False}}),
        ("state", {"__class__": {"stride": [], "requires_grad": False}}),
        ("statistics", ["x"]),
        ("statistics", 3),
        ("updates", {"n": {"shape": [], "dtype": "load", "increment": 1}}),
        ("updates", {"n": {"shape": [], "dtype": "int64", "increment": TOUCH}}),
        ("updates", {"n": {"shape": [-1], "dtype": "int64", "increment": 1}}),
        ("in_leaves", ["nowhere"]),
        ("in_leaves", []),
        ("in_leaves", [{"constant": 1}]),
        ("out_leaves", ["nowhere"]),
        ("out_leaves", [{"constant": {"dtype": "load"}}]),
        ("out_leaves", [{"constant": {"tensor": "x"}}]),
        ("calls", {}),
        ("calls", []),
    ],
)
def test_the_rest_fits_to_the_graph(name: str, value: Any) -> None:
    carried_out(field(name, value))


@pytest.mark.parametrize("stride", [[1 << 40, 1], [0, 0], [-1, 4], [4], [1.5, 1], ["a", 1]])
def test_a_weight_lies_in_memory_of_its_size(stride: list[Any]) -> None:
    program = program_from_module(torch.nn.Linear(4, 4, bias=False), (X,))
    document = program_to_dict(program)
    document["state"]["weight"]["stride"] = stride
    with pytest.raises(InputError):
        program_from_dict(document, program.graph, (X,))
