"""Plan for a language model that generates: its phases become one cost table, which is solved as any other.

Rows of one pass share the reading of the weights, and several groups of rows keep several devices busy. So a cluster is
planned for with all sequences in one group, and with as many groups as devices, and the faster plan is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from costmodels.cluster.cluster import Cluster
from costmodels.generation_costs import PhaseCosts, mean_pass
from costmodels.profile_cache import cached_profiles, learned_costs
from costmodels.tabulate import tabulate
from costmodels.workload import Workload
from graphs.common.errors import InputError
from graphs.ir import Graph
from graphs.phases import Phase
from graphs.rewrites.rewrite import Rewrite, rewritten
from planner.planning.make_plan import Search, paces_of, search_plan
from planner.planning.rewriting import COPIES, FUSE, SPLIT, rewrites_for
from planner.plans.plan import PlacementTask, Plan
from planner.problem.constraints import Constraint
from planner.problem.problem import Goal
from planner.problem.result import Status

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
    graphs = {phase: program.graph for phase, program in model.phases.items()}
    rewrites = rewrites_of_phases(search.rewrites, graphs, cluster)
    profiles = cached_profiles(cluster)
    pace, pace_spread = paces_of(cluster, profiles)
    own = {phase: rewritten(graph, rewrites) for phase, graph in graphs.items()}
    decode = own[Phase(1, model.context)]
    tables = {phase: tabulate(graph, cluster, workload, profiles, learned_costs) for phase, graph in own.items()}
    stays = tables[Phase(1, model.context)].op_bytes  # of the caches at the whole context, whatever a phase reads
    prompt, output = passes_of(model, workload)
    phases = tuple(
        PhaseCosts(phase, prompt.get(phase, 0), output.get(phase, 0), replace(tables[phase], op_bytes=stays))
        for phase in sorted(tables, key=lambda phase: (-phase.tokens, phase.length))
    )
    table = mean_pass(phases)
    goal, network = Goal.GENERATION, model.decode.graph.fingerprint
    task = PlacementTask(decode, cluster, workload, table, goal, constraints, pace, pace_spread, rewrites)
    return _simulated(search_plan(replace(task, network=network, phases=phases), search))


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


def passes_of(model: GenerationProgram, workload: Workload) -> tuple[Mapping[Phase, int], Mapping[Phase, int]]:
    """Return the passes of each phase for a prompt of the workload, and for the tokens after its first one.

    The runtime's own rule says which phase comes next.
    """
    from planner.runtime.generation.groups import Continuation, RowGroup, advance, next_phase
    from planner.runtime.generation.sampling import Sampling

    one = Continuation(0, [0] * workload.prompt, workload.output, Sampling().generator(0))
    group = RowGroup(0, [one])
    counts: tuple[dict[Phase, int], dict[Phase, int]] = ({}, {})
    while one.left:
        phase = next_phase(model, [one])
        count = counts[one.left < workload.output]
        count[phase] = count.get(phase, 0) + 1
        if advance(group, phase):
            one.pending.append(0)
            one.left -= 1
    return counts


def rewrites_of_phases(asked: str, graphs: Mapping[Phase, Graph], cluster: Cluster) -> tuple[Rewrite, ...]:
    """Return the rewrites of all phases: the fusions of one token, if they change all phases alike.

    Raises:
        InputError: if the user names a rewrite that generation or the devices do not support.
    """
    from graphs.program.generation import unlike

    for name in (COPIES, SPLIT):
        if name in asked.split(","):
            raise InputError(f"the rewrite '{name}' is not for generation, whose caches live once; leave it out")
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
