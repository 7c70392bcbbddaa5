"""SharedWeights: weights that several stages of a pipeline read, such as an embedding that is the head, too.

Each stage has a copy, and the gradients of all copies are added up before the optimizers' step, so that the copies stay
equal.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from graphs.ir import Graph, Role
from planner.runtime.hybrid.division import full, local, part_of


class SharedWeights:
    """The weights with copies in several stages, and the ranks that have them."""

    def __init__(
        self, graph: Graph, cut: Sequence[Sequence[Sequence[int]]], lines: Sequence[Sequence[Sequence[int]]]
    ) -> None:
        """Find them, and make a group for the ranks of each; all ranks do so together.

        Args:
            graph: the network.
            cut: the operators of each block of each stage.
            lines: [n_lines, n_rows, n_ranks], the ranks of each row of stages. Those of a line have equal parts of a
                weight if there is one for each row; else they add up whole gradients, of which each row has one.
        """
        rows: dict[str, set[int]] = {}
        self._stages: dict[str, list[int]] = {}
        for number, blocks in enumerate(cut):
            read = {name for ops in blocks for op in ops for name in graph.ops[op].inputs}
            for name in sorted(name for name in read if graph.tensor[name].role is Role.PARAMETER):
                rows.setdefault(name, set()).add(number % len(lines[0]))
                self._stages.setdefault(name, []).append(number)
        self.names = [name for name, numbers in self._stages.items() if len(numbers) > 1]
        self._key = {name: tuple(sorted(rows[name])) for name in self.names}
        self._whole = any(len(ranks) > 1 for line in lines for ranks in line)
        self._first = any(dist.get_rank() == ranks[0] for line in lines for ranks in line)
        self._groups = {key: _group_of(key, lines) for key in sorted(set(self._key.values()))}

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
            grads = [copy.grad for copy in copies if copy.grad is not None]
            if self._whole:
                total = full(grads[0]).to(local(grads[0]).device) * self._first
            else:
                total = torch.stack([local(grad) for grad in grads]).sum(0)
            if len(self._key[name]) > 1:
                dist.all_reduce(total, group=self._groups[self._key[name]])
            for grad in grads:
                local(grad).copy_(part_of(total, grad) if self._whole else total)

    def keep_equal(self, held: Mapping[str, Sequence[torch.Tensor]]) -> None:
        """Give the copies on this rank the value of the first one, which the optimizer has changed."""
        with torch.no_grad():
            for name in self.names:
                for copy in held.get(name, ())[1:]:
                    local(copy).copy_(local(held[name][0]))


def _group_of(rows: Sequence[int], lines: Sequence[Sequence[Sequence[int]]]) -> dist.ProcessGroup | None:
    """Return the group of the ranks of some rows of a line in which this rank is; None if it is in none of them.

    All ranks make the groups of all lines together.
    """
    own: dist.ProcessGroup | None = None
    for line in lines:
        ranks = [rank for row in rows for rank in line[row]]
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            own = group
    return own
