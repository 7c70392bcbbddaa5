"""run.json: a recorded run of a plan, to be drawn beside what was predicted.

::

    {"version": 1, "model": "googlenet", "plan": "1a2b3c4d5e6f", "devices": ["cpu0", "cpu1"], "micro_batches": 16,
     "spans": [["compute", "cpu0", "conv1 … relu", 0, 0, 0.0, 0.0021], ...]}       as `simulator.timeline.Span`
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

from graphs.documents import DAMAGED, read_json
from graphs.errors import InputError
from graphs.files import write_text
from planner.plans.plan import Plan
from simulator.timeline import Span, Timeline

VERSION = 1


def run_to_dict(plan: Plan, run: Timeline) -> dict[str, Any]:
    """A run of a plan as what JSON can hold."""
    return {
        "version": VERSION,
        "model": plan.graph.name,
        "plan": placement_fingerprint(plan),
        "devices": list(run.devices),
        "micro_batches": run.micro_batches,
        "spans": [list(astuple(span)) for span in run.spans],
    }


def run_from_dict(document: Mapping[str, Any], plan: Plan) -> Timeline:
    """The inverse of `run_to_dict`.

    Raises:
        InputError: if the version is newer, a field is missing, or the run is one of another plan.
    """
    if document.get("version") != VERSION:
        raise InputError(
            f"the run has the version {document.get('version')!r}, this planner reads {VERSION}; "
            "update the planner or run the plan again"
        )
    try:
        run = Timeline(
            tuple(document["devices"]), document["micro_batches"], tuple(Span(*span) for span in document["spans"])
        )
        of = document["plan"]
        seconds = [span.start_s + span.end_s for span in run.spans]
    except DAMAGED as error:
        raise InputError(f"the run is damaged: {error!r}; run the plan again") from error
    if of != placement_fingerprint(plan) or run.devices != plan.table.devices:
        raise InputError(
            f"the run of '{document.get('model')}' is not one of this plan; run this one: planner run -o FILE"
        )
    if not seconds:
        raise InputError("the run is empty; run the plan again")
    return run


def placement_fingerprint(plan: Plan) -> str:
    """Twelve hexadecimal digits that change with the network and with what runs where in which order."""
    text = json.dumps([plan.graph.fingerprint, plan.table.devices, plan.placement.device, plan.placement.order])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def save_run(plan: Plan, run: Timeline, path: Path) -> None:
    """Write run.json."""
    write_text(json.dumps(run_to_dict(plan, run), ensure_ascii=False, allow_nan=False) + "\n", path)


def load_run(path: Path, plan: Plan) -> Timeline:
    """Read run.json.

    Raises:
        InputError: if the file is missing, not JSON, or not a run of this plan.
    """
    return run_from_dict(read_json(path, "run"), plan)
