"""Plans for generation: two unequal devices against all placements, and what cannot be planned for."""

from dataclasses import replace
from functools import cache
from itertools import product
from math import inf

import pytest

import planner
from costmodels.cluster.cluster import Cluster, Device, Link
from costmodels.generation_costs import PhaseCosts, mean_pass
from costmodels.memory.device import lasting_bytes
from costmodels.units import format_bytes
from costmodels.workload import Workload
from graphs.caches import users
from graphs.common.errors import InputError
from graphs.phases import Phase
from graphs.rewrites.split import Split
from planner.explanations.what_if import helps
from planner.planning.generation import passes_of
from planner.planning.question import OpenWorkload, possible_rows
from planner.plans.compare import pace_change
from planner.plans.files import plan_from_dict, plan_to_dict
from planner.plans.generation import generation_of, held_bytes, paced, phase_plan
from planner.plans.plan import Plan
from planner.plans.prediction import predict
from planner.problem.constraints import Constraint
from planner.problem.problem import Goal, Problem
from planner.problem.result import Status
from simulator.placement import Placement
from tests.planner.problem.problems import make_table
from tests.planner.runtime.generation.tiny import CONTEXT, imported, module, split_plan

WORK = OpenWorkload(prompt=20, output=10, sequences=4, context=CONTEXT)


def paper(bytes_per_s: float = 1e9, latency_s: float = 1e-6, memory: float = 1e9) -> Cluster:
    """Two unequal devices on paper."""
    slow = Device("slow", "cpu", memory, {"float32": 2e9}, 4e9, launch_s=1e-6)
    fast = Device("fast", "cpu", memory, {"float32": 3e9}, 5e9, launch_s=8e-7)
    links = (Link("slow", "fast", bytes_per_s, latency_s), Link("fast", "slow", bytes_per_s, latency_s))
    return Cluster("paper", (slow, fast), links)


@cache
def usual() -> Plan:
    """Four sequences in two groups on both devices."""
    return planned(paper())


def planned(
    cluster: Cluster,
    work: OpenWorkload | Workload = WORK,
    constraints: tuple[Constraint, ...] = (),
    **search: object,
) -> Plan:
    limits = {"time_limit_s": 2.0, "rewrites": "none"} | search
    return planner.plan(
        imported("llama"),
        cluster=cluster,
        goal="generation",
        workload=work,
        constraints=constraints,
        search=planner.Search(**limits),  # type: ignore[arg-type]
    )


def test_passes_are_those_of_the_runtime() -> None:
    model = imported("llama")  # passes of 8 tokens and 1, over 16 positions or all 48
    work = Workload("generation", 2, 2, prompt=20, output=10, context=CONTEXT)
    prompt, output = passes_of(model, work)
    assert prompt == {Phase(8, 16): 2, Phase(8, CONTEXT): 1}  # 8 + 8 + 4, which are filled up
    assert output == {Phase(1, CONTEXT): 9}  # the first token is that of the last pass over the prompt
    assert passes_of(model, replace(work, prompt=3, output=12))[1] == {Phase(1, 16): 11}


def test_no_placement_on_two_unequal_devices_is_better() -> None:
    seconds = {1: [[5, 3], [8, 5], [5, 3], [8, 5], [2, 2]], 9: [[1, 2], [2, 1], [1, 2], [2, 1], [1, 1]]}  # by passes
    n_bytes = {1: [16, 8, 16, 8], 9: [2, 1, 2, 1]}
    latency_s, groups = 0.25, ((0, 1), (2, 3))  # a cache each
    phases = [
        PhaseCosts(
            Phase(8 if passes == 1 else 1, 32),
            *((1, 0) if passes == 1 else (0, passes)),
            make_table(
                seconds[passes],
                [(i, (i + 1,), size) for i, size in enumerate(n_bytes[passes])],
                link_s=latency_s,
                per_byte=0.125,
                together=groups,
            ),
        )
        for passes in (1, 9)
    ]
    least_s = inf
    for homes in product(range(2), repeat=3):
        device = [homes[0]] * 2 + [homes[1]] * 2 + [homes[2]]
        busy = [sum(n * seconds[n][i][d] for n in (1, 9) for i in range(5) if device[i] == d) for d in range(2)]
        channel = {(0, 1): 0.0, (1, 0): 0.0}
        for i in range(4):
            if device[i] != device[i + 1]:
                sent_s = sum(n * (latency_s + 0.125 * n_bytes[n][i]) for n in (1, 9))  # a message for each pass
                channel[device[i], device[i + 1]] += sent_s
        least_s = min(least_s, max(*busy, *channel.values()) / 10)
    found = planner.solve(Problem(mean_pass(phases), Goal.of_passes(Goal.GENERATION, 2)), gap=0.0)
    assert found.objective_s == pytest.approx(least_s)
    assert found.status is Status.OPTIMAL


def test_the_mean_pass_and_the_predictions_follow_from_the_phases() -> None:
    plan = usual()
    found, passes = generation_of(plan), 3 + 9
    busy_s = [
        sum(p.passes * p.table.forward_s[op, d] for p in plan.phases) / passes
        for op, d in enumerate(plan.placement.device)
    ]
    assert sum(busy_s) == pytest.approx(plan.evaluation.load_s.sum())
    prompt = [(p.prompt, p.alone_s) for p in found.phases if p.prompt]
    assert found.first_token_s == pytest.approx(sum(n * s for n, s in prompt))
    assert found.tokens_per_s_one == pytest.approx(10 / sum((p.prompt + p.output) * p.alone_s for p in found.phases))
    all_s = 2 * sum((p.prompt + p.output) * p.period_s for p in found.phases)
    assert found.tokens_per_s == pytest.approx(4 * 10 / all_s)
    assert found.range_per_s[0] < found.tokens_per_s < found.range_per_s[1]


def test_caches_count_for_each_group_where_they_are() -> None:
    plan = usual()
    weights, cache = held_bytes(plan)
    # a layer: keys and values, 2 heads of 8 numbers in float32, for two rows in each of two groups
    assert cache.sum() == 2 * (2 * 2 * CONTEXT * 8 * 4) * 2 * 2
    assert (weights + cache).sum() == plan.table.op_bytes.sum()
    decode_bytes = max(each.table.working_bytes for each in plan.phases if each.phase.tokens == 1)
    assert plan.table.working_bytes > decode_bytes  # a pass of 8 tokens needs more


def test_where_one_device_is_best_the_plan_says_so() -> None:
    plan = planned(paper(bytes_per_s=1e5, latency_s=1.0))
    assert [plan.table.devices[number] for number in plan.placement.used] == ["fast"]


def test_a_plan_comes_back_from_its_file() -> None:
    plan = usual()
    document = plan_to_dict(plan)
    again = plan_from_dict(document)
    assert plan_to_dict(again) == document
    assert generation_of(again) == generation_of(plan)
    with pytest.raises(InputError, match=r"^the plan is for generation and has 0 phases; plan again$"):
        plan_from_dict(document | {"phases": []})


def test_rows_are_all_sequences_or_a_part_for_each_device() -> None:
    assert possible_rows(4, 2) == (4, 2)
    assert possible_rows(1, 2) == (1,)
    assert possible_rows(5, 3) == (5, 2)
    assert possible_rows(2, 8) == (2, 1)


def test_rows_without_a_sequence_bring_no_tokens() -> None:
    assert [replace(WORK, sequences=3).generating(rows).free for rows in (1, 2, 3, 8)] == [0, 1, 0, 5]
    full, part = usual(), planned(paper(), replace(WORK, sequences=3, rows=2))
    assert (part.workload.in_flight, part.workload.sequences) == (2, 3)
    assert generation_of(part).all_s == generation_of(full).all_s  # a pass takes as long
    assert generation_of(part).tokens_per_s == pytest.approx(generation_of(full).tokens_per_s * 3 / 4)
    assert plan_from_dict(plan_to_dict(part)).workload == part.workload


def test_one_group_on_its_way_is_planned_for_latency() -> None:
    plan = planned(paper(), Workload("generation", 2, 1, prompt=20, output=10, context=CONTEXT))
    assert (plan.goal, plan.minimised) == (Goal.GENERATION, Goal.LATENCY)
    assert plan.objective_s == pytest.approx(plan.latency_s)


@pytest.mark.parametrize(
    ("work", "text"),
    [
        (replace(WORK, context=20), r"^a prompt of 20 tokens and 10 after it do not fit into the context of 20; ask"),
        (replace(WORK, rows=3), r"^the workload has 3 as its batch, and the model was imported with rows=2; make both"),
        (replace(WORK, in_flight=2), r"^in-flight is not for generation, whose groups follow from sequences and rows"),
        (Workload(), r"^the goal 'generation' does not go with a workload for inference; make both 'generation'$"),
        (replace(WORK, context=64), r"^the workload has 64 as its context, and .* with context=48; make both alike$"),
    ],
)
def test_a_workload_that_does_not_fit_is_named(work: OpenWorkload | Workload, text: str) -> None:
    with pytest.raises(InputError, match=text):
        planned(paper(), work)


def test_what_is_no_language_model_is_named() -> None:
    from torch import nn

    for model, text in (
        (nn.Linear(2, 2), r"^'Linear' is no language model of transformers, so its cache is not known; give one with"),
        (imported("llama").decode, r"was imported without its cache, and generation needs it; give the module or its"),
        (
            "net.onnx",
            r"^'net.onnx' has passes of one size, and generation needs some over a prompt and one for each token",
        ),
    ):
        with pytest.raises(InputError, match=text):
            planner.plan(model, cluster=paper(), goal="generation", workload=WORK)
    with pytest.raises(InputError, match=r"^prompt is for generation and the goal is latency; leave it out$"):
        planner.plan(module("llama"), cluster=paper(), goal="latency", workload=WORK)
    with pytest.raises(InputError, match=r"^a problem for generation is one for throughput or latency of passes"):
        Problem(usual().table, Goal.GENERATION)
    with pytest.raises(InputError, match=r"^the rewrite 'copies' is not for generation, whose caches live once"):
        planned(paper(), rewrites="copies")


def test_what_tunes_or_compares_one_pass_refuses_generation() -> None:
    from planner.planning.question import PlanQuestion

    question = PlanQuestion(imported("llama"), paper(), goal=Goal.GENERATION)
    with pytest.raises(InputError, match=r"^the goal generation is for planner.plan alone; take throughput or latency"):
        question.workload_on(2)


def test_one_group_is_split_so_that_each_weight_is_read_once() -> None:
    plan, model = split_plan("gemma2"), imported("gemma2")
    split = plan.rewrites[0]
    assert isinstance(split, Split)
    homes = [{plan.placement.device[number] for number in group} for group in users(plan.graph)]
    assert homes == [{0}, {1}] * len(model.decode.graph.caches)  # half of each cache and all that use it
    assert held_bytes(plan)[1].tolist() == [lasting_bytes(model.decode.graph).sum() / 2] * 2
    whole = planner.plan(
        model,
        cluster=plan.cluster,
        goal="generation",
        workload=OpenWorkload(prompt=20, output=10, sequences=2, rows=2, context=CONTEXT),
        search=planner.Search(rewrites="none", time_limit_s=2.0),
    )
    assert generation_of(plan).tokens_per_s > 1.1 * generation_of(whole).tokens_per_s
    document = plan_to_dict(plan)
    assert plan_to_dict(plan_from_dict(document)) == document


def test_several_groups_keep_operators_whole() -> None:
    cluster = split_plan("gemma2").cluster
    two = Workload("generation", 2, 2, prompt=20, output=10, context=CONTEXT)
    assert not any(isinstance(each, Split) for each in planned(cluster, two, rewrites="split").rewrites)


def test_each_phase_has_a_pace_of_its_own() -> None:
    """Prompts are products of many rows, which compute; single tokens read the same weights, which takes memory."""
    usual_pace = {"computing": 1.0, "memory": 1.0}
    plan, slow = replace(usual(), pace={"cpu": usual_pace}), [{"computing": 2.0, "memory": 1.0}] * 4
    found = generation_of(plan)
    for number, (before, after) in enumerate(zip(found.phases, paced(found, plan, slow).phases, strict=True)):
        change = pace_change(phase_plan(plan, number), slow)
        assert change is not None
        assert after.alone_s == before.alone_s * change.network > before.alone_s
        assert after.period_s == before.period_s * change.contended
    assert paced(found, plan, []) == found  # nobody has measured it


def test_what_is_written_over_a_cache_takes_no_memory_besides() -> None:
    plan = usual()
    written = {after for _, after in plan.graph.caches}
    held = [one for device in predict(plan).memory for one in device.held(device.peak_s)]
    assert held
    assert written.isdisjoint(one.name for one in held)
    assert all(plan.table.flow_bytes[n] == 0 for n, flow in enumerate(plan.table.flows) if flow.tensor in written)


def test_tokens_a_second_are_compared_and_predicted_under_changes() -> None:
    plan, slower = usual(), planned(paper(), constraints=(planner.pin("*", "slow"),))
    difference = planner.diff(plan, slower)
    assert difference.before.tokens_per_s == generation_of(plan).tokens_per_s
    assert difference.after.first_token_s == generation_of(slower).first_token_s
    after = planner.simulate(plan, what_if=planner.WhatIf(in_flight=4)).plans["after"]
    assert after.workload.sequences == 8


def test_more_groups_of_sequences_need_caches_of_their_own() -> None:
    plan = planned(paper(latency_s=1e-4))
    slow = ["layers.0" in op.module or "lm_head" in op.module for op in plan.graph.ops]
    plan = replace(plan, placement=Placement(tuple(1 - there for there in slow)))
    found = {each.change: each.remark for each in helps(plan, ())}["4 groups of sequences, not 2"]
    assert found.endswith(f"more on each device, and {format_bytes(held_bytes(plan)[1].sum())} of caches")
