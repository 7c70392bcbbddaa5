"""megatron-layout: ``--pipeline-model-parallel-layout`` of Megatron-LM: E embedding, t decoder layer, L loss.

::

    "Et*3|t*4|t*4|t,L"      stages between bars, in the order in which a micro-batch goes through them

With more stages than ranks, stage s is on rank s modulo the ranks. The layout begins with the only E and ends with the
only L (https://docs.nvidia.com/megatron-core/developer-guide/latest/user-guide/features/pipeline_parallel_layout.html).
"""

from planner.exports.modules import Modules
from planner.exports.pipelines import pipeline_runs
from planner.exports.records import device_names, kept_whole
from planner.plans.exported import Export, refuse
from planner.plans.plan import Plan

NAME = "megatron-layout"
EMBEDDING, LOSS = "embedding", "loss"
RULE = "places whole decoder layers, what is before them as one and what is after them as one"


def megatron_layout(plan: Plan) -> Export:
    """Return the pipeline layout of Megatron-LM: decoder layers of each stage, embedding first, loss last.

    Decoder layers are the numbered children (``layers.0``, ``layers.1``, ...) in which most operators are; all before
    them counts as the embedding, all after them as the loss. Raise InputError if there are no such layers, or a layer,
    the embedding or the loss is on two devices, or if there is another stack of such layers, as in a network with an
    encoder and a decoder.
    """
    modules, device = Modules(plan.graph), plan.placement.device
    layers = _only_stack(plan, modules)
    layer_of = {op: layer for layer in layers for op in modules.under[layer]}
    end, part, parts = max(layer_of), EMBEDDING, list[str]()
    for op in range(len(plan.graph.ops)):  # what is before the first layer, a layer, or what is after the last one
        part = layer_of.get(op, LOSS if op > end else part)
        parts.append(part)
    _check_whole(plan, modules, parts)
    runs = pipeline_runs(plan, NAME)
    order = [device[run[0]] for run in runs]
    ranks = list(dict.fromkeys(order))
    if order != (ranks * len(order))[: len(order)] or len(order) % len(ranks):
        names = " ".join(plan.cluster.devices[number].name for number in order)
        raise refuse(NAME, f"the stages are on {names}", "deals stages to ranks in turn", "plan with --contiguous")
    counts = [len({parts[op] for op in run} - {EMBEDDING, LOSS}) for run in runs]
    stages = ["" if count == 0 else "t" if count == 1 else f"t*{count}" for count in counts]
    return Export(
        {
            "pipeline_model_parallel_size": len(ranks),
            "pipeline_model_parallel_layout": f"E{'|'.join(stages)}L",
            "decoder_layers": counts,
        }
    )


def decoder_layers(modules: Modules) -> tuple[str, ...]:
    """Return the numbered children of the module whose numbered children hold the most operators."""

    def numbered(path: str) -> tuple[str, ...]:
        return tuple(child for child in modules.children[path] if child.rpartition(".")[2].isdecimal())

    return max(map(numbered, modules.under), key=lambda layers: sum(len(modules.under[layer]) for layer in layers))


def _only_stack(plan: Plan, modules: Modules) -> tuple[str, ...]:
    """Return the decoder layers; raise InputError if there are none, or other layers like these."""
    layers = decoder_layers(modules)
    if len(layers) < 2:
        what = f"'{plan.graph.name}' has no numbered layers such as layers.0, layers.1"
        raise refuse(NAME, what, RULE, "export to torch-split-spec")
    if other := _other_stack(modules, layers):
        what = f"'{plan.graph.name}' has layers like '{other}' besides '{layers[0]}'"
        raise refuse(NAME, what, "knows one stack of layers", "export to torch-split-spec")
    return layers


def _other_stack(modules: Modules, layers: tuple[str, ...]) -> str:
    """Return a numbered module elsewhere with the parts of a layer, or some of them or more; empty if there is none."""
    parts = _names_in(modules, layers[0])

    def alike(path: str) -> bool:
        own = _names_in(modules, path)
        return own == parts if len(own) < 2 else own <= parts or own >= parts

    inside = tuple(f"{layer}." for layer in layers)
    numbered = (path for path in modules.under if path.rpartition(".")[2].isdecimal())
    elsewhere = (path for path in numbered if parts and not f"{path}.".startswith(inside))
    return next(filter(alike, elsewhere), "")


def _names_in(modules: Modules, path: str) -> set[str]:
    return {child.rpartition(".")[2] for child in modules.children[path]}


def _check_whole(plan: Plan, modules: Modules, parts: list[str]) -> None:
    """Refuse a plan with a layer, the embedding or the loss on several devices."""
    for part in dict.fromkeys(parts):
        ops = {op for op, own in enumerate(parts) if own == part}
        homes = {plan.placement.device[op] for op in ops}
        if len(homes) > 1 and part in (EMBEDDING, LOSS):
            inside = ",".join(modules.cover(ops))
            reason = f"the {part} is on {device_names(plan, homes)}"
            raise refuse(NAME, reason, RULE, f"plan with --together '{inside}'")
        if len(homes) > 1:
            raise refuse(NAME, f"module '{part}' is on {device_names(plan, homes)}", RULE, kept_whole(part))
