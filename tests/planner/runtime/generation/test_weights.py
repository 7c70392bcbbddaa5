"""Weights in other formats: bytes, tokens of the same model in that format, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import planner
from graphs.ir import Graph, Role
from graphs.weights import kind_of_weights
from planner.cli import main
from tests.planner.cli.given import pair_here
from tests.planner.runtime.generation.tiny import CONTEXT, cut, hf

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 64}
CONFIG = {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False}
PROMPT, MORE = [1, 2, 3], 12
MODEL = """
from tests.planner.runtime.generation.test_weights import llama

def network():
    return llama(), ()
"""


def llama() -> Any:
    torch.manual_seed(0)
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**CONFIG)).eval()
    for parameter in model.parameters():
        parameter.data *= 3 if parameter.dim() > 1 else 1
    return model


def continued(model: Any) -> list[int]:
    """The tokens of transformers' own generate."""
    options = {"max_new_tokens": MORE, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return model.generate(torch.tensor([PROMPT]), **options)[0, len(PROMPT) :].tolist()  # type: ignore[no-any-return]


def by_torchao(model: Any, weights: str) -> Any:
    """The model quantised by torchao as its users do."""
    from torchao.prototype.quantization.int4.inference_workflow import PrototypeInt4WeightOnlyConfig
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(model, Int8WeightOnlyConfig() if weights == "int8" else PrototypeInt4WeightOnlyConfig(group_size=32))
    return model


def weight_bytes(graph: Graph) -> int:
    return sum(tensor.n_bytes for tensor in graph.tensors if tensor.role is Role.PARAMETER)


def from_pretrained(model: Any, weights: str, folder: Path) -> Any:
    """The model as transformers loads it in a dtype."""
    model.save_pretrained(folder)
    return hf.LlamaForCausalLM.from_pretrained(folder, dtype=getattr(torch, weights)).eval()


@pytest.mark.parametrize("weights", ["int8", "int4", "bfloat16"])
def test_tokens_are_those_of_the_model_that_a_library_keeps_so(weights: str, tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    whole = weights.startswith("int")
    expected = continued(by_torchao(llama(), weights) if whole else from_pretrained(llama(), weights, tmp_path))
    assert len(set(expected)) > 2
    (tmp_path / f"net_in_{weights}.py").write_text(MODEL, encoding="utf-8")
    named = planner.NamedModel(f"{tmp_path / f'net_in_{weights}.py'}:network", weights=weights)
    work = planner.OpenWorkload(prompt=3, output=MORE, context=CONTEXT)
    (tmp_path / "c.toml").write_text(pair_here(), encoding="utf-8")
    plan = planner.plan(named, cluster=tmp_path / "c.toml", goal="generation", workload=work)
    assert isinstance(plan, planner.Plan)
    assert kind_of_weights(plan.graph) == weights
    model = planner.generation_program(planner.with_weights(llama(), weights), context=CONTEXT, chunks=(8,))
    assert weight_bytes(plan.graph) == weight_bytes(model.decode.graph)
    with planner.GenerationRunner(cut(model, 2), model) as runner:
        assert runner.generate([PROMPT], MORE, stops=()) == [expected]


def test_bytes_are_those_of_the_format() -> None:
    pytest.importorskip("torchao")
    models = {w: planner.with_weights(llama(), w) for w in KINDS}
    n = {w: weight_bytes(planner.generation_program(model, chunks=()).decode.graph) for w, model in models.items()}
    linear = 2 * (64 * 64 * 2 + 2 * 32 * 64 + 3 * 96 * 64) + 64 * 64  # two layers, and the head
    rows = 2 * (64 * 2 + 2 * 32 + 2 * 96 + 64) + 64
    rest = 64 * 64 + 5 * 64  # the table of words, and norms
    assert n["float32"] == 4 * (linear + rest)
    assert n["float16"] == n["bfloat16"] == 2 * (linear + rest)
    assert n["int8"] == linear + 4 * rows + 4 * rest  # a scale for each row
    assert n["int4"] == linear // 2 + 2 * 4 * linear // 32 + 4 * rest  # a scale and a zero for 32 of a row


KINDS = ("float32", "float16", "bfloat16", "int8", "int4")


def test_a_plan_for_one_kind_of_weights_is_refused_with_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torchao")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "another_quantised_net.py").write_text(MODEL, encoding="utf-8")
    (tmp_path / "c.toml").write_text(pair_here(), encoding="utf-8")
    name = "another_quantised_net:network"
    asked = ["--cluster", "c.toml", "--goal", "generation", "--prompt", "3", "--new-tokens", "4", "--weights", "int8"]
    assert main(["plan", name, *asked, "-o", "plan.json"]) == 0
    assert "--new-tokens 4 --weights int8" in capsys.readouterr().out  # in what calibrates for it
    assert main(["run", "plan.json", name, "--generate", "4", "--rounds", "1"]) == 2
    said = (
        "the plan is for weights in int8, and those of the model are in float32; give it with --weights int8, or plan"
    )
    assert said in capsys.readouterr().err
    assert main(["run", "plan.json", name, "--generate", "4", "--rounds", "1", "--weights", "int8"]) == 0
    found = capsys.readouterr()
    assert "all 4 tokens are those of transformers' generate" in found.out
    assert "torchao" not in found.err


def test_a_config_has_shapes_in_the_format(tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    path = tmp_path / "config.json"
    about = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **CONFIG}
    path.write_text(json.dumps(about), encoding="utf-8")
    (tmp_path / "c.toml").write_text(pair_here(), encoding="utf-8")
    asked: dict[str, Any] = {"cluster": tmp_path / "c.toml", "goal": "generation"}
    work = planner.OpenWorkload(prompt=3, output=4)
    plan = planner.plan(planner.NamedModel(path, weights="int8"), workload=work, **asked)
    own = planner.generation_program(planner.with_weights(llama(), "int8"), context=7, chunks=())
    assert plan.network_fingerprint == own.decode.graph.fingerprint
    with pytest.raises(planner.InputError, match="has shapes and no weights, and torchao packs numbers into int4"):
        planner.plan(planner.NamedModel(path, weights="int4"), workload=work, **asked)


def test_what_is_kept_so_already_stays() -> None:
    pytest.importorskip("torchao")
    model = planner.with_weights(llama(), "int8")
    before = dict(model.named_parameters())
    planner.with_weights(model, "int8")
    assert all(parameter is before[name] for name, parameter in model.named_parameters())


@pytest.mark.parametrize(
    ("weights", "said"),
    [("int3", "the weights is 'int3'"), ("int8", "'Embedding' has no linear layer, so no weight can be kept in int8")],
)
def test_bad_input_is_named(weights: str, said: str) -> None:
    pytest.importorskip("torchao")
    with pytest.raises(planner.InputError, match=said):
        planner.with_weights(nn.Embedding(4, 4), weights)


def test_weights_are_for_generation() -> None:
    with pytest.raises(planner.InputError, match="weights in int8 are for generation; for one pass leave them out"):
        planner.NamedModel("examples.networks:mnist", weights="int8").load_program()
