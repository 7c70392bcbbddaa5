"""Two small convolutional networks for a first try, and a deep stack of linear layers.

The convolutional ones are those of TensorFlow's first tutorials.
"""

from torch import nn

from examples.networks.factory import Network, build_randomised, chain


def mnist(batch: int = 1) -> Network:
    """Digits [batch, 1, 28, 28] to logits [batch, 10]: layers of 832, 51,264, 1,606,144 and 5,130 parameters."""
    return build_randomised(_mnist, (batch, 1, 28, 28))


def _mnist() -> nn.Module:
    return chain(
        conv1=nn.Conv2d(1, 32, 5, padding=2),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(32, 64, 5, padding=2),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(64 * 7 * 7, 512),
        relu3=nn.ReLU(),
        fc2=nn.Linear(512, 10),
    )


def cifar10(batch: int = 1) -> Network:
    """Photos cropped to [batch, 3, 24, 24] to logits [batch, 10].

    The layers have 4,864, 102,464, 885,120, 73,920 and 1,930 parameters.
    """
    return build_randomised(_cifar10, (batch, 3, 24, 24))


def _cifar10() -> nn.Module:
    # ceil_mode pads on the right alone, as TensorFlow's "SAME" does here: 24 -> 12 -> 6.
    return chain(
        conv1=nn.Conv2d(3, 64, 5, padding=2),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(3, stride=2, ceil_mode=True),
        norm1=nn.LocalResponseNorm(9, alpha=1e-3, beta=0.75),
        conv2=nn.Conv2d(64, 64, 5, padding=2),
        relu2=nn.ReLU(),
        norm2=nn.LocalResponseNorm(9, alpha=1e-3, beta=0.75),
        pool2=nn.MaxPool2d(3, stride=2, ceil_mode=True),
        flatten=nn.Flatten(),
        fc1=nn.Linear(64 * 6 * 6, 384),
        relu3=nn.ReLU(),
        fc2=nn.Linear(384, 192),
        relu4=nn.ReLU(),
        fc3=nn.Linear(192, 10),
    )


def mlp(batch: int = 1, depth: int = 8, width: int = 2048) -> Network:
    """A stack of `depth` square linear layers, each with a ReLU; [batch, width] to [batch, width]."""

    def stack() -> nn.Module:
        return nn.Sequential(*(chain(fc=nn.Linear(width, width), relu=nn.ReLU()) for _ in range(depth)))

    return build_randomised(stack, (batch, width))
