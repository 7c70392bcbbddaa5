"""The supported ONNX operators in PyTorch; the import of the package fills `registry.OPERATORS`."""

from graphs.importers.onnx.operators import (
    attention,
    contraction,
    elementwise,
    indexing,
    normalization,
    pooling,
    recurrent,
    reduction,
    resize,
    shaping,
)
from graphs.importers.onnx.operators.registry import OPERATORS

__all__ = ["OPERATORS"]

# Imported for what they register, in alphabetical order.
del attention, contraction, elementwise, indexing, normalization, pooling, recurrent, reduction, resize, shaping
