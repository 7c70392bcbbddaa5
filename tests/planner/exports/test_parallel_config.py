"""Rows of ``planner choose`` for other tools: what they say, what the tools read, and what is refused."""

import json
import tomllib
from argparse import ArgumentParser
from pathlib import Path

import pytest

from costmodels.transformer import RMS_NORM, Transformer
from graphs.errors import InputError
from planner.exports.parallel_config import export_config
from planner.problem.hybrid_training.config import (
    ParallelConfig,
    ParallelShape,
    RankOrder,
    StageLayers,
    TrainingSetting,
)
from tests.planner.problem.hybrid_training.settings import a100s

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


NUMBERS = """num-layers hidden-size ffn-hidden-size num-attention-heads num-query-groups seq-length
max-position-embeddings tensor-model-parallel-size pipeline-model-parallel-size num-layers-per-virtual-pipeline-stage
decoder-first-pipeline-num-layers decoder-last-pipeline-num-layers micro-batch-size global-batch-size
recompute-num-layers"""
FLAGS = """group-query-attention swiglu disable-bias-linear untie-embeddings-and-output-weights use-flash-attn
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
    for name in ("attention-dropout", "hidden-dropout"):
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
