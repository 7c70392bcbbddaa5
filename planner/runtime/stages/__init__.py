"""Stages, for inference and training: compiled functions, random numbers and CUDA streams."""
