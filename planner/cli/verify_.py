"""Compare a plan's stages with the reference model, tensor by tensor, and name the first operator that differs.

planner verify plan.json examples.networks:googlenet
planner verify plan.json examples.networks:googlenet --training
planner verify plan.json model.onnx --tolerance 1e-4
"""

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.cli.console import Console, attributes
from planner.cli.models import declare_model, model_of
from planner.cli.numbers import share
from planner.cli.statuses import DIFFERENT, DONE
from planner.cli.text import count, wrapped
from planner.plans.files import load_plan
from planner.plans.plan import Plan

if TYPE_CHECKING:
    from planner.runtime.verification.verify import Finding, Verification


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``planner verify``."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="plan.json")
    declare_model(parser)
    parser.add_argument("--training", action="store_true", help="compare gradients too (a training plan's always are)")
    parser.add_argument(
        "--tolerance",
        type=share,
        metavar="T",
        help="allowed share of each tensor's largest element; 0 for equal bits (0 if all devices are of one kind and "
        "exact, else by dtype)",
    )


def run(options: argparse.Namespace, console: Console) -> int:
    """Import the model, run it and the plan, and print the first difference."""
    plan = load_plan(options.plan)
    from planner.runtime.errors import StageError
    from planner.runtime.verification.verify import verify

    training = options.training or None
    try:
        verification = verify(plan, model_of(options), training=training, tolerance=options.tolerance, reporter=console)
    except StageError as error:
        console.error(f"{error}; the reference model does not")
        return DIFFERENT
    console.tell(verification_document(verification), wrapped(summary(plan, verification), indent=0))
    for line in difference(verification.finding):
        console.error(line)
    return DONE if verification.equal else DIFFERENT


def summary(plan: Plan, verification: "Verification") -> str:
    """Return a line that says what was compared, and whether it is equal."""
    devices = [plan.cluster.devices[number].name for number in plan.placement.used]
    gradients = f" and {count(verification.n_gradients, 'gradient')}" if verification.n_gradients else ""
    compared = f"{count(verification.n_tensors, 'tensor')}{gradients} from {count(verification.n_stages, 'stage')}"
    compared += f" on {', '.join(devices)}"
    if verification.finding is not None:
        return f"{plan.graph.name}: of {compared}, compared until one differs"
    n_imported = verification.n_imported
    are = "is" if (verification.n_tensors, verification.n_gradients) == (1, 0) else "are"
    besides = f"; {count(n_imported, 'tensor')} equal within rounding to the network before its split"
    if verification.tolerance:
        dtypes = {tensor.dtype for tensor in plan.graph.tensors}
        limits = ", ".join(f"{limit:g} ({name})" for name, limit in _limits(verification).items() if name in dtypes)
        equal = f"equal to the reference model's within {limits} of the largest element"
    else:
        equal = "bit-equal to the reference model's"
    return f"{plan.graph.name}: {compared} {are} {equal}" + (besides if n_imported else "")


def difference(finding: "Finding | None") -> Iterator[str]:
    """Yield the tensor that differs and the operator that causes it; nothing without a finding."""
    if finding is None:
        return
    tensor = f"{'the gradient of ' if finding.backward else ''}'{finding.tensor}'"
    yield f"{tensor} of stage {finding.stage} ({finding.label}) on {finding.device} differs: {finding.deviation}"
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


def _limits(verification: "Verification") -> dict[str, float]:
    return {str(dtype).removeprefix("torch."): limit for dtype, limit in verification.tolerance.items()}


def verification_document(verification: "Verification") -> dict[str, Any]:
    """The object that ``--json`` shows."""
    finding = verification.finding
    operator = finding and finding.mismatch and asdict(finding.mismatch)
    return {
        **attributes(verification, "equal", "n_stages", "n_tensors", "n_gradients", "n_imported"),
        "tolerance": _limits(verification),
        "finding": finding
        and {
            "tensor": finding.tensor,
            "is_gradient": finding.backward,
            "stage": finding.stage,
            "stage_label": finding.label,
            "device": finding.device,
            "deviation": asdict(finding.deviation),
            "operator": operator and {"name": operator.pop("op"), **operator},
        },
    }
