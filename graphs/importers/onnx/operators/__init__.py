"""The supported ONNX operators in PyTorch; the import of the package fills `registry.OPERATORS`."""

from graphs.importers.onnx.operators import (
    elementwise,
    indexing,
    microsoft,
    normalization,
    products,
    quantized,
    recurrent,
    reduction,
    resize,
    shaping,
    windows,
)
from graphs.importers.onnx.operators.registry import OPERATORS

__all__ = ["OPERATORS"]

del elementwise, indexing, microsoft, normalization, products, quantized, recurrent, reduction, resize, shaping, windows
