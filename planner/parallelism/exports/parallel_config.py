"""A row of ``planner choose`` for the tool that trains: arguments of Megatron-LM, and configs of three others.

::

    megatron-args    --tensor-model-parallel-size 8 ...     arguments of pretrain_gpt.py, one a line
    torchtitan       [parallelism] tensor_parallel_degree   a part of a job's TOML
    deepspeed-zero   {"zero_optimization": {"stage": 2}}    a config of DeepSpeed, for ZeRO alone
    accelerate-fsdp  fsdp_config: ...                       a config of ``accelerate launch``, for FSDP 2 alone

https://github.com/NVIDIA/Megatron-LM (megatron/training/arguments.py), https://github.com/pytorch/torchtitan
(torchtitan/config/job_config.py, 0.2), https://www.deepspeed.ai/docs/config-json,
https://huggingface.co/docs/accelerate/usage_guides/fsdp
"""

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate, chain, pairwise
from typing import Any

from costmodels.workload import ZERO_STAGES
from graphs.common.errors import InputError
from planner.parallelism.closed_form.config import Limits, ParallelConfig, StepSchedule, TrainingSetting
from planner.parallelism.closed_form.memory import FLOAT32_GRADIENT
from planner.parallelism.exports.megatron_network import MEGATRON, megatron_network
from planner.plans.exported import Export, refuse

TORCHTITAN, DEEPSPEED, ACCELERATE = "torchtitan", "deepspeed-zero", "accelerate-fsdp"
MEGATRON_OPTIMIZERS = {"adam": (), "momentum": ("--optimizer sgd",), "sgd": ("--optimizer sgd --sgd-momentum 0",)}
TITAN_SCHEDULES = {"1f1b": "1F1B", "interleaved": "Interleaved1F1B"}


def export_config(setting: TrainingSetting, config: ParallelConfig, target: str) -> Export:
    """Return a configuration in the format of another tool.

    Raise InputError if the tool cannot do it: the error names the reason and the way out.
    """
    if config.degrees:
        reason, way_out = f"the row has {config.title}", "choose with --data N or --tensor N"
        raise refuse(target, reason, "has the same degrees on all stages", way_out)
    if setting.network.mixture is not None:
        way_out = "write the arguments of its experts by hand"
        raise refuse(target, "the model is a mixture of experts", "has other arguments for experts", way_out)
    return CONFIG_TARGETS[target](setting, config)


def _megatron(setting: TrainingSetting, config: ParallelConfig) -> Export:
    """Arguments; the number of replicas follows from the number of processes."""
    shape = config.shape
    if shape.zero > 1 and shape.data > 1:
        raise refuse(MEGATRON, f"the row has ZeRO {shape.zero}", "has the stages 0 and 1", "choose with --zero 1")
    _check_schedule(MEGATRON, config)
    words = chain(
        megatron_network(setting.network),
        _megatron_training(setting),
        _megatron_degrees(setting, config),
        _megatron_recompute(config),
    )
    notes = (f"start {shape.devices} processes: the data-parallel size {shape.data} is what is left of them",)
    return Export("\n".join(words) + "\n", notes)


def _megatron_training(setting: TrainingSetting) -> Iterator[str]:
    if setting.gradient_bytes == FLOAT32_GRADIENT:
        yield "--accumulate-allreduce-grads-in-fp32"
    yield from MEGATRON_OPTIMIZERS[setting.optimizer]
    yield "--bf16"


def _megatron_degrees(setting: TrainingSetting, config: ParallelConfig) -> Iterator[str]:
    shape = config.shape
    yield f"--tensor-model-parallel-size {shape.tensor}" + (" --sequence-parallel" if shape.tensor > 1 else "")
    yield f"--pipeline-model-parallel-size {shape.pipeline}"
    if shape.chunks > 1:
        each = setting.network.layers // shape.pipeline // shape.chunks
        yield f"--num-layers-per-virtual-pipeline-stage {each}"
    layers = [stage.total for stage in config.stages]
    if len(set(layers)) > 1:
        if len(set(layers[1:-1])) > 1:
            reason = f"the stages have {', '.join(map(str, layers))} layers"
            raise refuse(MEGATRON, reason, "lets the first and the last differ alone", "choose with another --pipeline")
        yield f"--decoder-first-pipeline-num-layers {layers[0]} --decoder-last-pipeline-num-layers {layers[-1]}"
    if shape.order == "pipeline":
        yield "--use-tp-pp-dp-mapping"
    yield f"--micro-batch-size {shape.samples} --global-batch-size {setting.batch}"
    if shape.zero == 1:
        yield "--use-distributed-optimizer"


def _megatron_recompute(config: ParallelConfig) -> Iterator[str]:
    """Yield the arguments for one mode on all layers, or for a number of fully recomputed layers on every stage."""
    if config.recompute == "selective":
        yield "--recompute-granularity selective"
    elif config.recompute == "full":
        yield "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    elif config.recompute != "none":
        full = {stage.full for stage in config.stages}
        if len(full) > 1 or any(stage.selective for stage in config.stages):
            raise _mixed(MEGATRON, config)
        yield f"--recompute-granularity full --recompute-method block --recompute-num-layers {full.pop()}"


def _torchtitan(setting: TrainingSetting, config: ParallelConfig) -> Export:
    """Return torchtitan's config; data parallelism is a degree of replicas with all states, or with divided states."""
    shape = config.shape
    if shape.zero == 1 and shape.data > 1:
        raise refuse(TORCHTITAN, "the row has ZeRO 1", "has the stages 0, 2 and 3", "choose with --zero 2")
    if setting.optimizer != "adam":
        reason = f"the row is for {setting.optimizer}"
        raise refuse(TORCHTITAN, reason, "trains with Adam and AdamW", "choose with --optimizer adam")
    _check_schedule(TORCHTITAN, config)
    _check_alike(TORCHTITAN, config)
    shared = shape.zero > 1
    tables: dict[str, dict[str, Any]] = {
        "training": {
            "local_batch_size": shape.samples * (shape.micro_batches if shape.pipeline > 1 else 1),
            "global_batch_size": setting.batch,
            "seq_len": setting.network.sequence,
        },
        "parallelism": {
            "data_parallel_replicate_degree": 1 if shared else shape.data,
            "data_parallel_shard_degree": shape.data if shared else 1,
            "fsdp_reshard_after_forward": "always" if shape.zero == 3 else "never",
            "tensor_parallel_degree": shape.tensor,
            "pipeline_parallel_degree": shape.pipeline,
        },
        "activation_checkpoint": {"mode": config.recompute},
    }
    if shape.pipeline > 1:
        ends = list(accumulate([stage.total // shape.chunks for stage in config.stages] * shape.chunks))
        parts = [[f"layers.{layer}" for layer in range(*part)] for part in pairwise([0, *ends])]
        parts[0].insert(0, "tok_embeddings")
        parts[-1] += ["norm", "output"]
        tables["parallelism"] |= {
            "pipeline_parallel_schedule": TITAN_SCHEDULES[shape.schedule],
            "pipeline_parallel_microbatch_size": shape.samples,
            "module_fqns_per_model_part": parts,
        }
    text = "\n".join(f"[{name}]\n{_toml(table)}" for name, table in tables.items())
    chosen = "its selective mode keeps other results than the row's, which runs attention's scores again"
    return Export(text, (chosen,) if config.recompute == "selective" else ())


def _toml(table: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())


def _deepspeed(setting: TrainingSetting, config: ParallelConfig) -> Export:
    """Return DeepSpeed's config; its pipelines and tensor parallelism are set in code."""
    _check_data_alone(DEEPSPEED, config)
    _check_alike(DEEPSPEED, config)
    shape, gradients = config.shape, "fp32" if setting.gradient_bytes == FLOAT32_GRADIENT else "bf16"
    document = {
        "train_batch_size": setting.batch,
        "train_micro_batch_size_per_gpu": shape.samples,
        "gradient_accumulation_steps": shape.micro_batches,
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": gradients},
        "zero_optimization": {"stage": shape.zero},
    }
    again = f"the row recomputes {config.recompute}: the model does that, with torch.utils.checkpoint"
    return Export(document, () if config.recompute == "none" else (again,))


def _accelerate(setting: TrainingSetting, config: ParallelConfig) -> Export:
    """Return Accelerate's config for FSDP 2; ZeRO 3 gathers parameters for both passes, ZeRO 2 only once."""
    _check_data_alone(ACCELERATE, config)
    _check_alike(ACCELERATE, config)
    shape = config.shape
    if shape.zero < 2:
        raise refuse(ACCELERATE, f"the row has ZeRO {shape.zero}", "has the stages 2 and 3", "choose with --zero 2")
    if config.recompute == "selective":
        reason, way_out = "the row recomputes selectively", "choose with --recompute full"
        raise refuse(ACCELERATE, reason, "recomputes all or nothing", way_out)
    hosts = -(-shape.devices // setting.fabric.host_devices)
    document = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "mixed_precision": "bf16",
        "num_processes": shape.devices,
        "num_machines": hosts,
        "machine_rank": 0,
        "use_cpu": False,
        "debug": False,
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": shape.zero == 3,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
            "fsdp_activation_checkpointing": config.recompute == "full",
        },
    }
    accumulated = f"accumulate gradients over {shape.micro_batches} micro-batches of {shape.samples}"
    return Export(document, (f"the script says it: Accelerator(gradient_accumulation_steps=..); {accumulated}",))


def _check_schedule(target: str, config: ParallelConfig) -> None:
    if config.shape.pipeline > 1 and config.shape.schedule not in TITAN_SCHEDULES:
        reason, known = f"the row has the schedule {config.shape.schedule}", " and ".join(TITAN_SCHEDULES)
        raise refuse(target, reason, f"has {known}", "choose with --schedule 1f1b")


def _check_alike(target: str, config: ParallelConfig) -> None:
    if " " in config.recompute:
        raise _mixed(target, config)


def _mixed(target: str, config: ParallelConfig) -> Exception:
    reason = f"the row recomputes {config.recompute} of its layers"
    return refuse(target, reason, "treats layers alike", "choose with --recompute full, selective or none")


def _check_data_alone(target: str, config: ParallelConfig) -> None:
    tensor, pipeline = config.shape.tensor, config.shape.pipeline
    if tensor > 1 or pipeline > 1:
        reason = f"the row has tensor {tensor} and pipeline {pipeline}"
        raise refuse(target, reason, "has data parallelism alone", "choose with --tensor 1 --pipeline 1")


def target_limits(setting: TrainingSetting, target: str) -> Limits:
    """Return the configurations that a tool can express, as limits of a search.

    Raise InputError if the tool cannot express the network or the demands, whichever the row.
    """
    zero, schedules, data_alone = TARGET_LIMITS[target]
    asked = setting.demands
    if target == MEGATRON:
        list(megatron_network(setting.network))
    if asked.zero is not None and asked.zero not in zero:
        known = ", ".join(map(str, zero))
        raise refuse(target, f"ZeRO {asked.zero} is asked for", f"has the stages {known}", "ask for one of them")
    if asked.schedule is not None and asked.schedule not in schedules:
        known = " and ".join(schedules)
        raise refuse(target, f"the schedule {asked.schedule} is asked for", f"has {known}", "ask for one of them")
    if data_alone and max(asked.tensor or 1, asked.pipeline or 1) > 1:
        rule, way_out = "has data parallelism alone", "leave --tensor and --pipeline out"
        raise refuse(target, "devices that share a replica are asked for", rule, way_out)

    def accepts(config: ParallelConfig) -> bool:
        try:
            export_config(setting, config, target)
        except InputError:
            return False
        return True

    return Limits(zero, schedules, data_alone, accepts)


TARGET_LIMITS: Mapping[str, tuple[tuple[int, ...], tuple[StepSchedule, ...], bool]] = {
    MEGATRON: ((0, 1), ("1f1b", "interleaved"), False),
    TORCHTITAN: ((0, 2, 3), ("1f1b", "interleaved"), False),
    DEEPSPEED: (ZERO_STAGES, ("1f1b",), True),
    ACCELERATE: ((2, 3), ("1f1b",), True),
}
"""Stages of ZeRO, schedules, and whether replicas are of one device each."""

CONFIG_TARGETS: Mapping[str, Callable[[TrainingSetting, ParallelConfig], Export]] = {
    MEGATRON: _megatron,
    TORCHTITAN: _torchtitan,
    DEEPSPEED: _deepspeed,
    ACCELERATE: _accelerate,
}
"""The targets of a row, by name."""
