"""Generation with a GPU among the devices: the tokens of transformers' generate, and caches on the GPU."""

from dataclasses import replace

import pytest

import planner
from planner.plans.plan import Plan
from tests.planner.runtime.generation.tiny import MORE, PROMPTS, cut, expected, imported, sources, split_plan
from tests.planner.runtime.small import cpu, with_device

pytestmark = pytest.mark.usefixtures("gpu")


def on_gpu(plan: Plan, device: int) -> Plan:
    """The plan with a GPU in the place of one of its devices."""
    return with_device(plan, device, replace(cpu(plan.cluster.devices[device].name, cores=()), cuda=0))


@pytest.mark.parametrize(
    ("family", "n_devices"), [("llama", 1), ("gemma2", 2), ("mamba", 2), ("mixtral", 2), ("whisper", 2)]
)
def test_sequences_continue_on_a_gpu_as_by_generate(family: str, n_devices: int) -> None:
    model = imported(family)
    plan = on_gpu(cut(model, n_devices), n_devices - 1)
    with planner.GenerationRunner(plan, model) as runner:
        assert runner.generate(sources(family), MORE, stops=()) == expected(family)
        held = [cache for group in runner.caches(f"cpu{n_devices - 1}") for cache in group.values()]
        assert held
        assert all(cache.is_cuda for cache in held)


def test_an_operator_is_split_between_a_cpu_and_a_gpu() -> None:
    with planner.GenerationRunner(on_gpu(split_plan("llama"), 1), imported("llama")) as runner:
        assert runner.generate(PROMPTS, MORE, stops=()) == expected("llama")
        kinds = [
            {cache.is_cuda for group in runner.caches(name) for cache in group.values()} for name in ("cpu0", "cpu1")
        ]
        assert kinds == [{False}, {True}]  # each has heads of its own
