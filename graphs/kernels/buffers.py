"""Memory of results that is planned in advance: one block, in which results reuse the place of those no longer needed.

A result in fresh memory is written to memory that no core has in its cache, and evicts other results from the cache.
Planned memory also spares each kernel the allocation. It holds results of kernels that write to a given tensor, as long
as no operator that may keep or return them reads them.

PyTorch takes 4 to 12 µs for a view, of which a layer of a transformer has ten. A view of a result that always lies at
the same place is always the same tensor, so it is made once, and no kernel runs for it.
"""

from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from math import ceil, prod
from typing import NamedTuple

import numpy as np
import torch
from torch._ops import OpOverload

from graphs.kernels.kernel import Kernel, Strided, as_it_is, as_they_are
from graphs.program.program import Program
from graphs.program.traced_strides import shares_memory

LINE = 16  # float32 numbers in a line of the cache, at which PyTorch's memory begins


class PlannedMemory(NamedTuple):
    """Memory for the results of kernels that run one after another, by name."""

    buffers: Mapping[str, torch.Tensor]  # memory to write results to
    fixed: Mapping[str, torch.Tensor]  # results that are the same tensors in every run, such as views of buffers


def planned_memory(
    program: Program, kernels: Sequence[Kernel], packed: Sequence[Mapping[str, torch.Tensor]], kept: Collection[str]
) -> PlannedMemory:
    """The memory of kernels whose packed weights are given by the names that the kernels know them by.

    ``kept`` are names of the tensors that are read after the kernels.
    """
    buffers, fixed = buffers_of(program, kernels, kept), dict[str, torch.Tensor]()
    for kernel, own in zip(kernels, packed, strict=True):
        known = ChainMap(dict(own), fixed, buffers)
        writes = isinstance(kernel.target, OpOverload) and kernel.target._schema.is_mutable
        if not writes and aliases_input(program, kernel) and all(name in known for name in kernel.reads):
            args, kwargs = kernel.bound(program, known.__getitem__)
            with torch.no_grad():
                result = kernel.target(*args, **kwargs)
            results = result if kernel.unpacks(program) else (result,)
            read = {known[name].untyped_storage().data_ptr() for name in kernel.reads}
            if all(result.untyped_storage().data_ptr() in read for result in results):
                fixed.update(zip(kernel.op.outputs, results, strict=True))
    return PlannedMemory(buffers, fixed)


def buffers_of(program: Program, kernels: Sequence[Kernel], kept: Collection[str]) -> dict[str, torch.Tensor]:
    """Return planned memory for results of kernels that run one after another, by name, as in `planned_memory`.

    The largest results are placed first, each at the lowest offset where no other one lies as long as it is needed
    ("greedy by size for offset calculation", Pisarchyk and Lee 2020, https://arxiv.org/abs/2001.03288).
    There is none on a device of several cores: PyTorch computes its products, and chooses where to write them.
    """
    lifetimes = _lifetimes(program, kernels, kept) if torch.get_num_threads() == 1 else {}
    layouts = {kernel.op.outputs[0]: kernel.result for kernel in kernels if kernel.result}
    names = sorted(lifetimes, key=lambda name: -_room(layouts[name]))
    first, last = np.array([lifetimes[name] for name in names], int).reshape(-1, 2).T
    size = np.array([_room(layouts[name]) for name in names], int)
    start = np.zeros(len(names), int)
    for i in range(len(names)):
        beside = np.flatnonzero((first[:i] <= last[i]) & (first[i] <= last[:i]))
        beside = beside[np.argsort(start[beside], kind="stable")]
        ends = np.maximum.accumulate([0, *(start + size)[beside]])  # of what lies before each of them
        gaps = np.append(start[beside], ends[-1] + size[i]) - ends
        start[i] = ends[np.argmax(gaps >= size[i])]
    block = torch.zeros(int((start + size).max(initial=0)))
    return {
        name: block.as_strided(layouts[name].shape, layouts[name].strides, begin)
        for name, begin in zip(names, start.tolist(), strict=True)
    }


def _room(layout: Strided) -> int:
    """Elements of a dense tensor, in whole lines of the cache."""
    return ceil(prod(layout.shape) / LINE) * LINE


def _lifetimes(program: Program, kernels: Sequence[Kernel], kept: Collection[str]) -> Mapping[str, tuple[int, int]]:
    """The first and last kernel that needs each result that can have planned memory, by name."""
    found: dict[str, tuple[int, int]] = {}
    seen: dict[str, set[str]] = {}  # by tensor, the results that it may share memory with
    for number, kernel in enumerate(kernels):
        read = set[str]().union(*(seen.get(name, ()) for name in kernel.reads))
        own = aliases_input(program, kernel)
        for name in read & found.keys():
            found[name] = found[name][0], number
            if own is None:
                del found[name]
        for name in kernel.op.outputs:
            seen[name] = read if own else set()
        if kernel.result:
            seen[kernel.op.outputs[0]] = {kernel.op.outputs[0]}
            found[kernel.op.outputs[0]] = number, number
    for name in kept:
        for each in seen.get(name, ()):
            found.pop(each, None)
    return {name: (first, last) for name, (first, last) in found.items() if first < last}


def aliases_input(program: Program, kernel: Kernel) -> bool | None:
    """Whether results of a kernel share memory with what it reads; None if that is not known."""
    target = kernel.target
    if target in (as_it_is, as_they_are):
        return True
    if isinstance(target, OpOverload):
        return shares_memory(target)
    replaced = kernel.arguments is not None or program.calls[kernel.op.name].node.target is not target
    return False if replaced else None  # a kernel of this package, or a function that is no operator
