"""How fast a plan is in the units of language models: tokens a second and model FLOPs utilisation.

Source of the latter: Chowdhery et al., PaLM, JMLR 2023, appendix B: the share of the devices' peak that the network's
own FLOP take, nothing recomputed. Scores that a causal mask hides count.
"""

from collections.abc import Iterable

import numpy as np

from costmodels.cluster.cluster import Device
from costmodels.operators.flops import peak_flops_per_s, work_of
from costmodels.operators.views import backward_passes, bases, operation
from graphs.ir import Graph
from planner.plans.plan import Plan


def tokens_per_sample(graph: Graph, batch: int) -> int | None:
    """Return the tokens of a sample: the most that an embedding reads of an input; None if no embedding reads one.

    It may read what elementwise operators make of the input, such as positions counted from the front.
    """
    base = bases(graph)
    tokens = set(graph.inputs)
    lengths = []
    for op in graph.ops:
        read = tokens.intersection(base.get(name, name) for name in op.inputs)
        sizes = {graph.tensor[name].n_elements for name in read}
        if read and operation(op.kind) == "aten.embedding":
            lengths.append(max(sizes) // batch)
        made = [graph.tensor[name] for name in op.outputs]
        tokens.update(each.name for each in made if each.n_elements in sizes and "int" in each.dtype)
    return max(lengths, default=None)


def tokens_per_s(plan: Plan) -> float | None:
    """Return the predicted tokens a second of all replicas together; None for a network that reads no tokens."""
    tokens = tokens_per_sample(plan.graph, plan.workload.batch)
    return None if tokens is None else tokens * plan.samples_per_s


def what_tokens(plan: Plan) -> str:
    """Return the unit of a plan's tokens a second: a pass over whole prompts differs from one token at a time."""
    if plan.workload.trains:
        return "tokens/s of training"
    if tokens_per_sample(plan.graph, plan.workload.batch) == 1:
        return "tokens/s, one a sample in each pass"
    return "tokens/s of the prompt, in one pass"


def model_flops_utilisation(plan: Plan) -> float:
    """Return the utilisation of the devices that a plan uses, see `utilisation`."""
    used = [plan.cluster.devices[number] for number in plan.placement.used]
    return utilisation(plan.graph, used, plan.period_s, plan.workload.trains)


def utilisation(graph: Graph, devices: Iterable[Device], period_s: float, trains: bool) -> float:
    """Return the time that devices at their peaks would need for a micro-batch, as a share of ``period_s``."""
    work = work_of(graph)
    passes = 1 + (backward_passes(graph) if trains else np.zeros(len(work.flop)))
    rate = 0.0
    for device in devices:
        peaks = np.array([peak_flops_per_s(device.flops_per_s, dtype) for dtype in work.dtype])
        compute_s = float((passes * work.flop / peaks).sum())
        rate += 1 / compute_s if compute_s else 0.0
    return 1 / (rate * period_s) if rate and period_s else 0.0
