"""torch-split-spec: where ``torch.distributed.pipelining.pipeline`` cuts a module.

::

    {"split_spec": {"layers.2": "BEGINNING"}, "devices": [0, 1]}

    from torch.distributed.pipelining import SplitPoint, pipeline
    pipe = pipeline(module, mb_args=(x,), split_spec=read_split_spec(Path("split.json"), SplitPoint))

https://docs.pytorch.org/docs/stable/distributed.pipelining.html
"""

from enum import Enum
from pathlib import Path
from typing import TypeVar

from graphs.common.documents import read_json
from graphs.common.errors import InputError
from planner.exports.modules import ROOT, Modules, ancestors
from planner.exports.pipelines import pipeline_runs
from planner.exports.records import device_words
from planner.plans.exported import Export, refuse
from planner.plans.plan import Plan

NAME = "torch-split-spec"
BEGINNING, END = "BEGINNING", "END"
Point = TypeVar("Point", bound=Enum)


def torch_split_spec(plan: Plan) -> Export:
    """Return the split_spec of torch.distributed.pipelining, and the device of each stage.

    torch cuts at every call of a module. A module that the model has under two paths is called twice, which the graph
    does not show: if ``pipe.num_stages`` is more than the devices, give each path a module of its own. Raise InputError
    if a stage begins in the middle of a module, or the model comes back to a stage.
    """
    runs = pipeline_runs(plan, NAME)
    words = device_words(plan.cluster)
    modules = Modules(plan.graph)
    points: dict[str, str] = {}
    for number, run in enumerate(runs[1:], start=1):
        path, point = _point(modules, run[0], number)
        if path in points:
            reason = f"stage {number - 1} is module '{path}' alone, and stage {number} begins with no module"
            way_out = f"plan with --together '{path},{plan.graph.ops[run[0]].name}'"
            raise refuse(NAME, reason, "has one split point for each module", way_out)
        points[path] = point
    return Export({"split_spec": points, "devices": [words[plan.placement.device[run[0]]] for run in runs]})


def read_split_spec(path: Path, split_point: type[Point]) -> dict[str, Point]:
    """Return the split_spec of a file that `torch_split_spec` wrote, for `pipeline`; InputError for another file.

    ``split_point`` is ``torch.distributed.pipelining.SplitPoint``, given so that this module need not import torch.
    """
    points = read_json(path, "split spec").get("split_spec")
    if not isinstance(points, dict) or not all(point in (BEGINNING, END) for point in points.values()):
        raise InputError(f"'{path}' has no split_spec of BEGINNING and END; export the plan to {NAME} again")
    return {module: split_point[point] for module, point in points.items()}


def _point(modules: Modules, op: int, stage: int) -> tuple[str, str]:
    """Return the outermost module that begins with an operator, else one that ends right before it."""
    ops = modules.graph.ops
    called = {op.module for op in ops} - {ROOT}  # unlike an nn.ModuleList
    for edge, side, point in ((op, 0, BEGINNING), (op - 1, -1, END)):
        for path in ancestors(ops[edge].module):
            under = modules.under[path]
            if path in called and under[side] == edge and under[-1] - under[0] == len(under) - 1:  # in one run
                return path, point
    module = ops[op].module
    inside = f" inside of module '{module}'" if module else ""
    reason = f"stage {stage} begins with operator '{ops[op].name}'{inside}"
    together = module or f"{ops[op - 1].name},{ops[op].name}"
    raise refuse(NAME, reason, "cuts at the beginning or the end of a module", f"plan with --together '{together}'")
