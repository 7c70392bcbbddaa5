"""Language models with experts apart generate the tokens of transformers' generate."""

from functools import cache

import pytest
import torch

import planner
from costmodels.workload import Workload
from graphs.program.generation import GenerationProgram
from graphs.rewrites.experts_apart import experts_apart
from graphs.rewrites.split import Split
from planner.planning.generation import GenerationCosts
from planner.planning.splitting import side_by_side
from planner.planning.team import Team
from planner.plans.generation import generation_of
from planner.plans.plan import Plan
from planner.problem.result import Status
from simulator.placement import Placement
from tests.graphs.rewrites.mixtures import mixture
from tests.planner.planning.test_apart import unequal, weights_by_device
from tests.planner.runtime.generation.test_in_processes import generating
from tests.planner.runtime.generation.tiny import CONTEXT, MORE, PROMPTS
from tests.planner.runtime.small import desk

WORK = Workload("generation", 2, 1, prompt=20, output=MORE, context=CONTEXT)


@cache
def imported(family: str, **sizes: int) -> GenerationProgram:
    return planner.generation_program(mixture(family, torch.float32, **sizes), rows=2, context=CONTEXT, chunks=(8,))


@cache
def expected(family: str, **sizes: int) -> list[list[int]]:
    options = {"max_new_tokens": MORE, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    model = mixture(family, torch.float32, **sizes)
    return [model.generate(torch.tensor([p]), **options)[0, len(p) :].tolist() for p in PROMPTS]


def side_by_side_plan(model: GenerationProgram, n_devices: int) -> Plan:
    """A plan with a part of each layer's experts on each device."""
    cluster = desk(n_devices)
    costs, team = GenerationCosts(model, cluster, WORK, (), "split"), Team.of(cluster)
    split = experts_apart(costs.decode, n_devices, costs.shardings)
    assert split is not None
    assert team is not None
    assert costs.alike(split)
    task = costs.divided(split, costs.task())
    return task.plan(Placement(side_by_side(task.graph, team)), Status.FEASIBLE, "by hand", 0.0)


@pytest.mark.parametrize("n_devices", [2, 3])
@pytest.mark.parametrize("family", ["mixtral", "gpt_oss", "deepseek_v3"])
def test_experts_on_several_devices_generate_the_same_tokens(family: str, n_devices: int) -> None:
    model = imported(family)
    assert model.sizes == ((1,) if family == "deepseek_v3" else (8, 1))  # whose tensors lie otherwise for one token
    plan = side_by_side_plan(model, n_devices)
    assert len(plan.placement.used) == n_devices
    with planner.GenerationRunner(plan, model) as runner:
        assert runner.generate(PROMPTS, MORE, stops=()) == expected(family)
    if n_devices == 2:
        with generating(plan, model, beside=True) as (runner, _):
            assert runner.generate(PROMPTS, MORE, stops=()) == expected(family)


def test_a_layer_that_fits_no_device_is_planned_for_with_its_experts_apart() -> None:
    """1.6 MB of weights in operators of 0.52 and 0.26 MB, of which neither device holds an equal share as they are."""
    sizes = {"intermediate_size": 64, "num_local_experts": 32}
    model, cluster = imported("mixtral", **sizes), unequal(1.05e6, 0.78e6)
    work = planner.OpenWorkload(prompt=20, output=MORE, sequences=2, rows=2, context=CONTEXT)
    with pytest.raises(planner.NoPlanError):
        planner.plan(
            model,
            cluster=cluster,
            goal="generation",
            workload=work,
            search=planner.Search(rewrites="none", time_limit_s=2.0),
        )
    plan = planner.plan(
        model, cluster=cluster, goal="generation", workload=work, search=planner.Search(time_limit_s=3.0)
    )
    assert any(isinstance(rewrite, Split) for rewrite in plan.rewrites)
    assert all(weights_by_device(plan))
    assert generation_of(plan).tokens_per_s > 0
    with planner.GenerationRunner(plan, model) as runner:
        assert runner.generate(PROMPTS, MORE, stops=()) == expected("mixtral", **sizes)
