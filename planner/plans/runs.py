"""MeasuredRun: the measurements of a plan's run, and run.json, which keeps them for comparison with the prediction.

::

    {"version": 1, "model": "googlenet", "plan": "1a2b3c4d5e6f", "devices": ["cpu0", "cpu1"], "micro_batches": 16,
     "seconds": 0.0202, "latency_s": 0.0379, "usage": {"period_s": 0.0202, "devices": {"cpu0": {...}}, "links": {...}},
     "spans": [["compute", "cpu0", "conv1 … relu", 0, 0, 0.0, 0.0021, 0.0021], ...]}     as `simulator.timeline.Span`
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from graphs.common.brief import brief
from graphs.common.documents import DAMAGED, check_version, read_json
from graphs.common.errors import InputError
from graphs.files import write_text
from graphs.kinds import kind_of
from planner.plans.plan import Plan
from simulator.timeline import Span, Timeline
from simulator.usage import DeviceUsage, Usage

VERSION = 1
SHOWN = 16  # micro-batches of a stream that are kept


@dataclass(frozen=True)
class MeasuredRun:
    """A run of a plan."""

    timeline: Timeline  # the first micro-batches of a stream, or a training step
    seconds: float | None = (
        None  # of a training step, or from one micro-batch to the next in the steady part; None if unknown
    )
    latency_s: float | None = None  # of one micro-batch alone; None in training
    usage: Usage | None = None  # what devices and links did in the steady part; None in training and for a short stream

    __repr__ = brief


def streamed(plan: Plan, stream: Timeline, period_s: float, latency_s: float) -> MeasuredRun:
    """Return the run of a recorded stream, and of micro-batches alone."""
    return MeasuredRun(stream.first(SHOWN), period_s, latency_s, plan.usage_of(stream))


def run_to_dict(plan: Plan, run: MeasuredRun) -> dict[str, Any]:
    """Return a run of a plan as a JSON object."""
    return {
        "version": VERSION,
        "model": plan.graph.name,
        "plan": placement_fingerprint(plan),
        "devices": list(run.timeline.devices),
        "micro_batches": run.timeline.micro_batches,
        "seconds": run.seconds,
        "latency_s": run.latency_s,
        "usage": None if run.usage is None else asdict(run.usage),
        "spans": [list(astuple(span)) for span in run.timeline.spans],
    }


def run_from_dict(document: Mapping[str, Any], plan: Plan) -> MeasuredRun:
    """Return the run of a JSON object, the inverse of `run_to_dict`.

    Raise InputError if the version is another, a field is missing, or the run is one of another plan.
    """
    check_version(document, "run", VERSION, "run the plan again")
    try:
        spans = tuple(Span(*span) for span in document["spans"])
        timeline = Timeline(tuple(document["devices"]), document["micro_batches"], spans)
        of, numbers = document["plan"], [span.start_s + span.end_s for span in spans]
        run = _measured(timeline, document)
    except DAMAGED as error:
        raise InputError(f"the run is damaged: {error!r}; run the plan again") from error
    if of != placement_fingerprint(plan) or timeline.devices != plan.table.devices:
        raise InputError(
            f"the run of '{document.get('model')}' is not one of this plan; run this one: planner run -o FILE"
        )
    if not numbers:
        raise InputError("the run is empty; run the plan again")
    return run


def _measured(timeline: Timeline, document: Mapping[str, Any]) -> MeasuredRun:
    """Return a run with its figures."""
    used = document["usage"]
    if used is not None:
        devices = {name: DeviceUsage(**fields) for name, fields in used["devices"].items()}
        used = Usage(float(used["period_s"]), devices, {name: float(s) for name, s in used["links"].items()})
    seconds, latency_s = (None if document[key] is None else float(document[key]) for key in ("seconds", "latency_s"))
    return MeasuredRun(timeline, seconds, latency_s, used)


def placement_fingerprint(plan: Plan) -> str:
    """Twelve hexadecimal digits that change with the network and with what runs where in which order."""
    placed = [plan.placement.device, plan.placement.order, *([c.device, c.order] for c in plan.placement.others)]
    text = json.dumps([plan.graph.fingerprint, plan.table.devices, *placed])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def save_run(plan: Plan, run: MeasuredRun, path: Path) -> None:
    """Write run.json."""
    write_text(json.dumps(run_to_dict(plan, run), ensure_ascii=False, allow_nan=False) + "\n", path)


def load_run(path: Path, plan: Plan) -> MeasuredRun:
    """Read run.json. Raise InputError if the file is missing, not JSON, or not a run of this plan."""
    document = read_json(path, "run")
    if (kind := kind_of(document)) not in ("recorded run", ""):
        raise InputError(f"'{path}' is a {kind}, no recorded run; make one with planner run PLAN MODEL -o FILE")
    return run_from_dict(document, plan)
