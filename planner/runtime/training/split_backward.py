"""Split backward: first the gradients that other stages wait for, later those of the weights.

::

    leaf ◄── n1 ◄── n2 ◄── root     first part:   root, n2, n1, as far as the leaf needs them; their inputs are noted
              │      │              second part:  n1 and n2 once more, each alone, as far as the weights need them
              ▼      ▼
             w1     w2

So each operator computes one of its gradients in each part, unless several operators read a weight. Source: Qi et al.
2024, Zero bubble pipeline parallelism.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

Root: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""A tensor, and the gradient that came back to it."""

End: TypeAlias = tuple[GradientEdge, torch.Tensor]
"""An edge of PyTorch's graph, and the gradient on it."""


@dataclass(frozen=True)
class WeightPass:
    """The second part of a backward pass."""

    begun: tuple[Root, ...]  # roots of the first part
    whole: tuple[Root, ...]  # roots that lead to weights only
    crossings: dict[Node, tuple[GradientEdge, ...]]  # operators on the way to leaves, with their edges to weights only
    noted: dict[Node, tuple[torch.Tensor | None, ...]]  # gradients that came in to these operators in the first part

    def finish(self) -> None:
        """Add the gradients of the weights to their ``grad``.

        A weight that several of the crossings lead to gets its gradient from a whole backward pass, in PyTorch's order.
        """
        behind = {edge: _weights(edge.node) for leaving in self.crossings.values() for edge in leaving}
        ways = Counter(weight for leaving in self.crossings.values() for edge in leaving for weight in behind[edge])
        several = {weight for weight, count in ways.items() if count > 1}
        _add_up([(get_gradient_edge(tensor), gradient) for tensor, gradient in (*self.begun, *self.whole)], several)
        ends = [(get_gradient_edge(tensor), gradient) for tensor, gradient in self.whole]
        for node, leaving in self.crossings.items():
            ends += self._through(node, [edge for edge in leaving if not behind[edge] <= several])
        once = ways.keys() | {weight for edge, _ in ends for weight in _weights(edge.node)}
        _add_up(ends, once - several)

    def _through(self, node: Node, edges: Sequence[GradientEdge]) -> list[End]:
        """Return gradients at edges of one operator, from the gradients that came in to it; none if none came."""
        incoming = [(GradientEdge(node, i), g) for i, g in enumerate(self.noted.get(node, ())) if g is not None]
        if not (incoming and edges):
            return []
        roots, values = zip(*incoming, strict=True)
        gradients = torch.autograd.grad(roots, edges, values, retain_graph=True, allow_unused=True)
        return [(edge, gradient) for edge, gradient in zip(edges, gradients, strict=True) if gradient is not None]


def _weights(node: Node) -> set[Node]:
    """Return the nodes reachable from a node that add up the gradients of weights; the node may be one itself."""
    ahead, seen, ends = [node], {node}, set()
    while ahead:
        latest = ahead.pop()
        fresh = {child for child, _ in latest.next_functions if child is not None} - seen
        ahead += fresh
        seen |= fresh
        if not latest.next_functions:
            ends.add(latest)
    return ends


def _add_up(ends: Sequence[End], weights: Iterable[Node]) -> None:
    """Run the backward pass from the ends to some of the weights."""
    variables = [node.variable for node in weights]  # type: ignore[attr-defined]  # of AccumulateGrad
    if ends and variables:
        torch.autograd.backward(
            [edge for edge, _ in ends], [gradient for _, gradient in ends], inputs=variables, retain_graph=True
        )


def first_half(roots: Sequence[Root], leaves: Sequence[torch.Tensor]) -> WeightPass:
    """Run the backward pass from the roots to the leaves, whose gradients are then in their ``grad``."""
    targets = {get_gradient_edge(leaf).node for leaf in leaves}
    starts = {id(tensor): get_gradient_edge(tensor).node for tensor, _ in roots}
    leading = _leading_to(targets, starts.values())
    begun = tuple(root for root in roots if starts[id(root[0])] in leading)
    crossings = {}  # each edge once
    for node in leading:
        ahead = [GradientEdge(child, i) for child, i in node.next_functions if child is not None]
        if edges := tuple(dict.fromkeys(edge for edge in ahead if edge.node not in leading)):
            crossings[node] = edges
    noted: dict[Node, tuple[torch.Tensor | None, ...]] = {}
    hooks = [node.register_prehook(partial(noted.__setitem__, node)) for node in crossings]
    if begun:
        torch.autograd.backward(
            [tensor for tensor, _ in begun], [gradient for _, gradient in begun], inputs=leaves, retain_graph=True
        )
    for hook in hooks:
        hook.remove()
    whole = tuple(root for root in roots if starts[id(root[0])] not in leading)
    return WeightPass(begun, whole, crossings, noted)


def _leading_to(targets: set[Node], starts: Iterable[Node]) -> dict[Node, None]:
    """Return all nodes from which one of the targets is reached, including the targets."""
    leads: dict[Node, bool] = dict.fromkeys(targets, True)
    waiting = list(starts)
    while waiting:
        node = waiting[-1]
        ahead = [child for child, _ in node.next_functions if child is not None]
        unseen = [child for child in ahead if child not in leads]
        if node in leads or not unseen:
            leads.setdefault(node, any(leads[child] for child in ahead))
            waiting.pop()
        waiting += [] if node in leads else unseen
    return {node: None for node, leading in leads.items() if leading}
