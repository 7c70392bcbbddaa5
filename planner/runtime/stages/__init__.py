"""What inference and training share: compiled stages, random numbers and CUDA streams."""
