"""llama-cpp: the line that starts llama.cpp's server as the plan says.

::

    llama-server -m MODEL -c 8192 -np 1 -ngl 99 --device CUDA0,CUDA1 -ts 41,40 -ot 'blk\\.(38|39)\\.ffn_.*_exps=CPU'

llama.cpp gives the last ``-ngl`` of the layers and the head (counted as one more layer) to GPUs, in the order of
``--device`` and in proportion to ``-ts``, and the first ones to the processors; ``-c`` is the context of all sequences
together (https://github.com/ggml-org/llama.cpp, `llama_model_load_internal` and `common/arg.cpp`).
"""

from graphs.common.errors import InputError
from planner.exports.generation.checks import check_whole_layers
from planner.exports.generation.division import GenerationDivision, StageOf
from planner.plans.exported import Export, refuse

NAME = "llama-cpp"
CACHE = {"float16": "f16", "bfloat16": "bf16", "q8_0": "q8_0", "q4_0": "q4_0"}
PORT = 50052  # llama.cpp's usual one for rpc-server


def llama_cpp(division: GenerationDivision) -> Export:
    """Return the line, with notes.

    Raises:
        InputError: for devices that share products, processors after a GPU, or a cache in a format that it lacks.
    """
    stages = division.stages
    check_whole_layers(division, NAME)
    first_gpu = next((n for n, stage in enumerate(stages) if division.is_gpu(stage.devices[0])), len(stages))
    late = next((stage for stage in stages[first_gpu:] if not division.is_gpu(stage.devices[0])), None)
    if late is not None:
        raise _processors_late(late)
    if division.cache not in CACHE:
        raise refuse(
            NAME, f"the cache is in {division.cache}", f"has caches in {', '.join(CACHE)}", "plan with --cache q8_0"
        )
    gpus = stages[first_gpu:]
    words = [f"-c {division.context * division.sequences}", f"-np {division.sequences}"]
    words += _layers(division, gpus)
    if division.cache != "float16":
        words += [f"-ctk {CACHE[division.cache]}", f"-ctv {CACHE[division.cache]}"]
    words += ["-fa on", "--fit off"]
    hosts = list(dict.fromkeys(division.hosts[stage.devices[0]] for stage in stages))
    notes = []
    if len(hosts) > 1:
        notes.append(f"start rpc-server on {', '.join(hosts[1:])}, and the line on {hosts[0]}")
    return Export("llama-server -m MODEL " + " ".join(words) + "\n", tuple(notes))


def _layers(division: GenerationDivision, gpus: tuple[StageOf, ...]) -> list[str]:
    """Return the words for the layers of each GPU, and for experts on processors."""
    if not gpus:
        return ["-ngl 0"]
    counts = [stage.stop - stage.start for stage in gpus]
    counts[-1] += 1  # the head
    words = [f"-ngl {sum(counts)}"]
    names, remote = _device_names(division, gpus)
    if remote:
        words.append(f"--rpc {','.join(remote)}")
    words.append(f"--device {','.join(names)}")
    if len(gpus) > 1:
        words += ["-sm layer", f"-ts {','.join(map(str, counts))}"]
    away = [layer for stage in gpus for layer in stage.away]
    if away:
        layers = "|".join(map(str, away))
        words.append(f"-ot 'blk\\.({layers})\\.ffn_(up|down|gate|gate_up)_exps=CPU'")
    return words


def _device_names(division: GenerationDivision, gpus: tuple[StageOf, ...]) -> tuple[list[str], list[str]]:
    """Return llama.cpp's names of the GPUs, and the servers of those on other hosts than the first stage's."""
    home = division.hosts[division.stages[0].devices[0]]
    kinds = {each["name"]: each["kind"] for each in division.document["hardware"]}
    names: list[str] = []
    servers: list[str] = []
    for stage in gpus:
        (device,) = stage.devices
        if division.hosts[device] != home:
            names.append(f"RPC{len(servers)}")
            servers.append(f"{division.hosts[device]}:{PORT + division.numbers[device]}")
        else:
            apple = kinds[device].startswith("Apple")
            names.append("Metal" if apple else f"CUDA{division.numbers[device]}")
    return names, servers


def _processors_late(stage: StageOf) -> InputError:
    layers = f"layers {stage.start} to {stage.stop - 1}"
    return refuse(
        NAME,
        f"the processors '{stage.devices[0]}' have {layers} after a GPU's",
        "has processors compute the first layers",
        "plan with the processors first in the cluster, or without them",
    )
