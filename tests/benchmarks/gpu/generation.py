"""The check of generation: tokens, memory and times of a language model on the GPU alone and on both devices."""

import torch

import planner
from graphs.program.generation import GenerationProgram
from planner.plans.generation import generation_of
from planner.plans.plan import Plan
from planner.problem.constraints import Constraint
from planner.runtime.benchmark.generation import compare_tokens, measure_generation, random_prompts
from planner.runtime.benchmark.load import Load
from tests.benchmarks.gpu.check import Bars, check, near, said
from tests.benchmarks.gpu.networks import CPU, GPU, Size, this_host

PROMPT, MORE, ROWS = 32, 16, 2  # tokens of a prompt and after it, and sequences that a pass advances


@check("generation", 75)
def generation(size: Size) -> Bars:
    """Generate on the GPU alone and on both devices; compare tokens, memory and times with what was expected."""
    torch.manual_seed(0)
    module, _ = size.networks["llama"]()
    model = planner.generation_program(module, rows=ROWS, context=PROMPT + MORE, chunks=(16,))
    cluster = this_host(model)
    work = planner.OpenWorkload(prompt=PROMPT, output=MORE, sequences=2 * ROWS, rows=ROWS)
    for name, pins in (("on the GPU", [planner.pin("*", GPU)]), ("on both", _first_on_cpu(model))):
        plan = planner.plan(
            model,
            cluster=cluster,
            goal="generation",
            workload=work,
            constraints=pins,
            search=planner.Search(time_limit_s=3, rewrites="none"),
        )
        yield from _generated(f"generation {name}", plan, model, size)


def _first_on_cpu(model: GenerationProgram) -> list[Constraint]:
    """Pin the words' embedding and the first layer to the CPU, and every other operator to the GPU."""
    before = [op.name for op in model.decode.graph.ops if ".layers.0" in op.module or "embed_tokens" in op.module]
    return [planner.pin(op.name, CPU if op.name in before else GPU) for op in model.decode.graph.ops]


def _generated(name: str, plan: Plan, model: GenerationProgram, size: Size) -> Bars:
    """Generate by a plan, and judge what was seen."""
    torch.cuda.reset_peak_memory_stats(0)
    held = torch.cuda.memory_allocated(0)
    prompts, load = random_prompts(plan, model), Load((), plan)
    with planner.GenerationRunner(plan, model) as runner:
        seen = measure_generation(runner, prompts, MORE, size.rounds, load, lambda *_: None)
        most = torch.cuda.max_memory_allocated(0) - held
    different = [each for each in compare_tokens(model, prompts, seen.tokens) if not each.within_rounding]
    yield said(f"{name}: tokens{''.join(f' ({each})' for each in different[:1])}", not different)
    predicted = generation_of(plan)
    yield near(f"{name}: bytes on the GPU", float(plan.evaluation.memory_bytes[plan.cluster.index[GPU]]), most)
    yield near(f"{name}: seconds to the first token", predicted.first_token_s, seen.first_token_s)
    assert seen.token_s is not None, "it is several tokens"
    yield near(f"{name}: seconds of a token", predicted.token_s, seen.token_s)
