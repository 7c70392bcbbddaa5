"""The parts of the ONNX importer; `graphs.importers.from_onnx` is the door."""
