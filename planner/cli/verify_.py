"""Compare a plan's stages with the reference model, tensor by tensor, and name the first operator that differs.

planner verify plan.json examples.networks:googlenet
planner verify plan.json examples.networks:googlenet --training
planner verify plan.json model.onnx --tolerance 1e-4
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.cli.console import Console
from planner.cli.models import declare_model, import_for
from planner.cli.numbers import share
from planner.cli.statuses import DIFFERENT, DONE
from planner.cli.text import count, wrapped
from planner.plans.files import load_plan
from planner.plans.plan import Plan

if TYPE_CHECKING:
    from planner.runtime.verification.deviation import Deviation
    from planner.runtime.verification.verify import Finding, Verification


def declare(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``planner verify``."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.json")
    declare_model(parser)
    parser.add_argument("--training", action="store_true", help="compare gradients too (a training plan's always are)")
    parser.add_argument(
        "--tolerance",
        type=share,
        metavar="T",
        help="of each tensor's largest element; 0 for every bit (0 where all devices are of one kind, else by dtype)",
    )


def run(options: argparse.Namespace, console: Console) -> int:
    """Import, run both, print what differs first."""
    plan = load_plan(options.plan)
    from planner.runtime.errors import StageError
    from planner.runtime.verification.verify import verify

    program = import_for(plan, options, console)
    console.on_step("comparing the stages", 0, 0)
    try:
        found = verify(plan, program, options.training or None, options.tolerance)
    except StageError as error:
        console.error(f"{error}; the reference model does not")
        return DIFFERENT
    if console.json:
        console.show(document(found), "", (), ())
    for part in wrapped(summary(plan, found), indent=0):
        console.say(part)
    for line in difference(found.finding):
        console.error(line)
    return DONE if found.equal else DIFFERENT


def summary(plan: Plan, found: "Verification") -> str:
    """What was compared, and whether it is equal."""
    devices = [plan.cluster.devices[number].name for number in sorted(set(plan.placement.device))]
    what = count(found.n_tensors, "tensor")
    if found.n_gradients:
        what += f" and {count(found.n_gradients, 'gradient')}"
    where = f"{what} from {count(found.n_stages, 'stage')} on {', '.join(devices)}"
    if found.finding is not None:
        return f"{plan.graph.name}: of {where}, compared until one differs"
    if found.tolerance:
        there = {tensor.dtype for tensor in plan.graph.tensors}
        limits = ", ".join(f"{limit:g} ({name})" for name, limit in _limits(found).items() if name in there)
        return f"{plan.graph.name}: {where} equal the reference model's within {limits} of the largest element"
    return f"{plan.graph.name}: {where} are bit-equal to the reference model's"


def difference(finding: "Finding | None") -> Iterator[str]:
    """Where it differs, and which operator is to blame; nothing if nothing does."""
    if finding is None:
        return
    what = f"{'the gradient of ' if finding.backward else ''}'{finding.tensor}'"
    yield f"{what} of stage {finding.stage} ({finding.label}) on {finding.device} differs: {finding.deviation}"
    mismatch = finding.mismatch
    if mismatch is None:
        yield "each operator of the stage, run alone on the right inputs, is right"
        return
    module = f" in module '{mismatch.module}'" if mismatch.module else ""
    yield (
        f"operator '{mismatch.op}' ({mismatch.kind}){module} is the first that differs on the right inputs: its "
        f"{mismatch.result}, {mismatch.deviation}"
    )
    if not mismatch.repeatable:
        yield "it does not give the same result twice"


def _limits(found: "Verification") -> dict[str, float]:
    return {str(dtype).removeprefix("torch."): limit for dtype, limit in found.tolerance.items()}


def document(found: "Verification") -> dict[str, Any]:
    """What ``--json`` shows."""
    finding = found.finding
    shown: dict[str, Any] | None = None
    if finding is not None:
        mismatch = finding.mismatch
        shown = {
            "tensor": finding.tensor,
            "is_gradient": finding.backward,
            "stage": finding.stage,
            "stage_label": finding.label,
            "device": finding.device,
            "deviation": _deviation(finding.deviation),
            "operator": mismatch
            and {
                "name": mismatch.op,
                "kind": mismatch.kind,
                "module": mismatch.module,
                "result": mismatch.result,
                "deviation": _deviation(mismatch.deviation),
                "repeatable": mismatch.repeatable,
            },
        }
    return {
        "equal": found.equal,
        "n_stages": found.n_stages,
        "n_tensors": found.n_tensors,
        "n_gradients": found.n_gradients,
        "tolerance": _limits(found),
        "finding": shown,
    }


def _deviation(deviation: "Deviation") -> dict[str, Any]:
    """Numbers that are none become null."""
    fields = {name: getattr(deviation, name) for name in ("n_different", "n_elements", "by", "share", "form")}
    return {
        name: value if isinstance(value, str) or abs(value) < float("inf") else None for name, value in fields.items()
    }
