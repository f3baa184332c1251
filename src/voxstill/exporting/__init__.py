"""Students as ONNX files that other runtimes take."""
