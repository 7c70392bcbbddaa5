"""Footprints of the operators of a graph: recorded by an importer, or estimated."""

from functools import cached_property

from costmodels.operators.views import STOPS, bases, operation
from graphs.footprint import Backward, Gradient, Run
from graphs.ir import ITEM_BYTES, STATE, Graph, Op, Role

FLOATS = frozenset(name for name in ITEM_BYTES if "float" in name or "complex" in name)


class Footprints:
    """Footprints of all operators of a graph.

    The estimate for an operator without a record: it needs no memory besides its outputs, views share the storage of
    their base, all inputs and outputs are saved, and every floating-point input that depends on a parameter gets a
    gradient, with the same number of bytes as temporary memory.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def run(self, op: Op, training: bool) -> Run:
        """The forward run."""
        if op.footprint is not None:
            run = op.footprint.training if training else op.footprint.inference
            if run is not None:
                return run
        return Run(tuple(self._bases.get(name, self.graph.tensor[name].n_bytes) for name in op.outputs))

    def backward(self, op: Op) -> Backward:
        """The backward pass; without gradients, it does not run."""
        if op.footprint is not None and op.footprint.backward is not None:
            return op.footprint.backward
        wanted = [name for name in dict.fromkeys(op.inputs) if self._follows(op, name, self.behind)]
        if not wanted:
            return Backward()
        tensor = self.graph.tensor
        saved = tuple(name for name in dict.fromkeys((*op.inputs, *op.outputs)) if tensor[name].role not in STATE)
        gradients = tuple(Gradient(name, tensor[name].n_bytes) for name in wanted)
        return Backward(saved, 0, gradients, sum(tensor[name].n_bytes for name in wanted))

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Names of the trained parameters, in the order of the graph."""
        trained = {gradient.tensor for op in self.graph.ops for gradient in self.backward(op).gradients}
        return tuple(t.name for t in self.graph.tensors if t.role is Role.PARAMETER and t.name in trained)

    @cached_property
    def behind(self) -> frozenset[str]:
        """Names of the tensors that depend on trained parameters, and so get a gradient."""
        behind: set[str] = set()
        for op in self.graph.ops:
            if op.footprint is not None and op.footprint.backward is not None:
                follows = bool(op.footprint.backward.gradients)
            else:
                follows = any(self._follows(op, name, behind) for name in op.inputs)
            if follows:
                behind.update(name for name in op.outputs if self.graph.tensor[name].dtype in FLOATS)
        return frozenset(behind)

    @cached_property
    def _bases(self) -> dict[str, str]:
        """Views with their bases, from the operators' kinds."""
        return dict(bases(self.graph))

    def _follows(self, op: Op, name: str, behind: set[str] | frozenset[str]) -> bool:
        """Return whether an operator without a record has a gradient for an input."""
        tensor = self.graph.tensor[name]
        is_trained = tensor.role is Role.PARAMETER and tensor.dtype in FLOATS
        return operation(op.kind) not in STOPS and (name in behind or is_trained)
