"""AlexNet, Network in Network and GoogLeNet as Caffe's model zoo has them, but for the softmax: they return logits.

Caffe rounds the size of a pooled image up, hence `ceil_mode`, and divides the alpha of its local response
normalization by the window, as PyTorch does.
"""

import torch
from torch import Tensor, nn

from examples.networks.factory import Network, build_randomised, chain


def alexnet(batch: int = 1) -> Network:
    """AlexNet (Krizhevsky et al. 2012) as `bvlc_alexnet`: grouped convolutions, 60,965,224 parameters."""
    return build_randomised(_alexnet, (batch, 3, 227, 227))


def _alexnet() -> nn.Module:
    return chain(
        conv1=nn.Conv2d(3, 96, 11, stride=4),
        relu1=nn.ReLU(),
        norm1=_norm(),
        pool1=_max_pool(),
        conv2=nn.Conv2d(96, 256, 5, padding=2, groups=2),
        relu2=nn.ReLU(),
        norm2=_norm(),
        pool2=_max_pool(),
        conv3=nn.Conv2d(256, 384, 3, padding=1),
        relu3=nn.ReLU(),
        conv4=nn.Conv2d(384, 384, 3, padding=1, groups=2),
        relu4=nn.ReLU(),
        conv5=nn.Conv2d(384, 256, 3, padding=1, groups=2),
        relu5=nn.ReLU(),
        pool5=_max_pool(),
        flatten=nn.Flatten(),
        fc6=nn.Linear(256 * 6 * 6, 4096),
        relu6=nn.ReLU(),
        drop6=nn.Dropout(0.5),
        fc7=nn.Linear(4096, 4096),
        relu7=nn.ReLU(),
        drop7=nn.Dropout(0.5),
        fc8=nn.Linear(4096, 1000),
    )


def nin(batch: int = 1) -> Network:
    """Network in Network (Lin et al. 2014) as the model zoo's `NIN-Imagenet`: no linear layer, 7,595,176 parameters."""
    return build_randomised(_nin, (batch, 3, 224, 224))


def _nin() -> nn.Module:
    return chain(
        conv1=_conv_relu(3, 96, 11, stride=4),
        cccp1=_conv_relu(96, 96, 1),
        cccp2=_conv_relu(96, 96, 1),
        pool1=_max_pool(),
        conv2=_conv_relu(96, 256, 5, padding=2),
        cccp3=_conv_relu(256, 256, 1),
        cccp4=_conv_relu(256, 256, 1),
        pool2=_max_pool(),
        conv3=_conv_relu(256, 384, 3, padding=1),
        cccp5=_conv_relu(384, 384, 1),
        cccp6=_conv_relu(384, 384, 1),
        pool3=_max_pool(),
        drop=nn.Dropout(0.5),
        conv4=_conv_relu(384, 1024, 3, padding=1),
        cccp7=_conv_relu(1024, 1024, 1),
        cccp8=_conv_relu(1024, 1000, 1),
        pool4=nn.AvgPool2d(6),
        flatten=nn.Flatten(),
    )


def googlenet(batch: int = 1, aux: bool = False) -> Network:
    """GoogLeNet (Szegedy et al. 2015) as `bvlc_googlenet`, without batch norm: 6,998,552 parameters.

    Args:
        batch: Number of images.
        aux: Adds the two auxiliary classifiers (13,378,280 parameters); forward then returns (main, aux1, aux2).
    """
    return build_randomised(lambda: GoogLeNet(aux), (batch, 3, 224, 224))


class GoogLeNet(nn.Module):
    """Nine inception modules; the auxiliary classifiers read the first and the fourth of the middle five."""

    def __init__(self, aux: bool) -> None:
        super().__init__()
        self.conv1 = _conv_relu(3, 64, 7, stride=2, padding=3)
        self.pool1 = _max_pool()
        self.norm1 = _norm()
        self.conv2_reduce = _conv_relu(64, 64, 1)
        self.conv2 = _conv_relu(64, 192, 3, padding=1)
        self.norm2 = _norm()
        self.pool2 = _max_pool()
        self.inception3a = Inception(192, 64, (96, 128), (16, 32), 32)
        self.inception3b = Inception(256, 128, (128, 192), (32, 96), 64)
        self.pool3 = _max_pool()
        self.inception4a = Inception(480, 192, (96, 208), (16, 48), 64)
        self.inception4b = Inception(512, 160, (112, 224), (24, 64), 64)
        self.inception4c = Inception(512, 128, (128, 256), (24, 64), 64)
        self.inception4d = Inception(512, 112, (144, 288), (32, 64), 64)
        self.inception4e = Inception(528, 256, (160, 320), (32, 128), 128)
        self.pool4 = _max_pool()
        self.inception5a = Inception(832, 256, (160, 320), (32, 128), 128)
        self.inception5b = Inception(832, 384, (192, 384), (48, 128), 128)
        self.pool5 = nn.AvgPool2d(7)
        self.drop = nn.Dropout(0.4)
        self.fc = nn.Linear(1024, 1000)
        self.aux1 = _auxiliary(512) if aux else None
        self.aux2 = _auxiliary(528) if aux else None

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """Maps images [batch, 3, 224, 224] to logits [batch, 1000], three of them with auxiliary classifiers."""
        x = self.norm1(self.pool1(self.conv1(x)))
        x = self.pool2(self.norm2(self.conv2(self.conv2_reduce(x))))
        x = self.pool3(self.inception3b(self.inception3a(x)))
        after_4a = self.inception4a(x)
        after_4d = self.inception4d(self.inception4c(self.inception4b(after_4a)))
        x = self.pool4(self.inception4e(after_4d))
        x = self.pool5(self.inception5b(self.inception5a(x)))
        main: Tensor = self.fc(self.drop(x.flatten(1)))
        if self.aux1 is None or self.aux2 is None:
            return main
        return main, self.aux1(after_4a), self.aux2(after_4d)


class Inception(nn.Module):
    """Four branches side by side: 1×1, 1×1 then 3×3, 1×1 then 5×5, pooling then 1×1.

    The pairs `threes` and `fives` are the channels after the 1×1 convolution and at the end of the branch.
    """

    def __init__(self, channels: int, ones: int, threes: tuple[int, int], fives: tuple[int, int], pooled: int) -> None:
        super().__init__()
        self.branch1 = _conv_relu(channels, ones, 1)
        self.branch2 = chain(reduce=_conv_relu(channels, threes[0], 1), conv=_conv_relu(*threes, 3, padding=1))
        self.branch3 = chain(reduce=_conv_relu(channels, fives[0], 1), conv=_conv_relu(*fives, 5, padding=2))
        self.branch4 = chain(pool=nn.MaxPool2d(3, stride=1, padding=1), project=_conv_relu(channels, pooled, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Concatenates the branches along the channels."""
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], dim=1)


def _auxiliary(channels: int) -> nn.Sequential:
    return chain(
        pool=nn.AvgPool2d(5, stride=3, ceil_mode=True),
        conv=_conv_relu(channels, 128, 1),
        flatten=nn.Flatten(),
        fc1=nn.Linear(128 * 4 * 4, 1024),
        relu=nn.ReLU(),
        drop=nn.Dropout(0.7),
        fc2=nn.Linear(1024, 1000),
    )


def _conv_relu(channels_in: int, channels_out: int, kernel: int, stride: int = 1, padding: int = 0) -> nn.Sequential:
    return chain(conv=nn.Conv2d(channels_in, channels_out, kernel, stride, padding), relu=nn.ReLU())


def _max_pool() -> nn.MaxPool2d:
    return nn.MaxPool2d(3, stride=2, ceil_mode=True)


def _norm() -> nn.LocalResponseNorm:
    return nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75)
