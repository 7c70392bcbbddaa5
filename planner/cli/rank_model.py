"""The model of a rank: its shard, or the whole."""

import argparse
from pathlib import Path

import torch

from graphs.program.generation import GenerationProgram
from graphs.program.program import Program
from planner.plans.given import generation_for
from planner.plans.plan import Plan
from planner.runtime.checkpoint.shards import is_shards, read_model_shard


def import_part(plan: Plan, options: argparse.Namespace, device: str) -> Program | GenerationProgram:
    """Return the shard of a device where MODEL is a folder of shards, else the whole model.

    Raise InputError for shards of a language model without its phases.
    """
    folder = Path(options.model)
    if not is_shards(folder):
        from planner.cli.models import import_for, model_of  # late: a rank that reads a shard needs no importer

        return generation_for(plan, model_of(options)) if plan.workload.generates else import_for(plan, options)
    program = read_model_shard(folder, device)[1]
    decode = program.decode if isinstance(program, GenerationProgram) else program
    torch.set_default_dtype(decode.default_dtype)  # the process is ours
    return program
