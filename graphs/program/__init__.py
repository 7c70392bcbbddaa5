"""A graph together with what executes it in PyTorch."""
