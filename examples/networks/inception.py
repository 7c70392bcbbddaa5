"""Inception-v3 (Szegedy et al. 2016) without its auxiliary classifier: 23,834,568 parameters."""

from typing import TypeAlias

import torch
from torch import Tensor, nn

from examples.networks.factory import Network, build_randomised, chain

_Size: TypeAlias = int | tuple[int, int]


def inception_v3(batch: int = 1) -> Network:
    """Inception-v3 with batch norm; images [batch, 3, 299, 299] to logits [batch, 1000]."""
    return build_randomised(_inception_v3, (batch, 3, 299, 299))


def _inception_v3() -> nn.Module:
    return chain(
        conv1=_conv(3, 32, 3, stride=2),
        conv2=_conv(32, 32, 3),
        conv3=_conv(32, 64, 3, padding=1),
        pool1=nn.MaxPool2d(3, stride=2),
        conv4=_conv(64, 80, 1),
        conv5=_conv(80, 192, 3),
        pool2=nn.MaxPool2d(3, stride=2),
        mixed5b=_square(192, pooled=32),
        mixed5c=_square(256, pooled=64),
        mixed5d=_square(288, pooled=64),
        mixed6a=_halve_to_17(288),
        mixed6b=_factored(768, inner=128),
        mixed6c=_factored(768, inner=160),
        mixed6d=_factored(768, inner=160),
        mixed6e=_factored(768, inner=192),
        mixed7a=_halve_to_8(768),
        mixed7b=_fanned(1280),
        mixed7c=_fanned(2048),
        pool=nn.AdaptiveAvgPool2d(1),
        drop=nn.Dropout(0.5),
        flatten=nn.Flatten(),
        fc=nn.Linear(2048, 1000),
    )


class Branches(nn.Module):
    """Applies every branch to the same input and concatenates the results along the channels."""

    def __init__(self, **branches: nn.Module) -> None:
        super().__init__()
        for name, branch in branches.items():
            self.add_module(name, branch)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [batch, channels, height, width] to the channels of all branches."""
        return torch.cat([branch(x) for branch in self.children()], dim=1)


def _square(channels: int, pooled: int) -> Branches:
    """A module of the 35×35 part: 1×1, 5×5, two 3×3, pooling."""
    return Branches(
        branch1=_conv(channels, 64, 1),
        branch5=chain(reduce=_conv(channels, 48, 1), conv=_conv(48, 64, 5, padding=2)),
        branch3=chain(
            reduce=_conv(channels, 64, 1), conv1=_conv(64, 96, 3, padding=1), conv2=_conv(96, 96, 3, padding=1)
        ),
        branch_pool=chain(pool=_pool(), project=_conv(channels, pooled, 1)),
    )


def _halve_to_17(channels: int) -> Branches:
    """From 35×35 to 17×17."""
    return Branches(
        branch3=_conv(channels, 384, 3, stride=2),
        branch33=chain(
            reduce=_conv(channels, 64, 1), conv1=_conv(64, 96, 3, padding=1), conv2=_conv(96, 96, 3, stride=2)
        ),
        branch_pool=nn.MaxPool2d(3, stride=2),
    )


def _factored(channels: int, inner: int) -> Branches:
    """A module of the 17×17 part: every 7×7 convolution is a 1×7 and a 7×1."""
    return Branches(
        branch1=_conv(channels, 192, 1),
        branch7=chain(reduce=_conv(channels, inner, 1), row=_row(inner, inner), column=_column(inner, 192)),
        branch77=chain(
            reduce=_conv(channels, inner, 1),
            column1=_column(inner, inner),
            row1=_row(inner, inner),
            column2=_column(inner, inner),
            row2=_row(inner, 192),
        ),
        branch_pool=chain(pool=_pool(), project=_conv(channels, 192, 1)),
    )


def _halve_to_8(channels: int) -> Branches:
    """From 17×17 to 8×8."""
    return Branches(
        branch3=chain(reduce=_conv(channels, 192, 1), conv=_conv(192, 320, 3, stride=2)),
        branch7=chain(
            reduce=_conv(channels, 192, 1),
            row=_row(192, 192),
            column=_column(192, 192),
            conv=_conv(192, 192, 3, stride=2),
        ),
        branch_pool=nn.MaxPool2d(3, stride=2),
    )


def _fanned(channels: int) -> Branches:
    """A module of the 8×8 part: branches that fan out into a 1×3 and a 3×1 convolution."""
    return Branches(
        branch1=_conv(channels, 320, 1),
        branch3=chain(reduce=_conv(channels, 384, 1), fan=_fan()),
        branch33=chain(reduce=_conv(channels, 448, 1), conv=_conv(448, 384, 3, padding=1), fan=_fan()),
        branch_pool=chain(pool=_pool(), project=_conv(channels, 192, 1)),
    )


def _fan() -> Branches:
    return Branches(row=_conv(384, 384, (1, 3), padding=(0, 1)), column=_conv(384, 384, (3, 1), padding=(1, 0)))


def _row(channels_in: int, channels_out: int) -> nn.Sequential:
    return _conv(channels_in, channels_out, (1, 7), padding=(0, 3))


def _column(channels_in: int, channels_out: int) -> nn.Sequential:
    return _conv(channels_in, channels_out, (7, 1), padding=(3, 0))


def _pool() -> nn.AvgPool2d:
    return nn.AvgPool2d(3, stride=1, padding=1)


def _conv(channels_in: int, channels_out: int, kernel: _Size, stride: int = 1, padding: _Size = 0) -> nn.Sequential:
    return chain(
        conv=nn.Conv2d(channels_in, channels_out, kernel, stride, padding, bias=False),
        bn=nn.BatchNorm2d(channels_out, eps=0.001),
        relu=nn.ReLU(),
    )
