"""simulate: what happens when micro-batches go through a plan, as it is or with other devices, links or batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from costmodels.cluster.cluster import SHARINGS, Sharing
from costmodels.workload import RECOMPUTE_MODES, TRAINING_SCHEDULES, RecomputeMode
from graphs.common import checks
from graphs.common.brief import Brief
from graphs.common.errors import InputError
from graphs.ir import Graph
from planner.explanations.changes import Changes, apply_changes, replan
from planner.explanations.settings import Setting
from planner.planning.make_plan import Search
from planner.plans.given import ModelName, Named, NamedModel, given_model, given_plan
from planner.plans.plan import Plan
from planner.plans.prediction import Prediction, predict
from planner.problem.problem import Goal
from planner.problem.reporter import SILENT
from planner.problem.result import Interrupted

if TYPE_CHECKING:  # torch takes seconds to load
    from graphs.program.program import Program

MICRO_BATCHES = 8  # that stream through, by default


@dataclass(frozen=True)
class WhatIf:
    """Changes to simulate, as the options of ``planner simulate``; None leaves a figure as it is.

    Attributes:
        settings: TARGET.FIELD=VALUE each: "gpu1.memory=40GiB", "link.bandwidth=100Gb/s", "gpu0->*.latency=5us".
        add_device: LIKE or LIKE=NAME each, like a device there is or of the catalogue.
        in_flight: micro-batches on their way at once, in inference.
        schedule: of a training step.
        recompute: what a training step runs forward again.

    Raises:
        InputError: for a value of another type, or an unknown word.
    """

    settings: tuple[str, ...] = ()
    add_device: tuple[str, ...] = ()
    in_flight: int | None = None
    schedule: str | None = None
    recompute: RecomputeMode | None = None

    def __post_init__(self) -> None:
        checks.check_fields(self, "what is to change")
        if self.in_flight is not None:
            checks.integer(self.in_flight, "in-flight", 1)
        for value, what, known in (
            (self.schedule, "the schedule", TRAINING_SCHEDULES),
            (self.recompute, "the recomputation", RECOMPUTE_MODES),
        ):
            if value is not None:
                checks.one_of(value, what, known)


@dataclass(frozen=True)
class Simulation(Brief):
    """Prediction of a plan, with and without changes.

    Attributes:
        plans: "before", and what changes have made of it: "after", "replanned"; only the first without changes.
        prediction: of the last of them.
    """

    plans: Mapping[str, Plan]
    prediction: Prediction


def simulate(
    plan: Plan | Named,
    model: Program | Graph | ModelName | None = None,
    *,
    micro_batches: int | None = None,
    sharing: Sharing | None = None,
    what_if: WhatIf | None = None,
    search: Search | None = None,
) -> Simulation:
    """Predict how micro-batches stream through a plan, as it is or with other devices, links or batches.

    Args:
        plan: a plan, or the path of a plan.json.
        model: the plan's model for another batch: a `NamedModel` with that batch, or what an importer made of one.
        micro_batches: how many stream through (8); of a step, in training.
        sharing: of channels; None for what the cluster says.
        what_if: what is to change.
        search: look for the best placement under the changes too, in this way; None for not.

    Raises:
        InputError: for an unknown device, link or value, or a change that does not apply to the plan's goal.
        NoPlanError: if a search finds no placement.
        Interrupted: on Ctrl-C in the search, with the best placement until then.
    """
    plan = given_plan(plan)
    what_if = checks.instance(what_if or WhatIf(), WhatIf, "what is to change", "a WhatIf")
    checks.instance(search, (Search, type(None)), "the search", "a Search, or None")
    if micro_batches is not None:
        checks.integer(micro_batches, "the number of micro-batches", 1)
    if sharing is not None:
        checks.one_of(sharing, "the sharing", SHARINGS)
    trains = plan.goal is Goal.TRAINING
    changes = Changes(
        added=tuple((like, name) for like, _, name in (text.partition("=") for text in what_if.add_device)),
        settings=tuple(Setting.parse(text) for text in what_if.settings),
        graph=None if model is None else _same_network(plan, model, search),
        in_flight=what_if.in_flight,
        micro_batches=micro_batches if trains else None,
        schedule=what_if.schedule,
        recompute=what_if.recompute,
    )
    streaming = MICRO_BATCHES if trains else micro_batches or MICRO_BATCHES
    plans, stopped = _changed(plan, changes, search)
    simulation = Simulation(plans, predict(plans[list(plans)[-1]], streaming, sharing))
    if stopped:
        raise Interrupted(simulation) from stopped
    return simulation


def _changed(plan: Plan, changes: Changes, search: Search | None) -> tuple[dict[str, Plan], Interrupted | None]:
    """Return the plan before and after the changes, and the Ctrl-C that ended the search."""
    plans = {"before": plan}
    if changes.anything or search is not None:
        plans["after"] = apply_changes(plan, changes)
    if search is None:
        return plans, None
    search.reporter.on_search(f"planning {plan.graph.name} again", search.time_limit_s)
    try:
        plans["replanned"] = replan(plans["after"], search)
    except Interrupted as stopped:
        plans["replanned"] = stopped.best
        return plans, stopped
    return plans, None


def _same_network(plan: Plan, model: Program | Graph | ModelName, search: Search | None) -> Graph:
    """Return the graph of a plan's model for another batch."""
    given = given_model(model)
    if isinstance(given, NamedModel):
        if given.batch is None:
            raise InputError(f"'{given}' is imported for another batch only; give a NamedModel with that batch")
        reporter = search.reporter if search else SILENT
        given = given.load(plan.workload.trains, reporter, plan.graph)
    if not isinstance(given, Graph):
        from graphs.program.program import Program

        given = checks.instance(given, Program, "the model", "its Program, its graph or a NamedModel").graph
    return replace(given, name=plan.graph.name)
