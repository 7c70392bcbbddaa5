"""ResNet-50 and ResNet-152 (He et al. 2016): 25,557,032 and 60,192,808 parameters.

As in torchvision, the 3×3 convolution of a block carries its stride ("v1.5"); the parameters are those of the paper's
version, which strides in the first 1×1 convolution.
"""

from torch import Tensor, nn

from examples.networks.factory import Network, build_randomised, chain

_EXPANSION = 4  # a block's outer width over its inner width


def resnet50(batch: int = 1) -> Network:
    """ResNet-50; images [batch, 3, 224, 224] to logits [batch, 1000]."""
    return build_randomised(lambda: ResNet([3, 4, 6, 3]), (batch, 3, 224, 224))


def resnet152(batch: int = 1) -> Network:
    """ResNet-152; images [batch, 3, 224, 224] to logits [batch, 1000]."""
    return build_randomised(lambda: ResNet([3, 8, 36, 3]), (batch, 3, 224, 224))


class ResNet(nn.Module):
    """A stem, four layers of bottleneck blocks, and a classifier."""

    def __init__(self, blocks_per_layer: list[int]) -> None:
        super().__init__()
        first, second, third, fourth = blocks_per_layer
        self.stem = chain(
            conv=nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
            bn=nn.BatchNorm2d(64),
            relu=nn.ReLU(),
            pool=nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.layer1 = _layer(64, 64, first, stride=1)
        self.layer2 = _layer(256, 128, second, stride=2)
        self.layer3 = _layer(512, 256, third, stride=2)
        self.layer4 = _layer(1024, 512, fourth, stride=2)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(2048, 1000)
        for module in self.modules():
            if isinstance(module, Bottleneck):
                # n branches of variance 1/n each: without it the activations double with every block.
                nn.init.constant_(module.bn3.weight, sum(blocks_per_layer) ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images to logits."""
        x = self.stem(x)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(self.pool(x).flatten(1))
        return logits


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions beside a shortcut, which is a 1×1 convolution where the shape changes."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        outer = width * _EXPANSION
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outer, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU()
        self.shortcut = (
            nn.Identity()
            if (channels, stride) == (outer, 1)
            else chain(conv=nn.Conv2d(channels, outer, 1, stride, bias=False), bn=nn.BatchNorm2d(outer))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps [batch, channels, height, width] to [batch, 4 × inner width, height / stride, width / stride]."""
        branch = self.relu(self.bn1(self.conv1(x)))
        branch = self.relu(self.bn2(self.conv2(branch)))
        branch = self.bn3(self.conv3(branch))
        out: Tensor = self.relu(branch + self.shortcut(x))
        return out


def _layer(channels: int, width: int, n_blocks: int, stride: int) -> nn.Sequential:
    first = Bottleneck(channels, width, stride)
    return nn.Sequential(first, *(Bottleneck(width * _EXPANSION, width, stride=1) for _ in range(n_blocks - 1)))
