"""Plans for generating text for the tools that run them: lines by hand, tools that install here, and refusals."""

import json
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.utils import check_device_map  # type: ignore[import-untyped]
from transformers import AutoModelForCausalLM, LlamaConfig

import planner
from costmodels.cluster.cluster import Device
from graphs.common.errors import InputError
from planner.exports.generation.targets import GENERATION_TARGETS, export_generation
from planner.generation.plan import GenerationPlan
from tests.planner.generation import small

LLAMA = {"model_type": "llama", "num_hidden_layers": 8, "hidden_size": 1024, "num_attention_heads": 4} | {
    "num_key_value_heads": 2,
    "intermediate_size": 2048,
    "vocab_size": 8000,
    "dtype": "float16",
}
"""Weights of 16 bits: 18.9 MB a layer, 16.4 MB each for embedding and head; buffers take 33 MB."""


def planned(*devices: Device, model: Any = None, **asked: Any) -> GenerationPlan:
    """Return a plan for a context of 1,024."""
    plan = planner.fit(LLAMA if model is None else model, cluster=small.cluster(*devices), context=1024, **asked)
    assert plan.speeds is not None, plan.advice
    return plan


def two_gpus() -> GenerationPlan:
    """Return a plan that two unlike GPUs of a host are needed for."""
    return planned(small.device("gpu0", 170), small.device("gpu1", 120, "RTX-3090", speed=0.9))


def devices_of_layers(line: str, n_layers: int) -> list[int | None]:
    """Return the device of each layer and of the head as llama.cpp reads its words: None for the processors.

    `llama_model::load_tensors`: the last -ngl of the layers and the head are on devices, by an upper bound in the
    cumulated and normalised -ts.
    """
    words = line.split()
    ngl = int(words[words.index("-ngl") + 1])
    split = [float(part) for part in words[words.index("-ts") + 1].split(",")] if "-ts" in words else [1.0]
    sums = [total / sum(split) for total in accumulate(split)]
    first, on_devices = max(n_layers + 1 - ngl, 0), min(ngl, n_layers + 1)
    return [
        None if layer < first else bisect_right(sums, (layer - first) / on_devices) for layer in range(n_layers + 1)
    ]


def test_llama_cpp_gives_each_layer_to_the_device_of_the_plan() -> None:
    plan = two_gpus()
    line = planner.export(plan, "llama-cpp").text
    order = [stage.devices[0] for stage in plan.stages]
    homes = [number for number, stage in enumerate(plan.stages) for _ in range(stage.start, stage.stop)]
    assert devices_of_layers(line, 8) == [*homes, len(order) - 1]
    names = ",".join(f"CUDA{name[-1]}" for name in order)
    assert f"--device {names} " in line
    assert "-c 1024 -np 1" in line


def test_llama_cpp_keeps_the_first_layers_on_the_processors() -> None:
    cpu = small.device("cpu0", 2000, "Xeon-6980P", speed=0.05)
    plan = planned(cpu, small.device("gpu0", 170))
    assert [stage.devices for stage in plan.stages] == [("cpu0",), ("gpu0",)]
    cut = plan.stages[0].stop
    homes = devices_of_layers(planner.export(plan, "llama-cpp").text, 8)
    assert homes == [None] * cut + [0] * (9 - cut)


def test_llama_cpp_names_the_experts_that_are_away() -> None:
    cpu = small.device("cpu0", 4000, "Xeon-6980P", speed=0.2)
    mixture = small.model(*[small.layer(1024, 1024, experts=16)] * 4)
    plan = planned(cpu, small.device("gpu0", 330), model=mixture, sequences=1)
    away = [layer for stage in plan.stages for layer in stage.away]
    text = planner.export(plan, "llama-cpp").text
    assert ("-ot" in text) == bool(away)
    if away:
        assert f"blk\\.({'|'.join(map(str, away))})\\.ffn_(up|down|gate|gate_up)_exps=CPU" in text


def test_accelerate_takes_the_map_of_a_real_model() -> None:
    plan = two_gpus()
    exported = planner.export(plan, "accelerate")
    sizes = {key: value for key, value in LLAMA.items() if key != "model_type"}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(LlamaConfig(**sizes))
    check_device_map(model, exported.document)
    for stage in plan.stages:
        number = int(stage.devices[0][-1])
        assert all(exported.document[f"model.layers.{layer}"] == number for layer in range(stage.start, stage.stop))
    assert exported.document["lm_head"] == int(plan.stages[-1].devices[0][-1])
    assert all("free for the cache of 1 × 1024 tokens" in note for note in exported.notes)


def test_vllm_has_the_layers_of_each_stage_and_the_limits() -> None:
    plan = planned(
        small.device("gpu0", 320), small.device("gpu1", 200, "RTX-3090", speed=0.9), engine="vllm", sequences=2
    )
    counts = ",".join(str(stage.stop - stage.start) for stage in plan.stages)
    text = planner.export(plan, "vllm").text
    assert f"VLLM_PP_LAYER_PARTITION={counts} " in text
    assert text.endswith(
        f"vllm serve MODEL --tensor-parallel-size 1 --pipeline-parallel-size {len(plan.stages)} --max-model-len 1024 "
        "--max-num-seqs 2\n"
    )
    assert f"SGLANG_PP_LAYER_PARTITION={counts} " in planner.export(plan, "sglang").text


def test_ktransformers_has_a_rule_for_every_layer() -> None:
    plan = two_gpus()
    rules = planner.export(plan, "ktransformers").text
    for stage in plan.stages:
        layers = "|".join(map(str, range(stage.start, stage.stop)))
        assert f'name: "^model\\\\.layers\\\\.({layers})\\\\."' in rules
        assert f'generate_device: "cuda:{stage.devices[0][-1]}"' in rules


def test_a_file_gives_what_the_plan_gives(tmp_path: Path) -> None:
    plan = two_gpus()
    plan.save(tmp_path / "fit.json")
    for target in GENERATION_TARGETS:
        assert export_generation(tmp_path / "fit.json", target).text == planner.export(plan, target).text


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("vllm", r"^the processors 'cpu0' have layers; vllm computes on GPUs: leave them out of the cluster$"),
        ("ktransformers", r"^the processors 'cpu0' have whole layers; ktransformers has only experts there: plan for"),
        ("networkx", r"^'networkx' runs no language models; known: llama-cpp, vllm, sglang, accelerate, ktransformers"),
    ],
)
def test_what_a_tool_cannot_express_is_refused(target: str, message: str) -> None:
    plan = planned(small.device("cpu0", 2000, "Xeon-6980P", speed=0.05), small.device("gpu0", 170))
    with pytest.raises(InputError, match=message):
        planner.export(plan, target)


def test_a_file_that_lacks_something_is_refused(tmp_path: Path) -> None:
    plan, path = two_gpus(), tmp_path / "fit.json"
    plan.save(path)
    document = json.loads(path.read_text(encoding="utf-8"))
    for change, message in (
        ({"version": 9}, "has version 9, and 1 is known"),
        ({"stages": document["stages"][:1]}, "does not have each layer on one stage"),
        ({"hardware": document["hardware"][:1]}, "which is none of its devices"),
    ):
        path.write_text(json.dumps({**document, **change}), encoding="utf-8")
        with pytest.raises(InputError, match=message):
            planner.export(path, "llama-cpp")
