"""fit: whether a language model fits on devices, how it is divided, and how fast it is; nothing is loaded or run."""

from collections.abc import Mapping
from typing import Any

from costmodels.cluster.cluster import Cluster
from costmodels.generation.work import heads_divided
from costmodels.language_model.model import ModelDescription
from costmodels.language_model.read import read_language_model
from graphs.common import checks
from planner.generation.advice import changes_that_fit, short_bytes
from planner.generation.plan import Alternative, GenerationPlan, Holding, PlanStage
from planner.generation.question import GenerationQuestion, generation_question
from planner.generation.speeds import Speeds, speeds_of
from planner.generation.split import divide_model
from planner.generation.split_problem import (
    Division,
    DivisionPart,
    SplitProblem,
    host_bytes,
    reused_bytes,
    split_problem,
)
from planner.plans.given import Named, given_cluster
from planner.problem.result import Status


def fit(
    model: ModelDescription | Named | Mapping[str, Any],
    *,
    cluster: Cluster | Named,
    advise: bool = True,
    **asked: Any,
) -> GenerationPlan:
    """Divide a language model among devices, from its headers alone.

    Args:
        model: the path of a config.json, of a .gguf, of a .safetensors or its index, or a model that was read.
        cluster: the devices, or the path of a cluster.toml.
        advise: whether to look for changes that make the model fit, if it does not.
        asked: ``context`` (tokens that every sequence has room for), ``sequences`` (at once), ``weights`` and ``cache``
            (formats), ``prompt`` and ``output`` (tokens of a request) and ``engine``; what is left out is as usual.

    Returns:
        The division that takes the least time for a request, with a bound, or what is missing.

    Raises:
        InputError: for a model that cannot be read, an unknown format or engine, or a context that is too short.
    """
    checks.instance(advise, bool, "advise", "True or False")
    read = model if isinstance(model, ModelDescription) else read_language_model(model)
    question = generation_question(read, given_cluster(cluster), **asked)
    plan = plan_of(question)
    if plan.speeds is not None or not advise:
        return plan
    return GenerationPlan(**{**vars(plan), "changes": changes_that_fit(question, plan_of)})


def plan_of(question: GenerationQuestion) -> GenerationPlan:
    """Return the best division of a question, without advice."""
    problem = split_problem(question)
    divided = divide_model(problem)
    best = divided.best
    speeds = None if best is None else speeds_of(problem, best)
    status = Status.INFEASIBLE if best is None else Status.OPTIMAL if divided.gap == 0 else Status.FEASIBLE
    return GenerationPlan(
        question,
        status,
        () if best is None or speeds is None else _stages(problem, best, speeds),
        () if best is None else _holdings(problem, best),
        speeds,
        0.0 if best is None else best.cost_s,
        divided.bound_s,
        _other(problem, divided.next_best),
        _other(problem, divided.alone),
        short_bytes(problem) if best is None else 0.0,
        (),
    )


def _other(problem: SplitProblem, division: Division | None) -> Alternative | None:
    if division is None:
        return None
    speeds = speeds_of(problem, division)
    stages = _stages(problem, division, speeds)
    names = tuple(name for stage in stages for name in stage.devices)
    hosts = tuple(dict.fromkeys(stage.host for stage in stages if stage.host))
    return Alternative(names, hosts, speeds.token_s, speeds.first_token_s)


def _devices(problem: SplitProblem, division: Division) -> list[tuple[str, ...]]:
    """Return the names of the devices of each part; of equal ones the first that are free."""
    taken: dict[int, int] = {}
    found = []
    for part in division.parts:
        unit = problem.units[part.unit]
        start = taken.get(unit.device_class, 0)
        numbers = problem.classes[unit.device_class].devices[start : start + unit.size]
        taken[unit.device_class] = start + unit.size
        found.append(tuple(problem.question.cluster.devices[number].name for number in numbers))
    return found


def _stages(problem: SplitProblem, division: Division, speeds: Speeds) -> tuple[PlanStage, ...]:
    stages = []
    for part, names, speed in zip(division.parts, _devices(problem, division), speeds.stages, strict=True):
        host = problem.units[part.unit].host if part.away else None
        name = "" if host is None else problem.question.cluster.devices[problem.classes[host].devices[0]].name
        stages.append(
            PlanStage(names, part.start, part.stop, part.away, name, speed.token_s, speed.prompt_s, speed.hop_s)
        )
    return tuple(stages)


def _holdings(problem: SplitProblem, division: Division) -> tuple[Holding, ...]:
    cluster = problem.question.cluster
    own: dict[str, Holding] = {}
    for part, names in zip(division.parts, _devices(problem, division), strict=True):
        for name in names:
            own[name] = _holding(problem, part, name)
    for host, n_bytes in host_bytes(problem, division).items():
        name = cluster.devices[problem.classes[host].devices[0]].name
        before = own.get(name) or _idle(problem, name)
        own[name] = Holding(**{**vars(before), "experts": n_bytes})
    return tuple(own.get(device.name) or _idle(problem, device.name) for device in cluster.devices)


def _idle(problem: SplitProblem, name: str) -> Holding:
    cluster = problem.question.cluster
    device = cluster.devices[cluster.index[name]]
    return Holding(name, (0, 0), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, device.usable_bytes, device.memory_bytes)


def _holding(problem: SplitProblem, part: DivisionPart, name: str) -> Holding:
    question, unit = problem.question, problem.units[part.unit]
    device = question.cluster.devices[question.cluster.index[name]]
    weights = cache = 0.0
    for layer in range(part.start, part.stop):
        work = question.works[layer]
        price = unit.prices[id(work)]
        weights += price.weights - (price.expert_bytes if layer in part.away else 0.0)
        cache += question.sequences * sum(
            mixer.cache_bytes(question.context, question.value_bytes) / heads_divided(mixer, unit.size)
            for mixer in work.layer.mixers
        )
    weights += float(reused_bytes(problem, unit, part.start, part.stop))
    first, last = part.start == 0, part.stop == problem.n_layers
    embedding = unit.embedding_bytes if first else 0.0
    head = unit.head.bytes if last and not (first and question.model.tied) else 0.0
    return Holding(
        name,
        (part.start, part.stop),
        weights,
        0.0,
        embedding,
        head,
        cache,
        unit.buffer_bytes,
        device.usable_bytes,
        device.memory_bytes,
    )
