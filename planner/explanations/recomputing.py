"""Explain recomputation: what is kept, what is recomputed, and the seconds and bytes that this costs and saves."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from costmodels.operators.views import operation
from costmodels.workload import RecomputeMode
from graphs.common.brief import brief
from planner.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class RecomputationEffect:
    """The recomputation of a training plan; bytes are of one micro-batch, of all devices."""

    mode: RecomputeMode
    kept: tuple[tuple[str, int], ...]  # kinds of the operators whose results are kept, with numbers
    kept_bytes: float  # until the backward pass, but for what stages receive
    saved_bytes: float  # that autograd would keep instead
    again: tuple[tuple[str, int], ...]  # kinds of the operators that run again
    again_s: float  # of each micro-batch
    step_s: float
    plain_step_s: float  # of the same placement without recomputation
    peak_bytes: float  # of the fullest device
    plain_peak_bytes: float

    __repr__ = brief


def recomputed(plan: Plan) -> RecomputationEffect | None:
    """Return the recomputation of a plan; None without any."""
    mode, table = plan.workload.recompute, plan.costs
    if not plan.workload.trains or mode == "none":
        return None
    again_s = table.again_s(mode)[np.arange(table.n_ops), list(plan.placement.device)]
    kept = table.trained.runs_once if mode == "selective" else np.zeros(table.n_ops, dtype=bool)
    plain = replace(plan, workload=replace(plan.workload, recompute="none"))
    return RecomputationEffect(
        mode=mode,
        kept=_kinds(plan, np.flatnonzero(kept)),
        kept_bytes=float(table.trained.waiting_bytes(mode).sum()),
        saved_bytes=float(table.trained.saved_bytes.sum()),
        again=_kinds(plan, np.flatnonzero(~kept)),
        again_s=float(again_s.sum()),
        step_s=plan.objective_s,
        plain_step_s=plain.objective_s,
        peak_bytes=float(plan.evaluation.memory_bytes.max()),
        plain_peak_bytes=float(plain.evaluation.memory_bytes.max()),
    )


def _kinds(plan: Plan, ops: Iterable[int]) -> tuple[tuple[str, int], ...]:
    return tuple(Counter(operation(plan.graph.ops[op].kind) for op in ops).most_common())
