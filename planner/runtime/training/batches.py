"""Divide a batch into micro-batches: the model's arguments and the target are cut along their first dimension."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from graphs import checks
from graphs.errors import InputError
from graphs.program.arguments import arguments_of
from graphs.program.program import Leaf, Program
from planner.runtime.training.step import MicroBatch


def divide(program: Program, batch: int, count: int, arguments: Any, target: Any) -> list[MicroBatch]:
    """Divide a batch into micro-batches; raise InputError if that is impossible, or arguments are not the model's.

    Inputs that the model was imported with as many samples as a micro-batch has are cut; others, such as a mask with
    another first dimension, go whole to every micro-batch. Each tensor of the target is cut in equal parts.

    Args:
        program: the network, which takes the arguments of one micro-batch.
        batch: samples in one micro-batch.
        count: micro-batches.
        arguments: in any form that `planner.plan` takes example inputs in.
        target: anything with tensors in it, or none.
    """
    leaves = program.leaves_of(*arguments_of(arguments, "the inputs of a step"))
    is_cut = [isinstance(name, str) and program.graph.tensor[name].shape[:1] == (batch,) for name in program.in_leaves]
    if count > 1 and not any(is_cut):
        raise InputError(
            f"no input of '{program.graph.name}' has the plan's batch {batch} as its first dimension, so nothing can "
            f"be divided into {count} micro-batches; plan with the batch that the inputs have"
        )
    for name, leaf, cut in zip(program.in_leaves, leaves, is_cut, strict=True):
        if cut:
            checks.instance(leaf, torch.Tensor, f"input '{name}'", "a tensor")
            _check_samples(name, leaf, batch, count)
    _check_target(target, count)

    def part(i: int) -> MicroBatch:
        own = [leaf[i * batch : (i + 1) * batch] if cut else leaf for leaf, cut in zip(leaves, is_cut, strict=True)]
        inputs = program.flatten(*pytree.tree_unflatten(own, program.in_spec))
        own_target = pytree.tree_map_only(
            torch.Tensor, lambda tensor: tensor.tensor_split(count)[i] if tensor.ndim else tensor, target
        )
        return MicroBatch(program.inputs(inputs), own_target)

    return [part(i) for i in range(count)]


def check_batches(batches: Any, count: int) -> None:
    """Raise InputError if a divided batch has another number of micro-batches, or is something else."""
    checks.instance(batches, Sequence, "the divided batch", f"a list of {count} MicroBatch")
    for batch in batches:
        checks.instance(batch, MicroBatch, "a micro-batch", "a MicroBatch")
    if len(batches) != count:
        raise InputError(f"the divided batch has {len(batches)} micro-batches; a step of this plan takes {count}")


def _check_samples(name: Leaf, leaf: torch.Tensor, batch: int, count: int) -> None:
    if leaf.shape[:1] != (batch * count,):
        raise InputError(
            f"input '{name}' is {list(leaf.shape)}; a step of this plan takes {count} micro-batches of {batch}, so "
            f"{batch * count} samples in the first dimension: pass as many, or plan for another batch"
        )


def _check_target(target: Any, count: int) -> None:
    for tensor in pytree.tree_leaves(target):
        if isinstance(tensor, torch.Tensor) and tensor.ndim and tensor.shape[0] % count:
            raise InputError(
                f"a target is {list(tensor.shape)}; its first dimension does not go into {count} micro-batches"
            )
