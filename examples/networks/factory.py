"""What every factory of this package shares: weights and inputs that are the same at every call."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn

Network: TypeAlias = tuple[nn.Module, tuple[Tensor, ...]]
"""A module in eval mode and example inputs for it, in the order of its forward; their first dimension is the batch."""


class Factory(Protocol):
    """Builds a network; `planner plan package.module:factory` calls it."""

    def __call__(self, batch: int = 1) -> Network:
        """Returns the network with inputs of `batch` samples."""


def build(module: Callable[[], nn.Module], inputs: Callable[[], tuple[Tensor, ...]]) -> Network:
    """Builds a module and its inputs from one seed, for the default device.

    The weights are drawn before the inputs, so that they are the same whatever the batch, and on the CPU, so that they
    are the same on every device; on the meta device nothing is drawn.
    """
    device = torch.get_default_device()
    drawn_on = device if device.type == "meta" else torch.device("cpu")
    with _seeded(), drawn_on:
        network = module().eval()
        examples = inputs()
    return network.to(device), tuple(example.to(device) for example in examples)


def build_randomised(module: Callable[[], nn.Module], shape: tuple[int, ...]) -> Network:
    """Builds a network with `randomise`d weights and one float32 input of that shape."""

    def randomised() -> nn.Module:
        network = module()
        randomise(network)
        return network

    return build(randomised, lambda: (torch.randn(shape),))


def randomise(network: nn.Module) -> None:
    """Draws weights that keep the scale of the activations through any depth (He et al. 2015), in place.

    Biases keep PyTorch's random start, and the statistics of a batch norm are drawn too: a bias or a batch norm that
    gets lost on the way must change the outputs.
    """
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d) and module.running_mean is not None and module.running_var is not None:
            nn.init.normal_(module.bias, std=0.1)
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)


def chain(**layers: nn.Module) -> nn.Sequential:
    """Puts named layers one after the other."""
    return nn.Sequential(OrderedDict(layers))


@contextmanager
def _seeded() -> Iterator[None]:
    """Seeds the CPU's generator inside the block and restores it after."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # torch.manual_seed would seed the other devices too, for good
        yield
