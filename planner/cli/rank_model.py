"""The model of a rank: its shard, or the whole."""

import argparse
from pathlib import Path

import torch

from graphs.program.program import Program
from planner.plans.plan import Plan
from planner.runtime.checkpoint.shards import is_shards, read_shard


def import_part(plan: Plan, options: argparse.Namespace, device: str) -> Program:
    """Return the shard of a device where MODEL is a folder of shards, else the whole model."""
    folder = Path(options.model)
    if not is_shards(folder):
        from planner.cli.models import import_for  # late: a rank that reads a shard needs no importer

        return import_for(plan, options)
    program = read_shard(folder, device)[1]
    torch.set_default_dtype(program.default_dtype)  # the process is ours
    return program
