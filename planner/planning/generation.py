"""Plan for a language model that generates: its phases become one cost table, which is solved as any other.

Rows of one pass share the reading of the weights, and several groups of rows keep several devices busy. So a cluster is
planned for with all sequences in one group, and with as many groups as devices, and the faster plan is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from costmodels.cluster.cluster import Cluster
from costmodels.generation_costs import PhaseCosts, mean_pass, of_pass
from costmodels.measured import Profile
from costmodels.profile_cache import cached_profiles, learned_costs
from costmodels.tabulate import tabulate
from costmodels.workload import Workload
from graphs.common.errors import InputError
from graphs.ir import Graph
from graphs.phases import Phase
from graphs.rewrites.network_shardings import phase_shardings
from graphs.rewrites.rewrite import Rewrite, rewritten
from graphs.rewrites.sharding import Sharding
from graphs.rewrites.split import Split
from planner.planning.apart import splits_of_experts, with_experts_apart
from planner.planning.make_plan import Search, paces_of, search_plan
from planner.planning.rewriting import COPIES, FUSE, SPLIT, allows, optional, rewrites_for
from planner.planning.sharding_search import LEAST_GAIN, SplitSearch
from planner.planning.splitting import SPLITS_S, Splits, with_costs_of_parts
from planner.plans.plan import PlacementTask, Plan
from planner.problem.constraints import Constraint
from planner.problem.problem import Goal
from planner.problem.result import NoPlanError, Status

if TYPE_CHECKING:  # torch takes seconds to load
    from graphs.program.generation import GenerationProgram


def plan_generation(
    model: GenerationProgram,
    cluster: Cluster,
    workload: Workload,
    constraints: tuple[Constraint, ...],
    search: Search,
) -> Plan:
    """Find where every operator of a language model runs on one cluster. Nothing runs for it.

    Raises:
        InputError: if the workload is for other rows or another context than the model, or the cluster cannot run an
            operator, or a constraint names what does not exist.
        NoPlanError: if no placement keeps the constraints, or none was found in time.
        Interrupted: on Ctrl-C, with the best plan so far.
    """
    check_fits(model, workload)
    model_costs = GenerationCosts(model, cluster, workload, constraints, search.rewrites)
    whole = model_costs.task()

    def found() -> Plan:
        return _whole_or_in_step(model_costs, whole, search)

    def apart(split: Split) -> Plan:
        return _simulated(search_plan(model_costs.divided(split, whole), search))

    return with_experts_apart(found, whole, search.rewrites, model_costs.splits_of_experts, apart)


def _whole_or_in_step(model_costs: GenerationCosts, whole: PlacementTask, search: Search) -> Plan:
    """Return the better plan: of the whole network, or with operators in parts side by side.

    Raises:
        NoPlanError, Interrupted: as `plan_generation`.
    """
    refused: NoPlanError | None = None
    plan: Plan | None = None
    try:
        plan = _simulated(search_plan(whole, search))
    except NoPlanError as error:
        refused = error
    in_step: Plan | None = None
    with optional(search.rewrites, SPLIT):
        in_step = _in_step(model_costs, whole, min(search.time_limit_s, SPLITS_S))
    if plan is None and in_step is None:
        assert refused is not None
        raise refused
    if plan is None or (in_step is not None and in_step.predicted_s < (1 - LEAST_GAIN) * plan.predicted_s):
        assert in_step is not None
        return in_step
    return plan


@dataclass(frozen=True)
class GenerationCosts:
    """A language model on a cluster, whose phases are tabulated with whole operators or with split ones."""

    model: GenerationProgram
    cluster: Cluster
    workload: Workload
    constraints: tuple[Constraint, ...]
    asked: str  # rewrites

    @cached_property
    def graphs(self) -> Mapping[Phase, Graph]:
        """The phases as they were imported, the most tokens first."""
        phases = sorted(self.model.phases, key=lambda phase: (-phase.tokens, phase.length))
        return {phase: self.model.phases[phase].graph for phase in phases}

    @cached_property
    def _profiles(self) -> Mapping[str, Profile]:
        return cached_profiles(self.cluster)

    def task(
        self, split: Split | None = None, known: Callable[[Phase, PlacementTask], PlacementTask] | None = None
    ) -> PlacementTask:
        """Return the task of the network, whole or split; ``known`` replaces costs of the parts in a phase."""
        graphs = dict(self.graphs) if split is None else {phase: split(graph) for phase, graph in self.graphs.items()}
        others = rewrites_of_phases(self.asked, graphs, self.cluster)
        tables = {}
        for phase, graph in graphs.items():
            own = rewritten(graph, others)
            table = tabulate(own, self.cluster, self.workload, self._profiles, learned_costs)
            one = PlacementTask(own, self.cluster, self.workload, table, Goal.GENERATION)
            tables[phase] = of_pass((known(phase, one) if known else one).table, own, phase)
        decode = Phase(1, self.model.context)
        stays = tables[decode].op_bytes  # of the caches at the whole context, whatever a phase reads
        prompt, output = passes_of(self.model, self.workload)
        phases = tuple(
            PhaseCosts(phase, prompt.get(phase, 0), output.get(phase, 0), replace(table, op_bytes=stays))
            for phase, table in tables.items()
        )
        pace, pace_spread = paces_of(self.cluster, self._profiles)
        rewrites = (*([split] if split else []), *others)
        return PlacementTask(
            rewritten(graphs[decode], others),
            self.cluster,
            self.workload,
            mean_pass(phases),
            Goal.GENERATION,
            self.constraints,
            pace,
            pace_spread,
            rewrites,
            network=self.graphs[decode].fingerprint,
            phases=phases,
        )

    @cached_property
    def decode(self) -> Graph:
        """The phase of one token at the whole context."""
        return self.graphs[Phase(1, self.model.context)]

    @cached_property
    def shardings(self) -> Mapping[str, Sequence[Sharding]]:
        """The shardings that all phases have."""
        return phase_shardings([self.decode, *(graph for graph in self.graphs.values() if graph is not self.decode)])

    def splits_of_experts(self) -> Iterator[Split]:
        """Yield the splits of the experts that change all phases alike."""
        return filter(self.alike, splits_of_experts(self.decode, self.shardings))

    def alike(self, split: Split) -> bool:
        """Return whether a split makes the same operators of all phases."""
        from graphs.program.generation import unlike

        first, *others = (split(graph) for graph in self.graphs.values())
        return all(unlike(other, first) is None for other in others)

    def divided(self, split: Split, whole: PlacementTask) -> PlacementTask:
        """Return the task of a split network, whose costs follow from those of the whole one."""
        tables = {each.phase: each.table for each in whole.phases}

        def known(phase: Phase, divided: PlacementTask) -> PlacementTask:
            graph = self.graphs[phase]
            parts = split.applied(graph).parts
            return with_costs_of_parts(divided, parts, rewritten(graph, whole.rewrites), tables[phase])

        return self.task(split, known)


def _in_step(model_costs: GenerationCosts, whole: PlacementTask, time_limit_s: float) -> Plan | None:
    """Return the plan with operators in parts side by side; None if none pays, or groups keep the devices busy.

    All sequences are in one group, so that its pass reads the weights once, and each device reads a part of them.
    """
    grouped = model_costs.workload.in_flight > 1
    if grouped or whole.constraints or not allows(model_costs.asked, SPLIT):
        return None
    decode, known = model_costs.decode, model_costs.shardings
    search = SplitSearch.of(decode, whole.graph, whole.table, whole.cluster, known)
    splits = Splits.found(search, whole.graph, whole.table, time_limit_s) if search else None
    if splits is None or not model_costs.alike(splits.split):
        return None
    plan = splits.in_step(model_costs.divided(splits.split, whole))
    return plan if plan.evaluation.feasible else None


def _simulated(plan: Plan) -> Plan:
    """Return the plan, or all on the best single device if that is as fast in the simulator.

    A stream of few groups waits for its own passes, which the busiest device does not show.
    """
    one = plan.one_device
    if plan.n_used == 1 or one is None or one.predicted_s > plan.predicted_s:
        return plan
    return replace(plan, placement=one.placement, status=str(Status.FEASIBLE), simplification=None, robustness=None)


def check_fits(model: GenerationProgram, workload: Workload) -> None:
    """Check that a model was imported for a workload; raise InputError if it was not."""
    for name, asked, own in (
        ("rows", workload.batch, model.rows),
        ("context", workload.context, model.context),
    ):
        if asked != own:
            raise InputError(
                f"the workload has {asked:,} as its {'batch' if name == 'rows' else name}, and the model was imported "
                f"with {name}={own:,}; make both alike"
            )
    if model.source is not None and model.source.has_ids and workload.prompt > model.source.shape[0]:
        raise InputError(
            f"the workload has prompts of {workload.prompt:,} tokens, and the model was imported with "
            f"source={model.source.shape[0]:,}; ask for fewer, or import it for more"
        )


def passes_of(model: GenerationProgram, workload: Workload) -> tuple[Mapping[Phase, int], Mapping[Phase, int]]:
    """Return the passes of each phase for a prompt of the workload, and for the tokens after its first one.

    The runtime's own rule says which phase comes next.
    """
    from planner.runtime.generation.groups import RowGroup, advance, next_phase
    from planner.runtime.generation.prompts import of_workload

    rows = of_workload(model, workload)
    group = RowGroup(0, [*rows])
    counts: tuple[dict[Phase, int], dict[Phase, int]] = ({}, {})
    while rows[0].left:
        phase = next_phase(model, rows)
        count = counts[rows[0].left < workload.output]
        count[phase] = count.get(phase, 0) + 1
        for _, one in advance(group, phase):
            one.pending.append(0)
            one.left -= 1
    return counts


def rewrites_of_phases(asked: str, graphs: Mapping[Phase, Graph], cluster: Cluster) -> tuple[Rewrite, ...]:
    """Return the rewrites of all phases: the fusions of one token, if they change all phases alike.

    Raises:
        InputError: if the user names a rewrite that generation or the devices do not support.
    """
    from graphs.program.generation import unlike

    if COPIES in asked.split(","):
        raise InputError(f"the rewrite '{COPIES}' is not for generation, whose caches live once; leave it out")
    decode = graphs[max(phase for phase in graphs if phase.tokens == 1)]
    rewrites = rewrites_for(asked, decode, cluster.devices, trains=False)
    try:
        one, *others = [rewritten(graph, rewrites) for graph in (decode, *graphs.values())]
        alike = all(unlike(other, one) is None for other in others)
    except InputError:  # an operator of a group has another kind in another phase
        alike = False
    if alike:
        return rewrites
    if FUSE in asked.split(","):
        raise InputError("the rewrite 'fuse' changes the phases of this network differently; leave it out")
    return ()


def recounted(plan: Plan, model: GenerationProgram, output: int) -> Plan:
    """Return a plan for another number of tokens after each prompt, whose passes are counted anew.

    Raises:
        InputError: if prompt and output do not fit into the plan's context.
    """
    work = replace(plan.workload, output=output)
    passes = passes_of(model, work)
    phases = tuple(
        replace(each, prompt=passes[0].get(each.phase, 0), output=passes[1].get(each.phase, 0)) for each in plan.phases
    )
    return replace(plan, workload=work, phases=phases, table=mean_pass(phases))
