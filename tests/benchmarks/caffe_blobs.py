"""What Caffe logs as the memory of a network's blobs in training, counted layer by layer from the module alone.

Caffe adds up the tops of all layers as it sets them up. A ReLU or a dropout that works in place is counted once more
(BVLC/caffe#3461), and so is each reader of a blob that several read, since Caffe puts a split before them. Gradients
are not in the log: they double it (BVLC/caffe#191). What layers allocate for themselves is not in it either.
"""

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from examples.networks.caffe import Inception

ITEM_BYTES = 4  # float32, labels too
LAYERS = (nn.Conv2d, nn.Linear, nn.MaxPool2d, nn.AvgPool2d, nn.LocalResponseNorm, Inception)  # its concatenation
IN_PLACE = (nn.ReLU, nn.Dropout)
BRANCHES = 4


@dataclass(frozen=True)
class Blobs:
    """Bytes of data by their purpose, without gradients.

    Attributes:
        ends: the images, their labels for each loss, and the losses.
        layers: tops of convolutions, pooling, normalization, concatenation and linear layers.
        in_place: tops of ReLU and dropout, which are none in truth, where these work in place.
        split: tops of splits of activations.
    """

    ends: int
    layers: int
    in_place: int
    split: int

    @property
    def logged(self) -> int:
        """All of them: 'Memory required for data'."""
        return sum(getattr(self, field.name) for field in fields(self))


def blobs(module: nn.Module, images: torch.Tensor) -> Blobs:
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
            module(images)
    finally:
        for hook in hooks:
            hook.remove()
    losses = 1 + len(heads)
    labels = len(images) * (1 + losses * (losses > 1))
    ends = images.numel() + labels + losses
    return Blobs(ITEM_BYTES * ends, **{name: ITEM_BYTES * number for name, number in count.items()})
