"""The targets of plans for generating text, by name."""

from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

from graphs.common.errors import InputError, nearest
from planner.exports.generation.division import GenerationDivision, division_of
from planner.exports.generation.llama_cpp import NAME, llama_cpp
from planner.exports.generation.modules import ACCELERATE, KTRANSFORMERS, accelerate, ktransformers
from planner.exports.generation.servers import SGLANG, VLLM, sglang, vllm
from planner.generation.files import load_generation_plan
from planner.generation.plan import GenerationPlan, generation_document
from planner.plans.exported import Export

GENERATION_TARGETS: Mapping[str, Callable[[GenerationDivision], Export]] = {
    NAME: llama_cpp,
    VLLM: vllm,
    SGLANG: sglang,
    ACCELERATE: accelerate,
    KTRANSFORMERS: ktransformers,
}


def export_generation(plan: GenerationPlan | str | PathLike[str], to: str) -> Export:
    """Return a plan for generating text in the format of a tool that runs it.

    Args:
        plan: a plan, or the path of its file.
        to: the tool: a name from `GENERATION_TARGETS`.

    Raises:
        InputError: for an unknown tool, a plan without a division, or one that the tool cannot express: the error names
            the reason and the nearest that it can.
    """
    if to not in GENERATION_TARGETS:
        known = ", ".join(GENERATION_TARGETS)
        raise InputError(f"'{to}' runs no language models; known: {known}{nearest(to, GENERATION_TARGETS)}")
    document: Mapping[str, Any]
    if isinstance(plan, GenerationPlan):
        if plan.speeds is None:
            raise InputError(f"there is no division to export: {plan.advice}")
        document = generation_document(plan)
    else:
        document = load_generation_plan(plan)
    return GENERATION_TARGETS[to](division_of(document))
