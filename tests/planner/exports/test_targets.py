"""The table of targets, and those that write what we have already: schedules, graph.json, node-link JSON."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import networkx as nx
import pytest
from torch.distributed.pipelining import schedules as theirs

from costmodels.workload import Workload
from graphs.common.errors import InputError
from graphs.files import graph_from_dict
from planner import exports as package
from planner.exports import TARGETS, export
from planner.exports.generation.targets import GENERATION_TARGETS
from simulator.schedule import Schedule
from tests.planner.exports.nets import GPUS, chain, graph_of, plan_of

GRAPH = graph_of(chain(2))
PLAN = plan_of(GRAPH, {"0": 0, "1": 1, "2": 1}, GPUS)


def test_the_table_and_the_door() -> None:
    assert list(TARGETS) == [
        *("hf-device-map", "torch-split-spec", "torch-schedule-csv", "megatron-layout", "deepspeed", "torchgpipe"),
        *("graph-json", "networkx", "model-explorer-devices", "model-explorer-seconds"),
    ]
    assert package.__all__ == [
        *("TARGETS", "Export", "Map", "export", "map_of", "plan_by_hand", "read_map", "read_split_spec"),
    ]


def test_an_unknown_target_is_refused() -> None:
    known = ", ".join([*TARGETS, "onnx-devices", *GENERATION_TARGETS])
    with pytest.raises(InputError, match=f"^there is no target 'onnx'; known: {known}$"):
        export(PLAN, "onnx")


@pytest.mark.parametrize("target", ["hf-device-map", "torch-split-spec", "deepspeed", "torchgpipe", "networkx"])
def test_the_same_bytes_every_time(target: str) -> None:
    text = export(PLAN, target).text
    assert text.endswith("\n")
    assert text == export(plan_of(GRAPH, {"0": 0, "1": 1, "2": 1}, GPUS), target).text
    assert json.loads(text) == export(PLAN, target).document


def test_graph_json_is_the_graph() -> None:
    assert graph_from_dict(json.loads(export(PLAN, "graph-json").text)) == GRAPH


def test_networkx_reads_node_link() -> None:
    digraph = nx.node_link_graph(json.loads(export(PLAN, "networkx").text), edges="edges")
    assert digraph.is_directed()
    assert list(nx.topological_sort(digraph)) == [op.name for op in GRAPH.ops]
    first, second, _ = digraph.nodes
    assert digraph.nodes[first]["device"] == "gpu0"
    assert digraph.nodes[second] == {
        "kind": "aten.relu.default",
        "module": "1",
        "device": "gpu1",
        "position": 1,
        "forward_s": PLAN.table.forward_s[1, 1],
        "state_bytes": 0,
    }
    assert digraph.edges[first, second] == {"tensors": [first], "n_bytes": 2 * 8 * 4}


def test_a_schedule_for_torch(tmp_path: Path) -> None:
    """torch reads the file, and each rank does what we simulate."""
    workload = Workload(mode="training", batch=2, micro_batches=4, schedule="1f1b")
    plan = plan_of(GRAPH, {"0": 0, "1": 1, "2": 1}, GPUS, workload)
    (path := tmp_path / "schedule.csv").write_text(text := export(plan, "torch-schedule-csv").text, encoding="utf-8")
    assert text.splitlines() == ["0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3", "1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3"]
    runtime_class: Any = theirs._PipelineScheduleRuntime  # without types
    stage = SimpleNamespace(group_size=2, num_stages=2, group_rank=0, group=None, is_first=True, is_last=False)
    stage.stage_index, stage.has_backward, stage.submod = 0, True, None
    runtime = runtime_class([stage], 4)
    runtime._load_csv(str(path), "compute_only")
    actions = [[str(action) for action in runtime.pipeline_order[rank] if action] for rank in range(2)]
    assert Schedule.parse([" ".join(row) for row in actions]) == Schedule.parse(text.replace(",", " ").splitlines())


def test_a_plan_that_does_not_train_has_no_schedule() -> None:
    with pytest.raises(
        InputError,
        match=r"^the plan is for throughput; torch-schedule-csv needs a schedule: plan with --goal training$",
    ):
        export(PLAN, "torch-schedule-csv")
