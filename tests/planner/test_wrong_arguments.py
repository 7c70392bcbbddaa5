"""The public door refuses what is none of its arguments: one clear sentence that names the thing and the value.

The table says for each function what it is called with; each argument is then replaced by values of wrong types, and
by the wrong values that the table gives.
"""

import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import planner
from costmodels.cluster.writer import write_cluster
from graphs.common.errors import InputError
from graphs.files import write_graph
from planner.parallelism.closed_form.config import (
    Demands,
    ParallelConfig,
    ParallelShape,
    StageLayers,
    training_setting,
)
from planner.parallelism.closed_form.config_file import config_to_dict
from planner.parallelism.closed_form.search import choose_config
from planner.parallelism.closed_form.transformer import Transformer
from planner.planning.choose import TransformerChoices
from planner.plans.files import save_plan
from planner.problem.problem import Goal, Problem
from simulator.placement import Placement
from simulator.training import TrainingStep
from tests.planner.view.samples import chain_graph, chain_plan, cluster

MODULES = ["stem", "stem", "block", "block"]
GRAPH, CLUSTER, PLAN = chain_graph(MODULES), cluster(), chain_plan(MODULES, 2)
PAIR = planner.catalogue_cluster("H100-SXM-80GB", 2, "NVLink4")
LARGE = Transformer(layers=2, hidden=64, heads=4)
SETTING = training_setting(LARGE, PAIR, batch=2, demands=Demands(zero=0, schedule="1f1b", recompute="none"))
ROWS = TransformerChoices(SETTING, choose_config(SETTING, time_limit_s=5.0))
PROBLEM = Problem(PLAN.table, Goal.THROUGHPUT)
DEVICE = {"name": "a", "kind": "cpu", "memory_bytes": 1.0, "flops_per_s": {"float32": 1.0}, "memory_bytes_per_s": 1.0}
QUICK = planner.Search(time_limit_s=5.0, autotuning=False)
NOTHING = object()  # of no type that anybody takes

Case = tuple[Callable[..., Any], dict[str, Any], dict[str, tuple[Any, ...]]]

LLAMA = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2}
LLAMA |= {"num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256}

CASES: dict[str, Case] = {
    "ServingLimits": (
        planner.ServingLimits,
        {"first_token_s": 0.3, "token_s": 0.02},
        {"first_token_s": (0.0, -1.0), "token_s": (0.0,)},
    ),
    "fit": (
        planner.fit,
        {"model": LLAMA, "cluster": PAIR, "advise": True, "context": 1024, "sequences": 2, "prompt": 64, "output": 64}
        | {"weights": "q4_K", "cache": "q8_0", "engine": "llama-cpp"},
        {"context": (0, 100), "sequences": (0,), "weights": ("q4_Q",), "cache": ("q3",), "engine": ("llama",)},
    ),
    "serve": (
        planner.serve,
        {"model": LLAMA, "cluster": PAIR, "limits": planner.ServingLimits(), "context": 1024, "prompt": 64},
        {"context": (0, 32)},
    ),
    "Search": (
        planner.Search,
        {"solver": "auto", "time_limit_s": 1.0, "gap": 0.1, "seed": 0, "robust": 0, "reporter": planner.Reporter()},
        {
            "solver": ("ipl",),
            "time_limit_s": (-1, 0, float("nan"), float("inf"), "5", True),
            "gap": (-0.1, 1, 5, float("nan")),
            "seed": (-1, 0.5),
            "robust": (-1, 2.5),
        },
    ),
    "Workload": (
        planner.Workload,
        {"mode": "training", "batch": 1, "in_flight": 2, "optimizer": "sgd", "micro_batches": 1, "schedule": "1f1b"},
        {
            "mode": ("trainig",),
            "batch": (0, "2", 1.5),
            "in_flight": (0, None),
            "optimizer": ("adm",),
            "micro_batches": (0, 0.5),
            "schedule": ("zb", "forward-only"),
        },
    ),
    "OpenWorkload": (
        planner.OpenWorkload,
        {
            "in_flight": None,
            "optimizer": "sgd",
            "schedule": None,
            "micro_batches": 2,
            "recompute": "full",
            "replicas": None,
        },
        {
            "in_flight": (0, "2"),
            "optimizer": ("adm",),
            "schedule": ("zb",),
            "micro_batches": (0, 0.5),
            "recompute": ("yes",),
            "replicas": (0,),
        },
    ),
    "Sampling": (
        planner.Sampling,
        {"temperature": 1.0, "top_k": 2, "top_p": 0.5, "seed": 0},
        {"temperature": (-1, float("inf"), float("nan")), "top_k": (-1, 0.5), "top_p": (0, 1.5), "seed": (-1, 0.5)},
    ),
    "generation_program": (
        planner.generation_program,
        {"model": "no.json", "rows": 1, "context": 8, "chunks": (4,), "lengths": (4,)},
        {"rows": (0, "2", 1.5), "context": (1, "8"), "chunks": ((1,), 4, "4"), "lengths": ((0,), 4)},
    ),
    "with_weights": (
        planner.with_weights,
        {"module": torch.nn.Linear(32, 16), "weights": "float32"},
        {"module": ("net.py:model", None), "weights": ("int2", 8)},
    ),
    "NamedModel": (
        planner.NamedModel,
        {"name": "a:b", "batch": 2, "sizes": {"seq": 16}, "weights": "int8"},
        {"batch": (0, "2", 1.5), "sizes": (("seq", 16), {"seq": "16"}), "weights": ("int2", 8)},
    ),
    "CalibrationOptions": (
        planner.CalibrationOptions,
        {"training": False, "again": False, "channel": "gloo", "sweep": False, "split_cpu": 1, "kernels": "quick"},
        {"training": (1,), "channel": ("glo",), "split_cpu": ("all", 1.5), "kernels": ("fast",)},
    ),
    "Device": (planner.Device, DEVICE, {"memory_bytes": ("1 GiB", 0, -1), "flops_per_s": (1e9, {"float32": "1"})}),
    "Link": (
        planner.Link,
        {"src": "a", "dst": "b", "bytes_per_s": 1.0, "latency_s": 0.0},
        {"bytes_per_s": ("1 GB/s", 0), "latency_s": (-1, "1 us")},
    ),
    "Level": (planner.Level, {"size": 2, "bytes_per_s": 1.0}, {"size": (1, 1.5), "bytes_per_s": ("1 GB/s", 0)}),
    "Cluster": (planner.Cluster, {"name": "a", "devices": CLUSTER.devices}, {"devices": ((), ("cpu0",), "cpu0")}),
    "TrainerOptions": (
        planner.TrainerOptions,
        {"accumulate": 1, "clip_norm": 1.0, "recompute": "full", "autocast": None, "seed": 0},
        {
            "accumulate": (0, 1.5),
            "clip_norm": (0, "1"),
            "recompute": ("yes",),
            "autocast": ("bf16",),
            "seed": (-1, "0"),
        },
    ),
    "Problem": (Problem, {"table": PLAN.table, "goal": "latency"}, {"goal": ("speed",)}),
    "TrainingStep": (
        TrainingStep,
        {"schedule": "zbv", "micro_batches": 1},
        {"schedule": ("zb",), "micro_batches": (0,)},
    ),
    "catalogue_cluster": (
        planner.catalogue_cluster,
        {"device": "H100-SXM-80GB", "count": 2, "link": "NVLink4", "hosts": 1},
        {"device": ("H100",), "count": (0, -1, 1.5), "link": ("NVLnk4",), "hosts": (0,)},
    ),
    "read_cluster": (planner.read_cluster, {"path": "cluster.toml"}, {"path": ("no.toml", ".")}),
    "write_cluster": (planner.write_cluster, {"cluster": CLUSTER, "path": "new.toml"}, {"path": ("no/new.toml",)}),
    "load_plan": (planner.load_plan, {"path": Path("plan.json")}, {"path": ("no.json", ".")}),
    "save_plan": (planner.save_plan, {"plan": PLAN, "path": "new.json"}, {"path": ("no/new.json",)}),
    "pin": (lambda pattern, device: planner.pin(pattern, device), {"pattern": "a", "device": "b"}, {"pattern": ("",)}),
    "solve": (
        planner.solve,
        {
            "problem": PROBLEM,
            "solver": "auto",
            "time_limit_s": 5.0,
            "gap": 0.1,
            "seed": 0,
            "reporter": planner.Reporter(),
        },
        {"solver": ("ipl",), "time_limit_s": (-1, "5"), "gap": (1, "0"), "seed": (-1,)},
    ),
    "evaluate": (
        planner.evaluate,
        {"problem": PROBLEM, "placement": PLAN.placement},
        {"placement": (Placement((9,)),)},
    ),
    "plan": (
        planner.plan,
        {
            "model": GRAPH,
            "cluster": CLUSTER,
            "goal": "latency",
            "workload": planner.Workload(),
            "constraints": (planner.pin("*", "cpu0"),),
            "search": QUICK,
        },
        {
            "model": ("no.onnx", "no.such:factory", planner.NamedModel("no.onnx", 4)),
            "cluster": ("no.toml", (), (1,)),
            "goal": ("speed",),
            "workload": ("inference",),
            "constraints": (("pin",), "pin"),
        },
    ),
    "ChooseOptions": (
        planner.ChooseOptions,
        {"memory_bytes": 1e9, "tensor": 2, "zero": 1, "schedule": "1f1b", "optimizer": "adam", "time_limit_s": 1.0},
        {
            "memory_bytes": (0, "1 GiB"),
            "tensor": (0, 1.5),
            "zero": (4, -1),
            "schedule": ("zb",),
            "optimizer": ("adm",),
            "time_limit_s": (0, "5"),
        },
    ),
    "WhatIf": (
        planner.WhatIf,
        {"settings": (), "add_device": (), "in_flight": 2, "schedule": None, "recompute": None},
        {"settings": ("cpu0.memory=1GiB", (1,)), "in_flight": (0,), "schedule": ("zb",), "recompute": ("yes",)},
    ),
    "choose": (
        planner.choose,
        {"model": "config.json", "cluster": PAIR, "global_batch": 2, "choose_options": planner.ChooseOptions()},
        {"model": ("no.json",), "cluster": ("no.toml",), "global_batch": (0, 1.5), "choose_options": ({},)},
    ),
    "diff": (planner.diff, {"before": PLAN, "after": "plan.json"}, {"before": ("no.json",), "after": (".",)}),
    "elsewhere": (
        planner.elsewhere,
        {"plan": PLAN, "op": GRAPH.ops[0].name},
        {"plan": ("no.json",), "op": ("no such",)},
    ),
    "explain": (
        planner.explain,
        {"plan": "plan.json", "cuts": 0, "search": QUICK},
        {"plan": ("no.json",), "cuts": (-1, 1.5)},
    ),
    "export": (
        planner.export,
        {"plan": PLAN, "to": "networkx", "copy": None, "model": None},
        {"plan": ("no.json",), "to": ("networkz",), "copy": (0, 2, "1"), "model": ("net.onnx",)},
    ),
    "export_row": (
        planner.export_row,
        {"choices": ROWS, "to": "megatron-args", "row": 1, "all": True},
        {"choices": (PLAN,), "to": ("megatron",), "row": (0, 99, "1"), "all": (1,)},
    ),
    "import_map": (
        planner.import_map,
        {"map": "map.json", "model": GRAPH, "cluster": CLUSTER, "goal": "latency", "workload": None, "search": QUICK},
        {"map": ("no.json",), "model": ("no.onnx",), "cluster": ((), "no.toml", (CLUSTER,)), "goal": ("speed",)},
    ),
    "shard": (
        planner.shard,
        {"plan": PLAN, "model": "a:b", "output": "shards", "force": False},
        {"plan": ("no.json",), "model": ("no.onnx", GRAPH), "output": ("no/shards",), "force": (1,)},
    ),
    "show": (
        planner.show,
        {"plan": PLAN, "output": "plan.html", "format": "html", "measured": None},
        {"plan": ("no.json",), "output": ("no/plan.html",), "format": ("pdf",), "measured": ("no.json",)},
    ),
    "simulate": (
        planner.simulate,
        {"plan": PLAN, "model": None, "micro_batches": 2, "sharing": "fifo", "what_if": None, "search": None},
        {
            "plan": ("no.json",),
            "model": ("no.onnx",),
            "micro_batches": (0, 1.5),
            "sharing": ("first",),
            "what_if": (planner.WhatIf(settings=("cpu9.memory=1GiB",)),),
        },
    ),
    "verify": (
        planner.verify,
        {"plan": PLAN, "model": "a:b", "training": None, "tolerance": None},
        {"plan": ("no.json",), "model": ("no.onnx", GRAPH), "training": (1,), "tolerance": ("0",)},
    ),
    "calibrate": (planner.calibrate, {"model": None}, {"model": ("no.onnx",)}),
    "divisions": (
        planner.divisions,
        {"split_cpu": "auto", "channel": "threads", "kernels": "exact"},
        {"split_cpu": (0, "all", 10**6), "channel": ("glo",), "kernels": ("fast",)},
    ),
    "start": (planner.start, {"plan": PLAN, "model": "a:b"}, {"plan": ("no.json",), "model": ("no.onnx", GRAPH)}),
    "train": (
        planner.train,
        {"plan": PLAN, "model": "a:b", "loss": None, "optimizer": print},
        {"plan": ("no.json",), "model": ("no.onnx",), "loss": ("mse",), "optimizer": ("adam",)},
    ),
    "tune": (
        planner.tune,
        {"model": "a:b", "cluster": CLUSTER, "goal": "latency", "search": QUICK, "seconds": 5.0},
        {"model": ("no.onnx", GRAPH), "cluster": ("no.toml", ()), "goal": ("speed",), "seconds": (-1, "5")},
    ),
    "read_language_model": (
        planner.read_language_model,
        {"source": {"model_type": "gpt2", "n_layer": 1}},
        {"source": ("no.gguf", "row.json", "plan.json", {}, "cluster.toml")},
    ),
    "load_config": (planner.load_config, {"path": "row.json"}, {"path": ("no.json", "plan.json", "")}),
    "Plan.simulate": (PLAN.simulate, {"micro_batches": 8}, {"micro_batches": (0, -1, 1.5, 10**9)}),
    "Plan.device_of": (PLAN.device_of, {"op": GRAPH.ops[0].name}, {"op": ("no such",)}),
    "Cluster.first": (CLUSTER.first, {"n_devices": 1}, {"n_devices": (0, 3)}),
    "Cluster.divided": (CLUSTER.divided, {"count": 1}, {"count": (0, 3)}),
}
"""By name: what is called, right arguments, and values of each of them that are wrong besides those of no type."""

NEVER_RUN = {"calibrate", "divisions", "generation_program", "shard", "start", "train", "tune", "verify"}
"""Right arguments of these would take time, or other things."""


WRONG = [
    pytest.param(name, argument, value, id=f"{name}-{argument}-{number}")
    for name, (_, right, wrong) in CASES.items()
    for argument in right
    for number, value in enumerate((NOTHING, *wrong.get(argument, ())))
]


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLANNER_CACHE", str(tmp_path / "cache"))
    write_cluster(CLUSTER, "cluster.toml")
    save_plan(PLAN, "plan.json")
    Path("config.json").write_text('{"layers": 2, "hidden": 64, "heads": 4}', encoding="utf-8")
    Path("map.json").write_text('{"": "cpu0"}', encoding="utf-8")
    row = ParallelConfig(ParallelShape(2, 1, 1, 2, 2), (StageLayers(4, 0, 0),))
    Path("row.json").write_text(json.dumps(config_to_dict(row)), encoding="utf-8")


@pytest.mark.parametrize("name", sorted(CASES.keys() - NEVER_RUN))
def test_right_arguments(name: str) -> None:
    call, right, _ = CASES[name]
    call(**right)


@pytest.mark.attack("first-try")
@pytest.mark.parametrize(("name", "argument", "value"), WRONG)
def test_wrong_arguments(name: str, argument: str, value: object) -> None:
    call, right, _ = CASES[name]
    with pytest.raises(InputError) as error:
        call(**{**right, argument: value})
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_every_public_name_is_tried() -> None:
    results = {
        "Evaluation",
        "GenerationPlan",
        "InputError",
        "ModelDescription",
        "NoPlanError",
        "Plan",
        "Result",
        "Status",
        "Tuned",
    }  # what comes out
    started = {"HostedTrainer", "Reporter", "Runner", "Trainer"}  # made by start and train, or to be overridden
    started |= {"GenerationRunner"}  # tests/planner/runtime/generation
    started |= {"HybridTrainer"}  # each of several ranks makes one: tests/planner/runtime/hybrid
    alike = {"Goal", "contiguous", "forbid", "together", "whole"}  # as plan's goal, and as pin
    assert CASES.keys() | results | started | alike >= set(planner.__all__)
    for name, (call, right, wrong) in CASES.items():
        assert wrong.keys() <= right.keys(), name
        if is_dataclass(call):
            assert right.keys() <= {field.name for field in fields(call)}


@pytest.mark.attack("first-try")
def test_the_nearest_word_is_suggested() -> None:
    for name, argument, wrong, meant in (
        ("Search", "solver", "ipl", "ilp"),
        ("Workload", "schedule", "zb", "zbv"),
        ("CalibrationOptions", "channel", "glo", "gloo"),
        ("plan", "goal", "trougput", "throughput"),
    ):
        call, right, _ = CASES[name]
        with pytest.raises(InputError, match=f"'{wrong}'.*did you mean '{meant}'"):
            call(**{**right, argument: wrong})


@pytest.mark.attack("first-try")
def test_names_of_files_are_taken_for_what_they_hold() -> None:
    for name in ("cluster.toml", Path("cluster.toml"), ["cluster.toml"]):
        assert planner.plan(GRAPH, cluster=name, goal="latency", search=QUICK).cluster == CLUSTER
    write_graph(GRAPH, Path("graph.json"))
    assert planner.plan("graph.json", cluster=CLUSTER, goal="latency", search=QUICK).graph == GRAPH
    with pytest.raises(InputError, match=r"no file 'no\.onnx'"):
        planner.start("plan.json", "no.onnx")
