"""Importers of PyTorch modules, exported programs, ONNX files and transformers configs."""
