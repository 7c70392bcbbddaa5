"""vllm and sglang: the line that starts the server with the degrees, the layers of each stage and the limits.

Both number GPUs stage by stage, take one tensor-parallel degree for all stages, and read the layers of each stage from
a variable of the environment (vLLM's ``VLLM_PP_LAYER_PARTITION``, https://docs.vllm.ai; SGLang's
``SGLANG_PP_LAYER_PARTITION``, https://docs.sglang.ai).
"""

from typing import NamedTuple

from planner.exports.generation.checks import check_one_host
from planner.exports.generation.division import GenerationDivision
from planner.plans.exported import Export, refuse

VLLM, SGLANG = "vllm", "sglang"


class _Words(NamedTuple):
    """Words of a server's command line."""

    start: str
    partition: str
    tensor: str
    pipeline: str
    context: str
    sequences: str
    cache: str


WORDS = {
    VLLM: _Words(
        "vllm serve MODEL",
        "VLLM_PP_LAYER_PARTITION",
        "--tensor-parallel-size",
        "--pipeline-parallel-size",
        "--max-model-len",
        "--max-num-seqs",
        "--kv-cache-dtype fp8",
    ),
    SGLANG: _Words(
        "python -m sglang.launch_server --model-path MODEL",
        "SGLANG_PP_LAYER_PARTITION",
        "--tp-size",
        "--pp-size",
        "--context-length",
        "--max-running-requests",
        "--kv-cache-dtype fp8_e4m3",
    ),
}


def vllm(division: GenerationDivision) -> Export:
    """Return the line for vLLM."""
    return _server(division, VLLM)


def sglang(division: GenerationDivision) -> Export:
    """Return the line for SGLang."""
    return _server(division, SGLANG)


def _server(division: GenerationDivision, name: str) -> Export:
    """Return a server's line.

    Raises:
        InputError: for processors, experts away from their layer's device, unlike tensor-parallel degrees, several
            hosts, or a cache in another format than 16 bits and fp8.
    """
    _check(division, name)
    words, stages = WORDS[name], division.stages
    gpus = [division.numbers[device] for stage in stages for device in stage.devices]
    variables = [] if gpus == list(range(len(gpus))) else [f"CUDA_VISIBLE_DEVICES={','.join(map(str, gpus))}"]
    line = [words.start, f"{words.tensor} {len(stages[0].devices)}", f"{words.pipeline} {len(stages)}"]
    if len(stages) > 1:
        variables.append(f"{words.partition}={','.join(str(stage.stop - stage.start) for stage in stages)}")
    line += [f"{words.context} {division.context}", f"{words.sequences} {division.sequences}"]
    if division.cache == "fp8":
        line.append(words.cache)
    return Export(" ".join([*variables, *line]) + "\n")


def _check(division: GenerationDivision, name: str) -> None:
    stages = division.stages
    rule = "computes on GPUs"
    processors = next((device for stage in stages for device in stage.devices if not division.is_gpu(device)), None)
    if processors is not None:
        raise refuse(name, f"the processors '{processors}' have layers", rule, "leave them out of the cluster")
    away = next((stage for stage in stages if stage.away), None)
    if away is not None:
        way_out = f"plan with --engine {VLLM}, which keeps experts with their layers"
        raise refuse(name, f"experts of {len(away.away)} layers are on '{away.host}'", rule, way_out)
    sizes = sorted({len(stage.devices) for stage in stages})
    if len(sizes) > 1:
        raise refuse(
            name,
            f"stages have {' and '.join(map(str, sizes))} devices",
            "has as many on every stage",
            f"the nearest: {sizes[0]} on each, from devices of one kind",
        )
    check_one_host(division, name, "numbers the GPUs of several by itself")
    if division.cache not in ("float16", "bfloat16", "fp8"):
        raise refuse(
            name, f"the cache is in {division.cache}", "has caches in 16 bits and fp8", "plan with --cache fp8"
        )
