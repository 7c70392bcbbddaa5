"""The parts of the ONNX importer, whose entry point is `graphs.importers.from_onnx`."""
