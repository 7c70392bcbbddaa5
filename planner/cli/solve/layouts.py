"""``planner solve`` for layout problems and layer problems: the best layout, or the best modes, of each case."""

import argparse
from collections.abc import Mapping
from typing import Any

from costmodels.units import format_bytes
from planner.cli.console import Console
from planner.cli.solve.solution import Solution
from planner.cli.text import count, table
from planner.literature.layerwise.layer_modes import best_modes
from planner.literature.layerwise.layer_parallelism import LayerMode, layer_problems
from planner.literature.layouts.dimension_layout import layout_problems
from planner.literature.layouts.solve import solve_layout
from planner.problem.deadline import Deadline
from planner.problem.result import Status


def solve_layouts(document: Mapping[str, Any], options: argparse.Namespace, _: Console) -> Solution:
    """Return the layout of lowest peak memory of each case."""
    problems, deadline = layout_problems(document), Deadline(options.time_limit)
    cases, rows = [], []
    for number, problem in enumerate(problems):
        result = solve_layout(problem, deadline.left_s / (len(problems) - number))
        status, layout, peak_bytes = str(result.status), result.layout, result.peak_bytes
        cases.append({"name": problem.name, "layout": layout, "peak_bytes": peak_bytes, "status": status})
        shown = ", ".join(f"{name} over {axis}" for name, axis in layout.items()) or "nothing split"
        rows.append((problem.name, shown, format_bytes(peak_bytes), status))
    answer = {"cases": cases}
    return Solution("layouts", answer, answer, table(("case", "layout", "peak memory", "status"), rows))


def solve_layers(document: Mapping[str, Any], _: argparse.Namespace, __: Console) -> Solution:
    """Data or model parallelism for each layer of each case."""
    cases, rows = [], []
    for problem in layer_problems(document):
        modes = best_modes(problem)
        sent_bytes = problem.sent_bytes(modes)
        data: list[LayerMode] = ["d"] * len(modes)
        case = {"network": problem.network, "batch": problem.batch, "gpus": problem.devices, "modes": "".join(modes)}
        cases.append({**case, "sent_bytes": sent_bytes, "status": str(Status.OPTIMAL)})
        name = f"{problem.network}, {count(problem.batch, 'sample')}, {count(problem.devices, 'device')}"
        rows.append((name, "".join(modes), _megabytes(sent_bytes), _megabytes(problem.sent_bytes(data))))
    answer = {"cases": cases}
    heads = ("case", "d: data, m: model", "each sends", "all data-parallel")
    return Solution("layers", answer, answer, table(heads, rows))


def _megabytes(n_bytes: float) -> str:
    return f"{n_bytes / 1e6:.3f} MB"
