"""What `planner plan --split-cpu auto` shows of a choice: each division of the CPU, and what decided."""

from collections.abc import Iterator
from typing import Any

from costmodels.units import format_seconds
from planner.cli.figures import DISTURBED_CORES
from planner.cli.text import aligned, count
from planner.planning.cpu_partitions import PartitionChoice
from planner.plans.compare import OFF, Figure
from planner.plans.plan import Plan


def choice_document(choice: PartitionChoice) -> dict[str, Any]:
    """What ``--json`` shows."""
    autotuning = choice.autotuning
    return {
        "divisions": [
            {
                "cores": [list(device.cores) for device in plan.cluster.devices],
                "predicted_s": plan.predicted_s,
                "measured_s": measured_s,
                "chosen": plan is choice.plan,
            }
            for plan, measured_s in zip(choice.plans, choice.measured_s, strict=True)
        ],
        "why": choice.why,
        "autotuning": {"rounds": autotuning.rounds, "foreign_cores": autotuning.foreign_cores} if autotuning else None,
        "untried": choice.untried or None,
    }


def choice_lines(choice: PartitionChoice, again: str) -> Iterator[str]:
    """A row for each division of the CPU with what decided beside the chosen one, and how good the predictions were.

    Args:
        choice: with its autotuning, if there was one.
        again: the command that measures anew what the predictions rest on.
    """
    rows = [["divisions of the CPU", "predicted", "measured" if choice.autotuning else "", ""]]
    figures = []
    for plan, measured_s in zip(choice.plans, choice.measured_s, strict=True):
        name, expected_s = _division(plan), plan.predicted_s
        if measured_s is not None:
            figures.append(Figure(name, expected_s, measured_s))
        measured = "" if measured_s is None else format_seconds(measured_s)
        why = f"chosen: {choice.why}" if plan is choice.plan else ""
        rows.append([name, format_seconds(expected_s), measured, why])
    yield from aligned(rows, "lrrl", indent=0)
    if choice.untried:
        yield f"not tried: {choice.untried}"
    if choice.autotuning and choice.autotuning.foreign_cores > DISTURBED_CORES:
        others = f"other processes used {choice.autotuning.foreign_cores:.2f} cores meanwhile"
        yield f"{others}: the choice is disturbed; plan again when they have ended"
    elif off := [figure for figure in figures if abs(figure.error) > OFF]:
        yield f"off from what was predicted: {', '.join(f'{one.name} by {one.error:+.1%}' for one in off)}"
        yield f"`{again}` measures anew what that rests on"


def _division(plan: Plan) -> str:
    """ "2 devices of 1 core"."""
    cores = sorted({len(device.cores) for device in plan.cluster.devices if device.cores})
    n_devices = sum(bool(device.cores) for device in plan.cluster.devices)
    return f"{count(n_devices, 'device')} of {' and '.join(count(n, 'core') for n in cores)}"
