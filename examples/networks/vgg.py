"""VGG-16 and VGG-19 (Simonyan and Zisserman 2015, configurations D and E): 138,357,544 and 143,667,240 parameters."""

from torch import nn

from examples.networks.factory import Network, build_randomised, chain


def vgg16(batch: int = 1) -> Network:
    """VGG-16 without batch norm; images [batch, 3, 224, 224] to logits [batch, 1000]."""
    return build_randomised(lambda: _vgg([2, 2, 3, 3, 3]), (batch, 3, 224, 224))


def vgg19(batch: int = 1) -> Network:
    """VGG-19 without batch norm; images [batch, 3, 224, 224] to logits [batch, 1000]."""
    return build_randomised(lambda: _vgg([2, 2, 4, 4, 4]), (batch, 3, 224, 224))


def _vgg(convs_per_block: list[int]) -> nn.Module:
    widths = [3, 64, 128, 256, 512, 512]
    blocks = {
        f"block{number}": _block(widths[number - 1], widths[number], n_convs)
        for number, n_convs in enumerate(convs_per_block, start=1)
    }
    return chain(
        **blocks,
        flatten=nn.Flatten(),
        fc6=nn.Linear(512 * 7 * 7, 4096),
        relu6=nn.ReLU(),
        drop6=nn.Dropout(0.5),
        fc7=nn.Linear(4096, 4096),
        relu7=nn.ReLU(),
        drop7=nn.Dropout(0.5),
        fc8=nn.Linear(4096, 1000),
    )


def _block(channels_in: int, channels_out: int, n_convs: int) -> nn.Sequential:
    layers: dict[str, nn.Module] = {}
    for number in range(1, n_convs + 1):
        layers[f"conv{number}"] = nn.Conv2d(channels_in if number == 1 else channels_out, channels_out, 3, padding=1)
        layers[f"relu{number}"] = nn.ReLU()
    return chain(**layers, pool=nn.MaxPool2d(2))
