"""Caffe's published memory of NIN, AlexNet and GoogLeNet in training, beside its log's rule and what PyTorch takes.

The figures came without their prototxt files. So each network is counted as it is named, and as what all its figures
fit to the last digit; for how many classes they do is searched.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from costmodels.memory.passes import Passes, training_passes
from examples.networks import Factory, Network, alexnet, googlenet, nin
from examples.networks.factory import chain
from graphs.importers.from_torch import program_from_module
from graphs.ir import Graph
from tests.benchmarks.bars import Bar, at_most
from tests.benchmarks.caffe_blobs import Blobs, blobs

MIB = 2.0**20
BATCH = 64
FEWEST, MOST = 16, 256  # samples, between which the published activations are linear
IMAGENET, FEW = 1000, 10
MOST_CLASSES = 2000  # up to where a fit is searched
INDEX_BYTES = 8  # PyTorch keeps where the maxima are as int64

LOGGED_BYTES, LOGGED_BATCH = 1_757_220_868, 256
"""'Memory required for data' of CaffeNet in training, in the log of BVLC/caffe#2706."""

LOG = """\
Published activations are twice, for their gradients, what Caffe logs as 'Memory required for data': the tops of all
layers and splits, and of ReLU and dropout once more though they work in place (BVLC/caffe#191, #3461). They are cut to
MiB, parameters rounded up. By that rule
  alexnet    is CaffeNet, Caffe's variant that pools before it normalizes (bvlc_alexnet has larger tops), for
             {alexnet} classes: 1000 would need more parameters;
  nin        is for {nin} classes: 1000 would need more parameters and more activations;
  googlenet  is for 1000: its figures fit {googlenet}.
All six figures come out to the last digit so. That is arithmetic that fits: no source names the prototxt files."""

PYTORCH = """\
PyTorch takes less of nin and googlenet: layers in place and splits (see above) have no memory of their own, and a
gradient lives only until it was used. It keeps where the maxima are as int64 and, as it composes local response
normalization of simpler operators, three tensors of each, almost half of what alexnet keeps. Caffe's layers have the
like (a mask, a scale), which its log leaves out."""


@dataclass(frozen=True)
class Published:
    """Figures of one network: MiB of parameters, and of activations with their gradients at a batch of 64."""

    parameters: int
    activations: int


PUBLISHED = {"nin": Published(26, 1771), "alexnet": Published(218, 837), "googlenet": Published(52, 6847)}


@dataclass(frozen=True)
class Counted:
    """The same by the rule, in MiB, not rounded."""

    parameters: float
    activations: float

    def is_shown_as(self, published: Published) -> bool:
        """Whether both come out to the last digit."""
        shown = math.ceil(self.parameters), math.floor(self.activations)
        return shown == (published.parameters, published.activations)


def googlenet_with_heads(batch: int = 1) -> Network:
    """GoogLeNet as it is trained."""
    return googlenet(batch, aux=True)


def caffenet(batch: int = 1) -> Network:
    """AlexNet as Caffe's `bvlc_reference_caffenet`: it pools before it normalizes."""
    module, inputs = alexnet(batch)
    layers = dict(module.named_children())
    swapped = {"norm1": "pool1", "pool1": "norm1", "norm2": "pool2", "pool2": "norm2"}
    return chain(**{name: layers[name] for name in (swapped.get(name, name) for name in layers)}), inputs


NAMED: Mapping[str, Factory] = {"nin": nin, "alexnet": alexnet, "googlenet": googlenet_with_heads}
FITTED: Mapping[str, tuple[str, Factory, int]] = {
    "nin": ("nin", nin, FEW),
    "alexnet": ("caffenet", caffenet, FEW),
    "googlenet": ("googlenet", googlenet_with_heads, IMAGENET),
}
"""What the figures fit: a network and a number of classes."""


def shapes(factory: Factory, batch: int, classes: int) -> Network:
    """A network without values, for so many classes."""
    with torch.device("meta"):
        module, inputs = factory(batch)
        for path, layer in list(module.named_modules()):
            parent, _, name = path.rpartition(".")
            if isinstance(layer, nn.Linear) and layer.out_features == IMAGENET:
                setattr(module.get_submodule(parent), name, nn.Linear(layer.in_features, classes))
            if isinstance(layer, nn.Conv2d) and layer.out_channels == IMAGENET:
                setattr(module.get_submodule(parent), name, nn.Conv2d(layer.in_channels, classes, 1))
    return module, inputs


def counted(factory: Factory, classes: int) -> tuple[Counted, Blobs]:
    """A network at a batch of 64, and what its activations consist of."""
    module, (images,) = shapes(factory, BATCH, classes)
    parts = blobs(module, images)
    return Counted(sum(p.nbytes for p in module.parameters()) / MIB, 2 * parts.logged / MIB), parts


def fitting(factory: Factory, published: Published) -> str:
    """For how many classes both figures come out: they are lines in that number."""
    (one, _), (two, _) = counted(factory, 1), counted(factory, 2)
    parameters, activations = two.parameters - one.parameters, two.activations - one.activations
    lines = (Counted(one.parameters + n * parameters, one.activations + n * activations) for n in range(MOST_CLASSES))
    found = [n for n, line in enumerate(lines, start=1) if line.is_shown_as(published)]
    return f"{found[0]} to {found[-1]}" if found else "no number of"


def log_bars() -> Iterator[Bar]:
    """Each network as it is named, and as its figures come out."""
    print(f"\nCaffe, training, batch {BATCH}, MiB   parameters            activations, gradients   of which")
    print(f"{'':22}{'published':>11}{'ours':>7}{'off':>8}{'published':>11}{'ours':>7}{'off':>8}", end="")
    print(f"{'layers':>8}{'in place':>10}{'splits':>8}{'ends':>6}")
    missed = 0
    for name, published in PUBLISHED.items():
        label, fitted, classes = FITTED[name]
        found, parts = counted(NAMED[name], IMAGENET)
        print(_line(name, IMAGENET, published, found, parts))
        if (fitted, classes) != (NAMED[name], IMAGENET):
            found, parts = counted(fitted, classes)
            print(_line(label, classes, published, found, parts))
        missed += not found.is_shown_as(published)
    print(LOG.format(**{name: fitting(FITTED[name][1], figures) for name, figures in PUBLISHED.items()}))
    module, (images,) = shapes(caffenet, LOGGED_BATCH, IMAGENET)
    yield at_most("bytes between a log of Caffe and its rule", abs(blobs(module, images).logged - LOGGED_BYTES), 0)
    yield at_most("networks whose published figures do not come out to the last digit", missed, 0)


def _line(name: str, classes: int, published: Published, found: Counted, parts: Blobs) -> str:
    sizes = (
        f"{there:11}{ours:7.1f}{ours / there - 1:+8.1%}"
        for there, ours in (
            (published.parameters, found.parameters),
            (published.activations, found.activations),
        )
    )
    columns = zip((8, 10, 8, 6), (parts.layers, parts.in_place, parts.split, parts.ends), strict=True)
    tops = "".join(f"{2 * n_bytes / MIB:{width}.0f}" for width, n_bytes in columns)
    return f"{name:11}{classes:5} classes{''.join(sizes)}{tops}"


def torch_bars() -> Iterator[Bar]:
    """What PyTorch keeps of the same networks for the backward pass, and the most that it takes, by our model."""
    print(f"\nPyTorch, training, batch {BATCH}, MiB   published  most     off  gradients  kept", end="")
    print("   of which maxima  normalization")
    bent = 0.0
    for name, published in PUBLISHED.items():
        graph, passes = _passes(name, BATCH)
        ends = [_passes(name, batch)[1].kept_bytes for batch in (FEWEST, MOST)]
        between = ends[0] + (ends[1] - ends[0]) * (BATCH - FEWEST) / (MOST - FEWEST)
        bent = max(bent, abs(passes.kept_bytes / between - 1))
        most = max(passes.forward_bytes, passes.backward_bytes) / MIB
        pools = [op for op in graph.ops if op.kind.startswith("aten.max_pool2d")]
        maxima = sum(INDEX_BYTES * graph.tensor[op.outputs[0]].n_elements for op in pools) / MIB
        parts = sum(passes.saved_bytes.get(op.name, 0) for op in graph.ops if "norm" in op.module) / MIB
        print(f"{name:34}{published.activations:11}{most:6.0f}{most / published.activations - 1:+8.1%}", end="")
        kept = passes.kept_bytes / MIB
        print(f"{most - kept:11.0f}{kept:6.0f}{maxima:18.0f}{parts:15.0f}")
    print(PYTORCH)
    yield at_most(f"what is kept at {BATCH} samples off the line through {FEWEST} and {MOST}", bent, 0.001)


def _passes(name: str, batch: int) -> tuple[Graph, Passes]:
    graph = program_from_module(*shapes(NAMED[name], batch, IMAGENET), name=name, training=True).graph
    return graph, training_passes(graph, accumulating=True)
