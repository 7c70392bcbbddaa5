"""What the options of ``planner choose`` ask of a configuration."""

import argparse

from planner.problem.hybrid_training.config import Demands


def demands_of(options: argparse.Namespace) -> Demands:
    """The demands; what an option leaves out stays open."""
    return Demands(
        devices=options.devices,
        tensor=options.tensor,
        pipeline=options.pipeline,
        data=options.data,
        samples=options.micro_batch,
        zero=options.zero,
        schedule=options.schedule,
        recompute=options.recompute,
        precision=options.precision,
        gradients=options.gradients,
    )
