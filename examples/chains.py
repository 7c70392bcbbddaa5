"""What several examples need: networks as chains of layers, and AlexNet as its paper draws it."""

import torch
from torch import nn

from examples.networks import NETWORKS
from graphs.importers.from_torch import program_from_module
from graphs.ir import Graph, Role
from planner.literature.layerwise.layer_parallelism import ChainLayer

FLOAT32 = 4
MB = 2**20


class AlexNet(nn.Sequential):
    """The network of Krizhevsky, Sutskever and Hinton (NeurIPS 2012), without response norms and dropout."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        wide = 256 // groups * groups

        def layer(product: nn.Module, *after: nn.Module) -> nn.Sequential:
            return nn.Sequential(product, nn.ReLU(), *after)

        self.conv1 = layer(nn.Conv2d(3, 96, 11, stride=4), nn.MaxPool2d(3, 2))
        self.conv2 = layer(nn.Conv2d(96, wide, 5, padding=2, groups=groups), nn.MaxPool2d(3, 2))
        self.conv3 = layer(nn.Conv2d(wide, 384, 3, padding=1))
        self.conv4 = layer(nn.Conv2d(384, 384, 3, padding=1, groups=groups))
        self.conv5 = layer(nn.Conv2d(384, wide, 3, padding=1, groups=groups), nn.MaxPool2d(3, 2), nn.Flatten())
        self.fc1 = layer(nn.Linear(36 * wide, 4096))
        self.fc2 = layer(nn.Linear(4096, 4096))
        self.fc3 = nn.Linear(4096, 1000)


def alexnet(batch: int, groups: int = 2) -> Graph:
    """The network on the meta device, so that nothing is allocated."""
    with torch.device("meta"):
        model, images = AlexNet(groups).eval(), torch.empty(batch, 3, 227, 227)
    return program_from_module(model, (images,), name="alexnet").graph


def on_meta(name: str, batch: int, **options: int) -> Graph:
    """A network of `examples.networks` without its weights."""
    with torch.device("meta"):
        module, inputs = NETWORKS[name](batch, **options)
    return program_from_module(module, inputs, name=name).graph


def layers_of(graph: Graph, batch: int) -> tuple[ChainLayer, ...]:
    """The operators that multiply by weights, as layers with all parameters until the next one; by float32 values.

    A layer's outputs are what the next layer reads, so they are pooled; parameters with two readers count once.
    """
    layers: list[ChainLayer] = []
    counted: set[str] = set()
    for op in graph.ops:
        own = [graph.tensor[name] for name in dict.fromkeys(op.inputs) if graph.tensor[name].role is Role.PARAMETER]
        read = [graph.tensor[name].n_elements for name in op.inputs if graph.tensor[name].role is not Role.PARAMETER]
        parameters = sum(tensor.n_elements for tensor in own if tensor.name not in counted)
        counted.update(tensor.name for tensor in own)
        if any(len(tensor.shape) > 1 for tensor in own):
            inputs, outputs = max(read) // batch, graph.tensor[op.outputs[0]].n_elements // batch
            if layers:
                layers[-1] = layers[-1]._replace(outputs=inputs)
            layers.append(ChainLayer(op.module, parameters, inputs, outputs))
        elif layers:
            layers[-1] = layers[-1]._replace(parameters=layers[-1].parameters + parameters)
    return tuple(layers)


def parameter_bytes(layers: tuple[ChainLayer, ...]) -> float:
    """All parameters in float32, or their gradients."""
    return float(FLOAT32 * sum(layer.parameters for layer in layers))
