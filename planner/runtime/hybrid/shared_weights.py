"""SharedWeights: weights that several stages of a pipeline read, such as an embedding that is the head, too.

Each stage has a copy, and the gradients of all copies are added up before the optimizers' step, so that the copies stay
equal.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from graphs.ir import Graph, Role
from planner.runtime.hybrid.division import local
from planner.runtime.hybrid.mesh import PIPELINE


class SharedWeights:
    """The weights with copies in several stages, and the ranks that have them."""

    def __init__(self, mesh: DeviceMesh, graph: Graph, cut: Sequence[Sequence[Sequence[int]]], n_rows: int) -> None:
        """Find them, and make a group for the ranks of each; all ranks do so together."""
        rows: dict[str, set[int]] = {}
        self._stages: dict[str, list[int]] = {}
        for number, blocks in enumerate(cut):
            read = {name for ops in blocks for op in ops for name in graph.ops[op].inputs}
            for name in sorted(name for name in read if graph.tensor[name].role is Role.PARAMETER):
                rows.setdefault(name, set()).add(number % n_rows)
                self._stages.setdefault(name, []).append(number)
        self.names = [name for name, numbers in self._stages.items() if len(numbers) > 1]
        if not self.names:
            return
        assert mesh.mesh_dim_names is not None
        columns = mesh.mesh.movedim(mesh.mesh_dim_names.index(PIPELINE), 0).reshape(n_rows, -1)
        self._groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        for key in sorted({tuple(sorted(rows[name])) for name in self.names}):
            self._groups[key] = None
            for column in columns.T.tolist():
                ranks = [column[row] for row in key]
                group = dist.new_group(ranks)
                if dist.get_rank() in ranks:
                    self._groups[key] = group
        self._key = {name: tuple(sorted(rows[name])) for name in self.names}

    def add_up(self, held: Mapping[str, Sequence[torch.Tensor]]) -> None:
        """Give all copies the sum of their gradients."""
        for name in self.names:
            copies = held.get(name, ())
            if not copies or not copies[0].requires_grad:
                continue
            for copy in copies:
                if copy.grad is None:
                    copy.grad = torch.zeros_like(copy)
                elif isinstance(copy.grad, DTensor) and isinstance(copy, DTensor):
                    copy.grad = copy.grad.redistribute(placements=copy.placements)
            grads = [local(copy.grad) for copy in copies if copy.grad is not None]
            total = grads[0].clone() if len(grads) == 1 else torch.stack(grads).sum(0)
            if len(self._key[name]) > 1:
                dist.all_reduce(total, group=self._groups[self._key[name]])
            for grad in grads:
                grad.copy_(total)

    def keep_equal(self, held: Mapping[str, Sequence[torch.Tensor]]) -> None:
        """Give the copies on this rank the value of the first one, which the optimizer has changed."""
        with torch.no_grad():
            for name in self.names:
                for copy in held.get(name, ())[1:]:
                    local(copy).copy_(local(held[name][0]))
