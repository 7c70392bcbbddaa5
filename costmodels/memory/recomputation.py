"""Which operators selective recomputation runs again, and what it keeps instead of what autograd would save.

::

    x ──► norm ──► linear ──► scores ──► softmax ──► values ──► linear ──► gelu ──► linear ──►
          again    once       again      again       again      once       again    once

    kept from the forward to the backward pass: what enters the stage, and the results of what runs once

Products with weights run once, and so does what has as many FLOP for each byte of its results as these in the mean,
such as fused attention over many tokens. All else is large and computed quickly: norms, activations, dropout, scores.
Source: Korthikanti et al., arXiv 2205.05198, section 5, of a transformer's scores, softmax, dropout and values.
"""

import numpy as np
from numpy.typing import NDArray

from costmodels.memory.footprints import Footprints
from costmodels.operators.flops import work_of
from graphs.common.arrays import Floats
from graphs.ir import Graph, Role

WEIGHT_AXES = 2  # of a product's weight, at least; scales of norms and biases have one


def runs_once(graph: Graph) -> NDArray[np.bool_]:
    """[n_ops], whether selective recomputation keeps the results of an operator, which so does not run again."""
    flop = work_of(graph).flop
    n_bytes = np.array([sum(graph.tensor[name].n_bytes for name in op.outputs) for op in graph.ops], dtype=float)
    weighs = [
        any(tensor.role is Role.PARAMETER and len(tensor.shape) >= WEIGHT_AXES for tensor in graph.state(op))
        for op in graph.ops
    ]
    product = np.array(weighs, dtype=bool) & (flop > 0)
    like_them = flop * n_bytes[product].sum() >= n_bytes * flop[product].sum()
    return np.asarray(product | like_them & (flop > 0) & product.any())


def once_bytes(graph: Graph) -> Floats:
    """[n_ops], bytes of an operator's results with storages of their own, but for the network's, and of masks."""
    footprints = Footprints(graph)
    return np.array(
        [
            sum(
                storage
                for name, storage in zip(op.outputs, footprints.run(op, training=True).writes, strict=True)
                if isinstance(storage, int) and name not in graph.outputs
            )
            + footprints.backward(op).saved_bytes
            for op in graph.ops
        ],
        dtype=float,
    )


def once_saved_bytes(graph: Graph) -> Floats:
    """[n_ops], what of the bytes that operators save for autograd selective recomputation keeps anyway.

    A storage counts at the first operator that saves it, as in `costmodels.memory.device.saved_bytes`.
    """
    footprints, found = Footprints(graph), np.zeros(len(graph.ops))
    owner: dict[str, str] = {}
    kept: dict[str, int] = {}
    for number, (op, once) in enumerate(zip(graph.ops, runs_once(graph).tolist(), strict=True)):
        for name, storage in zip(op.outputs, footprints.run(op, training=True).writes, strict=True):
            owner[name] = name if isinstance(storage, int) else owner.get(storage, storage)
            if once and isinstance(storage, int) and name not in graph.outputs:
                kept[name] = storage
        saved = footprints.backward(op)
        found[number] = sum(kept.pop(owner.get(name, name), 0) for name in saved.saved)
        found[number] += saved.saved_bytes if once else 0
    return found
