"""Rows of ``planner choose`` for other tools: what they say, what the tools read, and what is refused."""

import json
import re
import tomllib
from argparse import ArgumentParser
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from graphs.common.errors import InputError
from planner.parallelism.closed_form.config import (
    Demands,
    ParallelConfig,
    ParallelShape,
    RankOrder,
    StageLayers,
    TrainingSetting,
)
from planner.parallelism.closed_form.model_file import transformer_of
from planner.parallelism.closed_form.search import choose_config
from planner.parallelism.closed_form.transformer import RMS_NORM, Transformer
from planner.parallelism.exports.megatron_network import megatron_network
from planner.parallelism.exports.parallel_config import CONFIG_TARGETS, export_config, target_limits
from tests.planner.parallelism.closed_form.settings import a100s

LLAMA = Transformer(32, 4096, 32, 8192, 128256, 14336, 8, True, RMS_NORM, False, False, True, False, True)
SETTING = TrainingSetting(LLAMA, a100s(32), 64)
PIPELINE = ParallelShape(4, 4, 2, 1, 16, 1, "interleaved", 4)
DATA_ALONE = ParallelShape(32, 1, 1, 1, 2, 3)


def config(shape: ParallelShape, *stages: StageLayers) -> ParallelConfig:
    return ParallelConfig(shape, stages)


def test_megatrons_arguments() -> None:
    words = export_config(SETTING, config(PIPELINE, *[StageLayers(0, 16, 0)] * 2), "megatron-args").text.split()
    given = dict(zip(words, [*words[1:], ""], strict=True))
    assert given["--tensor-model-parallel-size"] == "4"
    assert given["--pipeline-model-parallel-size"] == "2"
    assert given["--num-layers-per-virtual-pipeline-stage"] == "4"
    assert (given["--micro-batch-size"], given["--global-batch-size"]) == ("1", "64")
    assert given["--num-query-groups"] == "8"
    assert given["--recompute-granularity"] == "selective"
    assert {"--sequence-parallel", "--use-distributed-optimizer", "--swiglu", "--bf16"} <= set(words)


NUMBERS = """num-layers hidden-size ffn-hidden-size num-attention-heads num-query-groups kv-channels seq-length
vocab-size rotary-base max-position-embeddings
tensor-model-parallel-size pipeline-model-parallel-size num-layers-per-virtual-pipeline-stage
decoder-first-pipeline-num-layers decoder-last-pipeline-num-layers micro-batch-size global-batch-size
recompute-num-layers"""
FLAGS = """group-query-attention swiglu disable-bias-linear untie-embeddings-and-output-weights use-flash-attn
add-qkv-bias qk-layernorm no-bias-gelu-fusion use-rope-scaling
accumulate-allreduce-grads-in-fp32 bf16 sequence-parallel use-tp-pp-dp-mapping use-distributed-optimizer"""
WORDS = {
    "normalization": ["LayerNorm", "RMSNorm"],
    "position-embedding-type": ["learned_absolute", "rope"],
    "recompute-granularity": ["full", "selective"],
    "recompute-method": ["uniform", "block"],
}


def megatrons_parser() -> ArgumentParser:
    """The options that Megatron-LM's megatron/training/arguments.py declares, of those that an export may write."""
    parser = ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name in NUMBERS.split():
        parser.add_argument(f"--{name}", type=int)
    for name in FLAGS.split():
        parser.add_argument(f"--{name}", action="store_true")
    for name, choices in WORDS.items():
        parser.add_argument(f"--{name}", choices=choices)
    parser.add_argument("--window-size", type=lambda text: tuple(map(int, text.split(","))))
    for name in ("attention-dropout", "hidden-dropout", "norm-epsilon", "rotary-percent", "rope-scaling-factor"):
        parser.add_argument(f"--{name}", type=float)
    return parser


@pytest.mark.parametrize("network", [LLAMA, Transformer(32, 4096, 32, 2048, 51200)])
@pytest.mark.parametrize("modes", [(16, 0, 0), (0, 16, 0), (0, 0, 16), (10, 0, 6)])
@pytest.mark.parametrize("order", ["data", "pipeline"])
def test_megatrons_parser_knows_all_arguments(
    network: Transformer, modes: tuple[int, int, int], order: RankOrder
) -> None:
    setting = TrainingSetting(network, a100s(32), 64)
    shape = PIPELINE._replace(order=order)
    exported = export_config(setting, config(shape, *[StageLayers(*modes)] * 2), "megatron-args")
    own = megatrons_parser().parse_args(exported.text.split())
    assert (own.num_layers, own.hidden_size, own.seq_length) == (network.layers, network.hidden, network.sequence)
    assert own.use_tp_pp_dp_mapping == (order == "pipeline")
    assert (own.recompute_granularity is None) == (modes[0] == 16)
    assert (own.recompute_method is None) == (modes[2] == 0)  # Megatron-LM refuses one without whole layers


def test_megatron_takes_other_ends_and_some_whole_layers() -> None:
    shape = PIPELINE._replace(pipeline=3, schedule="1f1b", chunks=1)
    stages = StageLayers(8, 0, 2), StageLayers(10, 0, 2), StageLayers(8, 0, 2)
    text = export_config(SETTING, config(shape, *stages), "megatron-args").text
    assert "--decoder-first-pipeline-num-layers 10 --decoder-last-pipeline-num-layers 10" in text
    assert "--recompute-granularity full --recompute-method block --recompute-num-layers 2" in text


def test_torchtitans_toml() -> None:
    shape = PIPELINE._replace(zero=3)
    text = export_config(SETTING, config(shape, *[StageLayers(16, 0, 0)] * 2), "torchtitan").text
    tables = tomllib.loads(text)
    parallelism = tables["parallelism"]
    assert parallelism["data_parallel_shard_degree"] * parallelism["data_parallel_replicate_degree"] == 4
    assert parallelism["pipeline_parallel_schedule"] == "Interleaved1F1B"
    parts = parallelism["module_fqns_per_model_part"]
    assert [part[0] for part in parts] == ["tok_embeddings", *(f"layers.{first}" for first in range(4, 32, 4))]
    assert (parts[0][-1], parts[-1][-3:]) == ("layers.3", ["layers.31", "norm", "output"])
    assert tables["training"] == {"local_batch_size": 16, "global_batch_size": 64, "seq_len": 8192}
    assert tables["activation_checkpoint"] == {"mode": "none"}


def test_deepspeeds_config() -> None:
    exported = export_config(SETTING, config(DATA_ALONE, StageLayers(0, 0, 32)), "deepspeed-zero")
    document = json.loads(exported.text)
    assert document["zero_optimization"] == {"stage": 3}
    assert (
        document["train_batch_size"]
        == 32 * document["train_micro_batch_size_per_gpu"] * document["gradient_accumulation_steps"]
    )
    assert "torch.utils.checkpoint" in exported.notes[0]


def test_accelerate_reads_its_config(tmp_path: Path) -> None:
    config_args = pytest.importorskip("accelerate.commands.config.config_args")
    file = tmp_path / "fsdp.json"
    file.write_text(export_config(SETTING, config(DATA_ALONE, StageLayers(0, 0, 32)), "accelerate-fsdp").text)
    read = config_args.load_config_from_file(str(file))
    assert (read.num_processes, read.num_machines) == (32, 4)
    assert read.fsdp_config["fsdp_reshard_after_forward"] is True
    assert read.fsdp_config["fsdp_activation_checkpointing"] is True


@pytest.mark.parametrize(
    ("target", "shape", "stages", "told"),
    [
        ("megatron-args", PIPELINE._replace(zero=3), [StageLayers(16, 0, 0)] * 2, "the row has ZeRO 3; .*--zero 1"),
        ("megatron-args", PIPELINE, [StageLayers(16, 0, 0), StageLayers(8, 8, 0)], "24 none . 8 selective of its"),
        (
            "megatron-args",
            PIPELINE._replace(pipeline=4, schedule="1f1b", chunks=1),
            [StageLayers(n, 0, 0) for n in (8, 9, 8, 7)],
            "the stages have 8, 9, 8, 7 layers; .*another --pipeline",
        ),
        ("torchtitan", PIPELINE, [StageLayers(16, 0, 0)] * 2, "the row has ZeRO 1; .*--zero 2"),
        (
            "torchtitan",
            PIPELINE._replace(zero=0, schedule="zb-h1", chunks=1),
            [StageLayers(16, 0, 0)] * 2,
            "the row has the schedule zb-h1; torchtitan has 1f1b and interleaved: choose with --schedule 1f1b",
        ),
        ("deepspeed-zero", PIPELINE, [StageLayers(16, 0, 0)] * 2, "tensor 4 and pipeline 2; .*--tensor 1 --pipeline 1"),
        ("accelerate-fsdp", DATA_ALONE._replace(zero=1), [StageLayers(32, 0, 0)], "the row has ZeRO 1; .*--zero 2"),
        ("accelerate-fsdp", DATA_ALONE, [StageLayers(0, 32, 0)], "recomputes selectively; .*--recompute full"),
    ],
)
def test_what_a_tool_cannot_do_is_refused_with_the_way_out(
    target: str, shape: ParallelShape, stages: list[StageLayers], told: str
) -> None:
    with pytest.raises(InputError, match=told):
        export_config(SETTING, config(shape, *stages), target)


SIZES = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 640,
    "vocab_size": 1000,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {"n_embd": 256, "n_layer": 4, "n_head": 8, "n_positions": 512, "vocab_size": 1000, "eos_token_id": 2}
NEOX = SIZES | {
    "model_type": "gpt_neox",
    "num_key_value_heads": 8,
    "intermediate_size": 1024,
    "rotary_pct": 0.5,
    "layer_norm_eps": 1e-6,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192, "rope_theta": 500000.0}


@pytest.mark.parametrize(
    ("document", "said", "unsaid"),
    [
        (
            SIZES | {"model_type": "llama", "rope_theta": 500000.0, "rms_norm_eps": 1e-5},
            "vocab_size=1000 rotary_base=500000 rotary_percent=1.0 norm_epsilon=1e-05 swiglu=True num_query_groups=2 "
            "disable_bias_linear=True untie_embeddings_and_output_weights=True position_embedding_type=rope",
            "add_qkv_bias qk_layernorm kv_channels window_size use_rope_scaling",
        ),
        (SIZES | {"model_type": "llama", "rope_scaling": LLAMA3}, "use_rope_scaling=True rope_scaling_factor=8.0", ""),
        (
            SIZES | {"model_type": "qwen2", "tie_word_embeddings": True},
            "add_qkv_bias=True disable_bias_linear=True",
            "untie_embeddings_and_output_weights",
        ),
        (SIZES | {"model_type": "qwen3", "head_dim": 64}, "qk_layernorm=True kv_channels=64", "add_qkv_bias"),
        (SIZES | {"model_type": "mistral", "sliding_window": 64}, "window_size=(63,0)", ""),
        (SIZES | {"model_type": "mistral", "sliding_window": 128}, "", "window_size"),
        (
            GPT2 | {"model_type": "gpt2", "resid_pdrop": 0.0},
            "max_position_embeddings=512 seq_length=128 hidden_dropout=0.0 attention_dropout=0.1",
            "swiglu position_embedding_type untie_embeddings_and_output_weights disable_bias_linear "
            "no_bias_gelu_fusion rotary_base",
        ),
        (
            NEOX | {"use_parallel_residual": False},
            "rotary_percent=0.5 position_embedding_type=rope norm_epsilon=1e-06 no_bias_gelu_fusion=True",
            "disable_bias_linear",
        ),
        (GPT2 | {"model_type": "gpt_bigcode"}, "num_query_groups=1 group_query_attention=True", "rotary_base"),
    ],
)
def test_megatron_is_told_all_that_makes_a_network(document: dict[str, Any], said: str, unsaid: str) -> None:
    words = " ".join(megatron_network(transformer_of(document, 128))).split()
    own = vars(megatrons_parser().parse_args(words))
    assert set(said.split()) <= {f"{name}={value}".replace(", ", ",") for name, value in own.items()}
    assert not [name for name in unsaid.split() if own[name]]


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (
            SIZES | {"model_type": "gemma", "head_dim": 32},
            "'gemma' and has gates of GELU, scaled words, and norms aroun",
        ),
        (
            SIZES | {"model_type": "opt", "num_key_value_heads": 8, "ffn_dim": 640, "word_embed_proj_dim": 256},
            "'opt' and has the activation 'relu'",
        ),
        (
            NEOX,
            "'gpt_neox' and has an attention and a feed-forward part that read the same values; megatron-args has no",
        ),
        (
            GPT2 | {"model_type": "gptj", "rotary_dim": 16},
            "'gptj' and has an attention and a feed-forward part that read",
        ),
        (GPT2 | {"model_type": "bloom", "hidden_size": 256}, "'bloom' and has positions by distance"),
        (SIZES | {"model_type": "llama", "attention_bias": True}, "'llama' and has biases of some products"),
        (SIZES | {"model_type": "llama", "hidden_act": "relu"}, "'llama' and has gates of the activation 'relu'"),
        (
            SIZES | {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2.0}},
            "rotations scaled as 'linear'",
        ),
        (
            SIZES | {"model_type": "helium", "head_dim": 32},
            "'helium' and has layers that are not known to be Megatron-LM's",
        ),
    ],
)
def test_megatron_refuses_what_no_argument_says(document: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=re.escape(reason)):
        list(megatron_network(transformer_of(document, 128)))


@pytest.mark.parametrize("target", CONFIG_TARGETS)
@pytest.mark.parametrize("memory_bytes", [80e9, 12e9])
def test_a_search_for_a_tool_finds_what_it_can_be_told(target: str, memory_bytes: float) -> None:
    network = Transformer(8, 2048, 16, 1024, 32000)
    fabric = a100s(8)
    devices = tuple(replace(device, memory_bytes=memory_bytes, reserve_bytes=0.0) for device in fabric.devices)
    setting = TrainingSetting(network, replace(fabric, devices=devices), 16)
    limited = replace(setting, demands=Demands(limits=target_limits(setting, target)))
    found = choose_config(limited, 1000.0)
    assert found.rows
    for row in found.rows:
        export_config(setting, row.config, target)  # raises nothing
    accepts = target_limits(setting, target).accepts
    told = [row for row in choose_config(setting, 1000.0).rows if accepts(row.config)]
    assert found.rows[0].price.step_s <= min((row.price.step_s for row in told), default=inf)


@pytest.mark.parametrize(
    ("target", "asked", "told"),
    [
        (
            "megatron-args",
            Demands(zero=3),
            "ZeRO 3 is asked for; megatron-args has the stages 0, 1: ask for one of them",
        ),
        (
            "torchtitan",
            Demands(schedule="zb-h1"),
            "the schedule zb-h1 is asked for; torchtitan has 1f1b and interleaved",
        ),
        (
            "deepspeed-zero",
            Demands(tensor=2),
            "devices that share a replica are asked for; deepspeed-zero has data par",
        ),
        ("accelerate-fsdp", Demands(pipeline=2), "leave --tensor and --pipeline out"),
    ],
)
def test_what_is_asked_and_a_tool_cannot_be_told_is_refused_before_the_search(
    target: str, asked: Demands, told: str
) -> None:
    with pytest.raises(InputError, match=told):
        target_limits(replace(SETTING, demands=asked), target)
