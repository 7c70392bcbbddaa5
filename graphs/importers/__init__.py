"""Ways into the graph: PyTorch modules, exported programs, ONNX files, transformers configs."""
