"""What Caffe takes for the blobs of a network in training, counted layer by layer from the module alone.

Every layer has a top of its own with data and diff of the same size: so has a ReLU or dropout that does not work in
place, and so has each reader of a blob that several read (Caffe puts a split before them). The image has data only.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from examples.networks.caffe import Inception

TOP_BYTES = 2 * 4  # data and diff, float32
LAYERS = (nn.Conv2d, nn.Linear, nn.MaxPool2d, nn.AvgPool2d, nn.LocalResponseNorm, Inception)  # its concatenation
IN_PLACE = (nn.ReLU, nn.Dropout)
BRANCHES = 4


@dataclass(frozen=True)
class Blobs:
    """Bytes by their purpose.

    Attributes:
        image: its data.
        layers: tops of convolutions, pooling, normalization, concatenation, linear layers and the softmax.
        in_place: tops of ReLU and dropout, which are none where these work in place.
        split: tops of splits.
    """

    image: int
    layers: int
    in_place: int
    split: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.image + self.layers + self.in_place + self.split


def blobs(module: nn.Module, image: torch.Tensor) -> Blobs:
    """Follow one forward pass; on the meta device nothing is computed."""
    count = dict.fromkeys(("layers", "in_place", "split"), 0)
    heads = [head for name, head in module.named_children() if name.startswith("aux")]

    def ran(layer: nn.Module, arguments: tuple[Any, ...], result: Any) -> None:
        if isinstance(layer, LAYERS):
            count["layers"] += result.numel()
        if isinstance(layer, IN_PLACE):
            count["in_place"] += result.numel()
        if isinstance(layer, Inception):
            count["split"] += BRANCHES * arguments[0].numel()
        if layer in heads:  # one reader more of what the branches after it split already
            count["split"] += arguments[0].numel()

    hooks = [layer.register_forward_hook(ran) for layer in module.modules()]
    try:
        with torch.no_grad():
            results = module(image)
    finally:
        for hook in hooks:
            hook.remove()
    count["layers"] += sum(result.numel() for result in (results if isinstance(results, tuple) else (results,)))
    return Blobs(image.nbytes, **{name: TOP_BYTES * number for name, number in count.items()})
