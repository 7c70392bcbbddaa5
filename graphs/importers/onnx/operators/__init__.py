"""The supported ONNX operators in PyTorch; the import of the package fills `registry.OPERATORS`."""

from graphs.importers.onnx.operators import (
    attention,
    elementwise,
    indexing,
    microsoft,
    microsoft_attention,
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

del attention, elementwise, indexing, microsoft, microsoft_attention, normalization, products, quantized, recurrent
del reduction, resize, shaping, windows
