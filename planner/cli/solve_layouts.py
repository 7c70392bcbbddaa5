"""What ``planner solve`` does with layout problems and layer problems: the best layout, or the best modes, a case."""

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from costmodels.units import format_bytes
from graphs.files import write_text
from planner.cli.console import Console
from planner.cli.statuses import DONE
from planner.cli.text import count
from planner.problem.deadline import Deadline
from planner.problem.dimension_layout import layout_problems
from planner.problem.layer_parallelism import LayerMode, layer_problems
from planner.problem.result import Status
from planner.solvers.dimension_layout import solve_layout
from planner.solvers.dp.layer_modes import best_modes


def solve_layouts(document: Mapping[str, Any], options: argparse.Namespace, console: Console) -> int:
    """Write the layout of lowest peak memory of each case."""
    problems = layout_problems(document)
    deadline = Deadline(options.time_limit)
    found = [(p, solve_layout(p, deadline.left_s / (len(problems) - i))) for i, p in enumerate(problems)]
    cases = [
        {"name": problem.name, "layout": result.layout, "peak_bytes": result.peak_bytes, "status": str(result.status)}
        for problem, result in found
    ]
    rows = [
        (problem.name, _shown(result.layout), format_bytes(result.peak_bytes), str(result.status))
        for problem, result in found
    ]
    return _told({"cases": cases}, "layouts", ("case", "layout", "peak memory", "status"), rows, options, console)


def solve_layers(document: Mapping[str, Any], options: argparse.Namespace, console: Console) -> int:
    """Write data or model parallelism for each layer of each case."""
    cases, rows = [], []
    for problem in layer_problems(document):
        modes = best_modes(problem)
        sent_bytes = problem.sent_bytes(modes)
        data: list[LayerMode] = ["d"] * len(modes)
        case = {"network": problem.network, "batch": problem.batch, "gpus": problem.devices, "modes": "".join(modes)}
        cases.append({**case, "sent_bytes": sent_bytes, "status": str(Status.OPTIMAL)})
        name = f"{problem.network}, {count(problem.batch, 'sample')}, {count(problem.devices, 'device')}"
        rows.append((name, "".join(modes), _megabytes(sent_bytes), _megabytes(problem.sent_bytes(data))))
    heads = ("case", "d: data, m: model", "each sends", "all data-parallel")
    return _told({"cases": cases}, "layers", heads, rows, options, console)


def _megabytes(n_bytes: float) -> str:
    return f"{n_bytes / 1e6:.3f} MB"


def _shown(layout: Mapping[str, str]) -> str:
    return ", ".join(f"{name} over {axis}" for name, axis in layout.items()) or "nothing split"


def _told(
    answer: dict[str, Any],
    title: str,
    heads: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    options: argparse.Namespace,
    console: Console,
) -> int:
    """Write the answer and show its table."""
    write_text(json.dumps(answer) + "\n", options.output)
    console.show({**answer, "output": str(options.output)}, f"{title} → {options.output}", heads, rows)
    return DONE
