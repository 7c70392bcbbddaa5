"""megatron-layout: ``--pipeline-model-parallel-layout`` of Megatron-LM, E embedding, t decoder layer, L loss.

::

    "Et*3|t*4|t*4|t,L"      stages between bars, in the order in which a micro-batch goes through them

With more stages than ranks, stage s is on rank s modulo the ranks. The layout begins with the only E and ends with the
only L (https://docs.nvidia.com/megatron-core/developer-guide/latest/user-guide/features/pipeline_parallel_layout.html).
"""

from planner.export.modules import Modules
from planner.export.pipelines import pipeline_runs
from planner.export.records import Export, kept_whole, listed, refuse
from planner.plans.plan import Plan

NAME = "megatron-layout"
RULE = "places whole decoder layers, what is before them as one and what is behind them as one"


def megatron_layout(plan: Plan) -> Export:
    """The pipeline layout of Megatron-LM: decoder layers of each stage, embedding first, loss last.

    Decoder layers are the numbered children (``layers.0``, ``layers.1``, ...) in which most operators are; all before
    them counts as the embedding, all behind them as the loss.

    Raises:
        InputError: if there are no such layers, or a layer, the embedding or the loss is on two devices.
    """
    modules, device = Modules(plan.graph), plan.placement.device
    layers = decoder_layers(modules)
    if len(layers) < 2:
        what = f"'{plan.graph.name}' has no numbered layers such as layers.0, layers.1"
        raise refuse(NAME, what, RULE, "export to torch-split-spec")
    words = _words(modules, layers)
    groups: dict[str, list[int]] = {}
    for op, word in enumerate(words):
        groups.setdefault(word, []).append(op)
    for word, ops in groups.items():
        homes = sorted({device[op] for op in ops})
        if len(homes) > 1:
            names = listed([plan.cluster.devices[home].name for home in homes])
            is_layer = word in layers
            what = f"module '{word}' is on {names}" if is_layer else f"the {word} is on {names}"
            inside = ",".join(modules.cover(set(ops)))
            raise refuse(NAME, what, RULE, kept_whole(word) if is_layer else f"plan with --together '{inside}'")
    runs = pipeline_runs(plan, NAME)
    rows = [device[run[0]] for run in runs]
    ranks = list(dict.fromkeys(rows))
    if rows != [ranks[stage % len(ranks)] for stage in range(len(rows))] or len(rows) % len(ranks):
        order = " ".join(plan.cluster.devices[row].name for row in rows)
        raise refuse(NAME, f"the stages are on {order}", "deals stages to ranks in turn", "plan with --contiguous")
    stages = [list(dict.fromkeys(words[op] for op in run)) for run in runs]
    counts = [sum(word in layers for word in stage) for stage in stages]
    return Export(
        {
            "pipeline_model_parallel_size": len(ranks),
            "pipeline_model_parallel_layout": "|".join(
                map(_letters, range(len(runs)), counts, [len(runs)] * len(runs))
            ),
            "decoder_layers": counts,
        }
    )


def decoder_layers(modules: Modules) -> tuple[str, ...]:
    """The numbered children of one module, of that in whose numbered children most operators are."""

    def numbered(path: str) -> tuple[str, ...]:
        return tuple(child for child in modules.children[path] if child.rpartition(".")[2].isdecimal())

    return max(map(numbered, modules.under), key=lambda layers: sum(len(modules.under[layer]) for layer in layers))


def _words(modules: Modules, layers: tuple[str, ...]) -> list[str]:
    """[n_ops], the layer of each operator, "embedding" before and "loss" behind them."""
    layer_of = {op: layer for layer in layers for op in modules.under[layer]}
    last, words = "embedding", []
    for op in range(len(modules.graph.ops)):
        last = layer_of.get(op, "loss" if op > max(layer_of) else last)
        words.append(last)
    return words


def _letters(stage: int, n_layers: int, n_stages: int) -> str:
    """One stage: ``Et*3``."""
    first, last = "E" if stage == 0 else "", "L" if stage == n_stages - 1 else ""
    return first + {0: "", 1: "t"}.get(n_layers, f"t*{n_layers}") + last
