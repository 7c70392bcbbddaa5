"""Results that are known before a stage runs: what is computed once, and other views of planned memory.

PyTorch takes 4 to 12 µs for a view, of which a layer of a transformer has ten. A view of a result that always lies at
the same place is always the same tensor, so it is made once, and no kernel runs for it.
"""

from collections import ChainMap
from collections.abc import Mapping, Sequence

import torch
from torch._ops import OpOverload

from costmodels.host.kernel import Kernel, as_it_is, as_they_are
from graphs.program.program import Program


def fixed_results(
    program: Program,
    kernels: Sequence[Kernel],
    packed: Sequence[Mapping[str, torch.Tensor]],
    buffers: Mapping[str, torch.Tensor],
) -> dict[str, torch.Tensor]:
    """The results of kernels that run one behind the other that are the same tensors in every run, by name.

    Args:
        program: the network.
        kernels: what runs.
        packed: for each kernel its packed weights, by the name that the kernel knows them by.
        buffers: planned memory of results (see `costmodels.host.buffers`).
    """
    found: dict[str, torch.Tensor] = {}
    for kernel, own in zip(kernels, packed, strict=True):
        known = ChainMap(dict(own), found, dict(buffers))
        if _may_return_what_it_reads(kernel) and all(name in known for name in kernel.reads):
            results = _results(program, kernel, known)
            read = {known[name].untyped_storage().data_ptr() for name in kernel.reads}
            if all(result.untyped_storage().data_ptr() in read for result in results):
                found.update(zip(kernel.op.outputs, results, strict=True))
    return found


def _may_return_what_it_reads(kernel: Kernel) -> bool:
    target = kernel.target
    if target in (as_it_is, as_they_are):
        return True
    if not isinstance(target, OpOverload):
        return False
    return any(each.alias_info is not None for each in target._schema.returns) and not target._schema.is_mutable


def _results(program: Program, kernel: Kernel, known: Mapping[str, torch.Tensor]) -> Sequence[torch.Tensor]:
    args, kwargs = kernel.bound(program, known.__getitem__)
    with torch.no_grad():
        result = kernel.target(*args, **kwargs)
    return result if kernel.unpacks(program) else (result,)
