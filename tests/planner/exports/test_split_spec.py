"""torch-split-spec: torch.distributed.pipelining cuts where the plan does."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.pipelining import SplitPoint, pipeline

from graphs.common.errors import InputError
from planner.exports import export, map_of, read_split_spec
from planner.plans.plan import Plan
from tests.planner.exports.nets import GPUS, Block, Decoder, X, chain, graph_of, plan_of


def spec(plan: Plan) -> Any:
    return export(plan, "torch-split-spec").document


DECODER = {"embed": 0, "layers.0": 0, "layers.1": 0, "layers.2": 1, "layers.3": 1, "norm": 2, "head": 2}


def test_a_stage_begins_with_the_outermost_module() -> None:
    assert spec(plan_of(graph_of(Decoder()), DECODER, GPUS)) == {
        "split_spec": {"layers.2": "BEGINNING", "norm": "BEGINNING"},
        "devices": [0, 1, 2],
    }


def test_a_list_of_modules_is_never_called_and_no_split_point() -> None:
    plan = plan_of(graph_of(Decoder()), {"embed": 0, "layers": 1, "norm": 1, "head": 1}, GPUS)
    assert spec(plan)["split_spec"] == {"layers.0": "BEGINNING"}


def test_a_stage_that_begins_between_modules_is_cut_behind_the_one_before() -> None:
    graph = graph_of(Decoder())
    tanh = next(number for number, op in enumerate(graph.ops) if op.module == "")
    plan = plan_of(graph, tuple(int(number >= tanh) for number in range(len(graph.ops))), GPUS)
    assert spec(plan) == {"split_spec": {"norm": "END"}, "devices": [0, 1]}


class Functions(nn.Module):
    """Two functions in a row."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(torch.relu(x))


@pytest.mark.parametrize(
    ("module", "device", "text"),
    [
        (
            nn.Sequential(nn.Linear(8, 8), Functions()),
            (0, 0, 1),
            "stage 1 begins with operator 'tanh' inside of module '1'; torch-split-spec cuts at the beginning "
            "or the end of a module: plan with --together '1'",
        ),
        (
            Functions(),
            (0, 1),
            "stage 1 begins with operator 'tanh'; torch-split-spec cuts at the beginning or the end of a module: "
            "plan with --together 'relu,tanh'",
        ),
        (
            nn.Sequential(nn.Linear(8, 8), Block()),
            (0, 0, 0, 1, 2),
            "stage 1 is module '1.down' alone, and stage 2 begins with no module; torch-split-spec has one split "
            "point for each module: plan with --together '1.down,add'",
        ),
    ],
)
def test_what_is_no_pipeline_of_modules_is_refused(module: nn.Module, device: tuple[int, ...], text: str) -> None:
    plan = plan_of(graph_of(module), device, GPUS)
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        spec(plan)


class Shared(nn.Module):
    """One activation, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.act = nn.Linear(8, 8), nn.Linear(8, 8), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.act(self.b(self.act(self.a(x))))
        return y


def test_a_module_that_is_called_twice_is_no_split_point() -> None:
    graph = graph_of(Shared())
    assert [op.module for op in graph.ops] == ["a", "act", "b", "act"]
    assert spec(plan_of(graph, (0, 0, 0, 1), GPUS))["split_spec"] == {"b": "END"}
    assert spec(plan_of(graph, (0, 1, 1, 1), GPUS))["split_spec"] == {"a": "END"}


def test_a_device_may_have_several_stages() -> None:
    plan = plan_of(graph_of(chain(4)), {"0": 0, "1": 0, "2": 1, "3": 1, "4": 0, "5": 0, "6": 1}, GPUS)
    assert spec(plan) == {"split_spec": dict.fromkeys("246", "BEGINNING"), "devices": [0, 1, 0, 1]}


class Branches(nn.Module):
    """Two branches that nothing orders."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3))
        self.end = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.end(self.a(x) + self.b(x) + self.c(x))
        return y


def test_branches_in_another_order_than_the_model_s_are_refused() -> None:
    graph = graph_of(Branches())
    assert [op.module for op in graph.ops] == ["a.0", "a.1", "b.0", "b.1", "", "c.0", "c.1", "", "end"]
    text = (
        "the model goes back to gpu0 for operator 'linear_2' after it has been on gpu1; torch-split-spec cuts the "
        "model's own order into stages: plan with --together 'linear_2,add'"
    )
    with pytest.raises(InputError, match=f"^{re.escape(text)}$"):
        spec(plan_of(graph, (0, 0, 1, 1, 1, 0, 0, 1, 1), GPUS))


def built(module: nn.Module, plan: Plan, folder: Path) -> list[set[str]]:
    """The parameters of each stage of torch's pipeline; it computes what the module does."""
    path = folder / "split.json"
    path.write_text(export(plan, "torch-split-spec").text, encoding="utf-8")
    expected = module(X)
    pipe = pipeline(module, mb_args=(X,), split_spec=read_split_spec(path, SplitPoint))
    assert torch.equal(pipe(X)[0], expected)
    return [{name for name, _ in pipe.get_stage_module(i).named_parameters()} for i in range(pipe.num_stages)]


def planned(plan: Plan, n_stages: int) -> list[set[str]]:
    """The parameters that each device of the plan holds."""
    homes = zip(plan.graph.ops, plan.placement.device, strict=True)
    held = [(device, tensor.name) for op, device in homes for tensor in plan.graph.state(op)]
    return [{name for device, name in held if device == stage} for stage in range(n_stages)]


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch's own tracing
def test_torch_builds_the_planned_stages(between: bool, tmp_path: Path) -> None:
    module = Decoder().eval()
    graph = graph_of(module)
    device = list(plan_of(graph, DECODER, GPUS).placement.device)
    if between:  # the second cut is behind norm, before tanh
        device[max(number for number, op in enumerate(graph.ops) if op.module == "norm")] = 1
    plan = plan_of(graph, tuple(device), GPUS)
    assert built(module, plan, tmp_path) == planned(plan, 3)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch's own tracing
def test_torch_builds_branches(tmp_path: Path) -> None:
    module = Branches().eval()
    plan = plan_of(graph_of(module), {"a": 0, "b": 0, "c": 1, "end": 1}, GPUS)
    assert built(module, plan, tmp_path) == planned(plan, 2)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    path.write_text('{"split_spec": {"a": "MIDDLE"}}', encoding="utf-8")
    with pytest.raises(InputError, match="has no split_spec of BEGINNING and END; export the plan to torch-split-spec"):
        read_split_spec(path, SplitPoint)


CHAIN = graph_of(chain(5))


@given(st.lists(st.integers(1, 3), min_size=1, max_size=3))
def test_split_points_come_back(sizes: list[int]) -> None:
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes) - 1)]
    plan = plan_of(CHAIN, tuple(sum(op >= end for end in ends) for op in range(len(CHAIN.ops))), GPUS)
    assert map_of(spec(plan)).placement(CHAIN, GPUS) == plan.placement
