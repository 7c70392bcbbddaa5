"""Check that a plan and a model belong together."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from graphs.common import checks
from graphs.common.errors import InputError
from graphs.ir import Graph
from graphs.phases import Phase
from graphs.program.arguments import arguments_of, by_name
from graphs.program.generation import GenerationProgram, unlike
from graphs.program.program import Program
from graphs.program.rewritten import rewritten_program
from graphs.rewrites.split import undivided
from graphs.weights import kind_of_weights
from planner.plans.given import ModelName, NamedModel, generation_for, given_model, runnable
from planner.plans.plan import Plan
from planner.problem.reporter import SILENT, Reporter


def check_runs(plan: Plan, program: Program) -> None:
    """Check that a plan can be run with a model.

    Raise InputError if it is for another model or for training, or the default dtype is another one now.
    """
    check_types(plan, program)
    if plan.workload.trains:
        raise InputError("the plan is for training; train with planner.train, or plan for throughput or latency")
    if program.training:
        raise InputError(f"'{program.graph.name}' was imported as it is trained; import it without training=True")
    check_same(plan.graph, program.graph)
    if program.default_dtype != torch.get_default_dtype():
        raise InputError(
            f"'{program.graph.name}' was imported with the default dtype {program.default_dtype}, now it is "
            f"{torch.get_default_dtype()}; call torch.set_default_dtype({program.default_dtype}), or import it again"
        )


def check_generates(plan: Plan, model: GenerationProgram) -> None:
    """Check that a plan for generation is for the rows, the context and the kind of weights of a language model.

    Raise InputError if it is for others.
    """
    work = plan.workload
    for name, planned, own in (("rows", work.batch, model.rows), ("context", work.context, model.context)):
        if work.generates and planned != own:
            raise InputError(
                f"the plan is for {name}={planned:,}, and the model was imported with {name}={own:,}; import it as "
                "planned, or plan again"
            )
    planned_weights, own_weights = kind_of_weights(plan.graph), kind_of_weights(model.decode.graph)
    if planned_weights != own_weights:
        raise InputError(
            f"the plan is for weights in {planned_weights}, and those of the model are in {own_weights}; give it with "
            f"--weights {planned_weights}, or plan again"
        )


def rewritten_for(plan: Plan, program: Program) -> Program:
    """Return the program after the rewrites of a plan, or as it is if it has had them.

    Raise InputError if a rewrite names operators that the program does not have.
    """
    check_types(plan, program)
    if plan.graph.fingerprint == program.graph.fingerprint:
        return program
    return rewritten_program(program, plan.rewrites)


def phases_for(plan: Plan, model: GenerationProgram) -> GenerationProgram:
    """Return a language model after the rewrites of a plan, or as it is if it has had them, its smallest phase first.

    Raise InputError if the plan is for another model, or its rewrites do not fit all phases alike.
    """
    checks.instance(plan, Plan, "the plan", "a Plan for the model's decode program")
    checks.instance(model, GenerationProgram, "the model", "what planner.generation_program returns")
    check_generates(plan, model)
    programs = dict(sorted(model.phases.items(), key=lambda each: each[0]))  # in all processes alike
    if plan.graph.fingerprint != model.decode.graph.fingerprint:
        programs = {phase: rewritten_program(program, plan.rewrites) for phase, program in programs.items()}
    check_runs(plan, programs[Phase(1, model.context)])
    for phase, program in programs.items():
        if (difference := unlike(program.graph, plan.graph)) is not None:
            raise InputError(
                f"the plan's rewrites change the network for {phase.tokens} tokens in another way than for 1: "
                f"{difference}; plan with search=Search(rewrites='none')"
            )
    growing = frozenset(name for name, _ in plan.graph.caches if undivided(name) in model.growing)
    return replace(model, phases=programs, growing=growing)


def check_types(plan: object, program: object) -> None:
    """Check the types of a plan and a program; raise InputError if one is wrong."""
    checks.instance(plan, Plan, "the plan", "a Plan, or its path to planner.start or planner.train")
    checks.instance(program, Program, "the model", "a Program, or the model to planner.start or planner.train")


def check_same(planned: Graph, given: Graph) -> None:
    """Check that a plan is for a model's graph; raise InputError that names the first difference if not."""
    if planned.fingerprint != given.fingerprint:
        raise InputError(
            f"the plan is for '{planned.name}' ({planned.fingerprint}), the model is '{given.name}' "
            f"({given.fingerprint}): {_first_difference(planned, given)}; plan for this model and batch"
        )


def _first_difference(planned: Graph, given: Graph) -> str:
    for a, b in zip(planned.tensors, given.tensors, strict=False):
        if a != b:
            ours, theirs = (f"'{t.name}' {list(t.shape)} {t.dtype}" for t in (a, b))
            return f"tensor {ours} of the plan meets {theirs}"
    for one, other in zip(planned.ops, given.ops, strict=False):
        if one != other:
            return f"operator '{one.name}' ({one.kind}) of the plan has another kind, input, attribute or module there"
    return f"the plan has {len(planned.ops)} operators, the model {len(given.ops)}, or their inputs or outputs differ"


def program_for(
    plan: Plan, model: nn.Module | Program | ModelName, example_inputs: Any = None, reporter: Reporter = SILENT
) -> Program:
    """Return the program of a plan's model; without example inputs a module is imported with zeros.

    A named model is imported for the plan's batch, unless it names another one; to be trained, a module too.

    Raise InputError if the model is none, or cannot be imported.
    """
    from graphs.importers.from_torch import imported  # late: ranks that read shards need no importer

    if plan.workload.generates:
        return generation_for(plan, model, reporter).decode
    given = given_model(model)
    if isinstance(given, NamedModel):
        return _named_program(plan, given, reporter)
    if isinstance(given, Graph):
        return runnable(given)
    if example_inputs is None and isinstance(given, nn.Module):
        tensors = [plan.graph.tensor[name] for name in plan.graph.inputs]
        zeros = [torch.zeros(tensor.shape, dtype=getattr(torch, tensor.dtype)) for tensor in tensors]
        example_inputs = by_name(given.forward, plan.graph.inputs, zeros)
    elif isinstance(given, nn.Module) and plan.workload.trains:  # whose micro-batches may be of another size
        inputs = arguments_of(example_inputs)
        if inputs.batch != plan.workload.batch and len(inputs.first_dimensions) == 1:
            example_inputs = inputs.resized(plan.workload.batch)
    return imported(given, example_inputs, name=plan.graph.name, training=plan.workload.trains)


def _named_program(plan: Plan, model: NamedModel, reporter: Reporter) -> Program:
    """Import a named model in the mode of a plan, and for its batch unless the model names one."""
    work = plan.workload
    program = replace(model, batch=model.batch or work.batch).load_program(work.trains, reporter, plan.graph)
    known = plan.network_fingerprint
    if model.batch is None and program.graph.fingerprint != known:
        own = model.load_program(work.trains, reporter, plan.graph)  # its first input may have no batch
        program = own if own.graph.fingerprint == known else program
    return program
