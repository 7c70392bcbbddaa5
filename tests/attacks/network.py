"""A network so small that commands with a fault spend their time on their own work."""

import torch
from torch import nn


def small() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Return three layers, and an input of two samples."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), (torch.randn(2, 8),)
