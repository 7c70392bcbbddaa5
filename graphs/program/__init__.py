"""A graph together with the PyTorch calls that execute it."""
