"""accelerate and ktransformers: the devices of modules, by the names that transformers gives them.

::

    accelerate      {"model.embed_tokens": 0, "model.layers.0": 0, ..., "model.norm": 1, "lm_head": 1}
    ktransformers   rules in YAML: a pattern of names, and the device that computes what it matches

Sources: https://huggingface.co/docs/accelerate/concept_guides/big_model_inference and
https://github.com/kvcache-ai/ktransformers/blob/main/doc/en/injection_tutorial.md
"""

from collections.abc import Sequence

from planner.exports.generation.checks import check_one_host, check_whole_layers
from planner.exports.generation.division import GenerationDivision
from planner.plans.exported import Export, refuse

ACCELERATE, KTRANSFORMERS = "accelerate", "ktransformers"
ENDINGS = (".weight", ".bias")
DEFAULT = "default"
EXPERTS = "ktransformers.operators.experts.KTransformersExperts"


def accelerate(division: GenerationDivision) -> Export:
    """Return a device_map, with the memory that it leaves for the cache.

    Raises:
        InputError: for names of a .gguf, devices that share products, experts away from their layers, several hosts, or
            a cache that transformers lacks.
    """
    _check(division, ACCELERATE)
    away = next((stage for stage in division.stages if stage.away), None)
    if away is not None:
        raise refuse(
            ACCELERATE,
            f"experts of {len(away.away)} layers are on '{away.host}'",
            "moves weights to the GPU to compute there",
            "the nearest has whole layers on the processors: plan with --engine vllm, or --to ktransformers",
        )
    modules = division.document["modules"]
    words = {device: division.numbers.get(device, "cpu") for stage in division.stages for device in stage.devices}
    first, last = division.stages[0].devices[0], division.stages[-1].devices[0]
    tied = first if division.document["tied"] else last
    entries = {_module(name): words[first] for name in modules["embedding"]}
    for stage in division.stages:
        for layer in range(stage.start, stage.stop):
            entries[f"{modules['layer_prefix']}{layer}"] = words[stage.devices[0]]
    entries |= {_module(name): words[last] for name in modules["others"]}
    entries |= {_module(name): words[tied] for name in modules["head"] or ["lm_head.weight"]}
    entries[f"{_root(modules['layer_prefix'])}rotary_emb"] = words[first]
    kept = {each["device"]: each["cache"] + each["buffers"] for each in division.document["devices"] if each["used"]}
    notes = [
        f"keep {n_bytes / 2**30:.2f} GiB of {device} free for the cache of {division.sequences} × {division.context} "
        "tokens and for buffers"
        for device, n_bytes in kept.items()
    ]
    if "cpu" in words.values():
        notes.append("accelerate keeps modules on 'cpu' there and computes them on a GPU; the plan computes them there")
    return Export(entries, tuple(notes))


def ktransformers(division: GenerationDivision) -> Export:
    """Return rules that place layers on GPUs, and the experts that are away on the processors.

    Raises:
        InputError: for names of a .gguf, devices that share products, several hosts, or layers on processors.
    """
    _check(division, KTRANSFORMERS)
    processors = next((stage for stage in division.stages if not division.is_gpu(stage.devices[0])), None)
    if processors is not None:
        raise refuse(
            KTRANSFORMERS,
            f"the processors '{processors.devices[0]}' have whole layers",
            "has only experts there",
            "plan for GPUs with more room, or --to llama-cpp",
        )
    modules = division.document["modules"]
    prefix, rules = modules["layer_prefix"], []
    first, last = (f"cuda:{division.numbers[division.stages[end].devices[0]]}" for end in (0, -1))
    rules.append(_rule(f"^{_escaped(_module(modules['embedding'][0]))}", DEFAULT, "cpu", "cpu"))
    for stage in division.stages:
        device = f"cuda:{division.numbers[stage.devices[0]]}"
        for layers, place in ((stage.away, "cpu"), (_here(division, stage.start, stage.stop, stage.away), device)):
            if layers:
                pattern = f"^{_escaped(prefix)}({'|'.join(map(str, layers))})\\.mlp\\.experts$"
                kwargs = {"generate_op": "KExpertsCPU" if place == "cpu" else "KExpertsTorch", "out_device": device}
                rules.append(_rule(pattern, EXPERTS, place, device, kwargs))
        whole = "|".join(map(str, range(stage.start, stage.stop)))
        rules.append(_rule(f"^{_escaped(prefix)}({whole})\\.", DEFAULT, device, device))
    rules.append(_rule("^lm_head", DEFAULT, last, last))
    rules.append(_rule(f"^{_escaped(_root(prefix))}(norm|rotary_emb)", DEFAULT, last, first))
    return Export("\n".join(rules) + "\n")


def _here(division: GenerationDivision, start: int, stop: int, away: Sequence[int]) -> list[int]:
    """Return the layers with experts that are on their own device."""
    experts = division.document["modules"]["experts"]
    return [layer for layer in range(start, stop) if experts[layer] and layer not in away]


def _rule(pattern: str, own: str, generates: str, prefills: str, kwargs: dict[str, str] | None = None) -> str:
    """Return one rule of KTransformers in YAML."""
    escaped = pattern.replace("\\", "\\\\")
    pairs = {"generate_device": generates, "prefill_device": prefills, **(kwargs or {})}
    lines = ["- match:", f'    name: "{escaped}"', "  replace:", f"    class: {own}", "    kwargs:"]
    lines += [f'      {key}: "{word}"' for key, word in pairs.items()]
    if own != DEFAULT:
        lines.append("  recursive: False")
    return "\n".join(lines)


def _check(division: GenerationDivision, name: str) -> None:
    if division.document["modules"]["layer_prefix"].startswith("blk."):
        raise refuse(
            name, "the plan is for a .gguf", "has the modules of transformers", "plan for the model's config.json"
        )
    check_whole_layers(division, name)
    check_one_host(division, name, "runs on one")


def _module(tensor: str) -> str:
    """Return the module of a tensor by its name."""
    for ending in ENDINGS:
        tensor = tensor.removesuffix(ending)
    return tensor


def _root(prefix: str) -> str:
    """Return the path of the module that has the layers, with a dot: "model." of "model.layers."."""
    return prefix.rstrip(".").rpartition(".")[0] + "."


def _escaped(name: str) -> str:
    return name.replace(".", "\\.")
